//! Calls listeners, on threads of its own.
//!
//! Each lock has a lane: its events wait there and are delivered one at a time, in order. Lanes with events wait for a
//! worker. There is one worker as long as callbacks return; when lanes wait and no worker comes free for a moment, more
//! are started, up to a cap, and those end again when there is nothing to do. So a callback that blocks keeps up its own
//! lock only.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::clock::{Alarm, AlarmHandle, Clock, Moment};
use crate::hold::{Hold, LossReason};
use crate::listener::LockListener;

type Event = crate::hold::reports::Event<LossReason>;

struct Notice {
    listener: Arc<dyn LockListener>,
    /// None when it is not delivered any more.
    event: Option<Event>,
    hold: Hold,
}

impl Notice {
    fn deliver(self) {
        let (name, event) = (self.hold.name().clone(), self.event);
        // The listener is dropped inside as well: that may be its last use, and its end may panic too.
        if catch_unwind(AssertUnwindSafe(move || self.call())).is_err() {
            tracing::error!(target: "distlock", lock = %name, ?event, "a listener panicked");
        }
    }

    fn call(self) {
        let Self { listener, event, hold } = self;
        let Some(event) = event else { return };
        match event {
            Event::Acquired => listener.on_acquired(&hold),
            Event::Released => listener.on_released(&hold),
            Event::Abort(reason) => listener.on_abort(&hold, &reason),
            // Overtaken by the end of the hold: nobody is to hear of doubts about what has ended.
            Event::Suspect | Event::Restored if !hold.0.is_standing() => {}
            Event::Suspect => listener.on_suspect(&hold),
            Event::Restored => listener.on_restored(&hold),
        }
    }
}

/// The events of one lock.
#[derive(Default)]
pub(crate) struct Lane(crate::sync::Mutex<Notices>);

#[derive(Default)]
struct Notices {
    waiting: VecDeque<Notice>,
    /// How many were dropped since the last delivery.
    dropped: u64,
    progress: Progress,
}

/// So many events of one lock wait for a listener that blocks; then the oldest are dropped.
const MOST_WAITING: usize = 1024;

/// Whether a worker has the lane, or will take it up.
#[derive(Default, PartialEq)]
enum Progress {
    #[default]
    Idle,
    Queued,
}

impl Lane {
    /// Has `listener` told of `event` after everything that it is to be told before.
    ///
    /// The caller holds the mutex of the hold's reports: no code of users runs in here, and nothing of theirs is dropped.
    pub(crate) fn post(self: &Arc<Self>, listener: Arc<dyn LockListener>, event: Event, hold: Hold) {
        let mut notices = self.0.lock();
        let is_full = notices.waiting.len() == MOST_WAITING;
        let oldest = if is_full { notices.waiting.pop_front() } else { None };
        notices.dropped += u64::from(is_full);
        notices.waiting.push_back(Notice { listener, event: Some(event), hold });
        let progress = std::mem::replace(&mut notices.progress, Progress::Queued);
        drop(notices);
        if progress == Progress::Idle {
            DISPATCHER.enqueue(Arc::clone(self));
        }
        if let Some(oldest) = oldest {
            DISPATCHER.enqueue(Self::to_be_dropped(oldest));
        }
    }

    /// A lane whose worker drops the notice, which may be the last use of a listener, and delivers nothing.
    fn to_be_dropped(notice: Notice) -> Arc<Self> {
        let waiting = VecDeque::from([Notice { event: None, ..notice }]);
        Arc::new(Self(crate::sync::Mutex::new(Notices { waiting, dropped: 0, progress: Progress::Queued })))
    }

    fn deliver_one(&self) {
        let (notice, dropped) = {
            let mut notices = self.0.lock();
            (notices.waiting.pop_front(), std::mem::take(&mut notices.dropped))
        };
        let Some(notice) = notice else { return };
        if dropped > 0 {
            let lock = notice.hold.name();
            tracing::warn!(target: "distlock", %lock, dropped, "a listener blocked for so long that its oldest events were dropped");
        }
        notice.deliver();
    }

    /// Whether there is more to deliver; else the next event queues the lane again.
    fn wants_another_turn(&self) -> bool {
        let mut notices = self.0.lock();
        if notices.waiting.is_empty() {
            notices.progress = Progress::Idle;
        }
        notices.progress == Progress::Queued
    }
}

/// Has a worker ready for the first event.
pub(crate) fn prepare() {
    DISPATCHER.with_worker();
}

/// How many workers there may be: so many callbacks can block at once before another lock's events have to wait.
const MOST_WORKERS: usize = 64;

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
    lanes: VecDeque<Arc<Lane>>,
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

    fn enqueue(self: &Arc<Self>, lane: Arc<Lane>) {
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

    fn next_lane(&self) -> Option<Arc<Lane>> {
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
