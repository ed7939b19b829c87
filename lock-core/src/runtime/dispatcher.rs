//! Calls listeners, on threads of its own.
//!
//! Each lock has a lane: its events wait there and are delivered one at a time, in order. Lanes with events wait for a
//! worker. There is one worker as long as callbacks return; when lanes wait and no worker comes free for a moment, more
//! are started, up to a cap, and those end again when there is nothing to do. So a callback that blocks keeps up its own
//! lock only.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock::{Alarm, AlarmHandle, Clock, Moment};

/// Events that are delivered in order.
pub(crate) trait Lane: Send + Sync {
    fn deliver_one(&self);

    /// Whether there is more to deliver; else the next event queues the lane again.
    fn wants_another_turn(&self) -> bool;
}

/// Has a worker deliver what waits in the lane.
pub(crate) fn enqueue(lane: Arc<dyn Lane>) {
    DISPATCHER.enqueue(lane);
}

/// Has a worker ready for the first event.
pub(crate) fn prepare() {
    DISPATCHER.with_worker();
}

/// How many lanes wait for a worker.
#[cfg(test)]
pub(crate) fn lanes_that_wait() -> usize {
    DISPATCHER.work().lanes.len()
}

/// How many workers there may be: so many callbacks can block at once before another lock's events have to wait.
pub(crate) const MOST_WORKERS: usize = 64;

/// How long lanes wait without progress before more workers are started.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a worker that is one too many waits for work before it ends.
const IDLE_FOR: Duration = Duration::from_secs(1);

static DISPATCHER: LazyLock<Arc<Dispatcher>> = LazyLock::new(Arc::default);

#[derive(Default)]
struct Dispatcher {
    work: Mutex<Work>,
    arrived: Condvar,
}

#[derive(Default)]
struct Work {
    lanes: VecDeque<Arc<dyn Lane>>,
    workers: usize,
    idle: usize,
    /// Set while a look is due whether the workers make progress.
    watch: Option<AlarmHandle>,
    delivered: u64,
    delivered_at_last_look: u64,
}

impl Dispatcher {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, lane: Arc<dyn Lane>) {
        let mut work = self.work();
        work.lanes.push_back(lane);
        if work.idle > 0 {
            self.arrived.notify_one();
        }
        if work.workers == 0 {
            self.start_workers(&mut work, 1);
        } else if work.lanes.len() > work.idle && work.watch.is_none() {
            // An idle worker counts as idle until it has woken, so two lanes may meet the same one: more lanes than idle
            // workers are watched over even if there is one.
            work.delivered_at_last_look = work.delivered;
            let clock = Clock::system();
            work.watch = Some(clock.schedule(clock.now().plus(PATIENCE), Arc::clone(self) as Arc<dyn Alarm>));
        }
    }

    fn with_worker(self: &Arc<Self>) {
        let mut work = self.work();
        if work.workers == 0 {
            self.start_workers(&mut work, 1);
        }
    }

    fn start_workers(self: &Arc<Self>, work: &mut Work, count: usize) {
        for _ in 0..count.min(MOST_WORKERS.saturating_sub(work.workers)) {
            let dispatcher = Arc::clone(self);
            let started =
                thread::Builder::new().name("distlock-listener".to_owned()).spawn(move || dispatcher.run());
            match started {
                Ok(_) => work.workers += 1,
                Err(error) => tracing::error!(target: "distlock", %error, "no thread for listeners"),
            }
        }
    }

    fn run(&self) {
        while let Some(lane) = self.next_lane() {
            lane.deliver_one();
            let again = lane.wants_another_turn();
            let mut work = self.work();
            work.delivered += 1;
            if again {
                work.lanes.push_back(lane);
            }
        }
    }

    fn next_lane(&self) -> Option<Arc<dyn Lane>> {
        let mut work = self.work();
        loop {
            if let Some(lane) = work.lanes.pop_front() {
                return Some(lane);
            }
            work.idle += 1;
            let (woken, waited) =
                self.arrived.wait_timeout(work, IDLE_FOR).unwrap_or_else(PoisonError::into_inner);
            work = woken;
            work.idle -= 1;
            if waited.timed_out() && work.lanes.is_empty() && work.workers > 1 {
                work.workers -= 1;
                return None;
            }
        }
    }
}

impl Alarm for Dispatcher {
    /// Looks whether lanes wait although nothing has been delivered: then the workers are blocked.
    fn ring(&self, now: Moment) -> Option<Moment> {
        let mut work = self.work();
        if work.lanes.is_empty() {
            // This alarm's own handle; dropped when the schedule is free again.
            let watch = work.watch.take();
            drop(work);
            drop(watch);
            return None;
        }
        if work.delivered == work.delivered_at_last_look {
            let more = work.workers;
            DISPATCHER.start_workers(&mut work, more);
        }
        work.delivered_at_last_look = work.delivered;
        Some(now.plus(PATIENCE))
    }
}
