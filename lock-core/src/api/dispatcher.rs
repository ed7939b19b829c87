//! Calls listeners and drops them, on threads of its own: both run code of users.
//!
//! Each listener has a mailbox: its events wait there and are delivered one at a time, in order. Mailboxes with events, and what
//! has left a mailbox, wait for a worker. One worker is enough as long as callbacks return; the last one that is free watches
//! the others and does nothing else. When jobs wait and none ends for a moment, it starts more, up to a limit, and these end
//! again when there is nothing to do. So a callback or a destructor that blocks delays only its own listener.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, LazyLock, PoisonError};
use std::thread;
use std::time::Duration;

use crate::api::mailbox::{Mailbox, call_listener};
use crate::runtime::Mutex;
use crate::runtime::log::log;

/// What a worker does at a time.
pub(crate) enum Job {
    /// Delivers the next event of a mailbox.
    Deliver(Arc<Mailbox>),
    /// Ends what has left a mailbox: a listener that was removed, events that nothing reads.
    End(Box<dyn FnOnce() + Send>),
}

impl Job {
    /// Returns the job again, if it is not done.
    fn carry_out(self) -> Option<Self> {
        match self {
            Self::Deliver(mailbox) => mailbox.deliver_one().then_some(Self::Deliver(mailbox)),
            Self::End(end) => {
                call_listener(None, end);
                None
            }
        }
    }
}

/// The maximum number of workers: this many callbacks can block at once before the events of other listeners have to wait.
const MOST_WORKERS: usize = 64;

/// One that delivers, and one that watches it.
pub(crate) const FEWEST_WORKERS: usize = 2;

/// How long jobs wait without progress before more workers are started.
const PATIENCE: Duration = Duration::from_millis(20);

/// How long a surplus worker waits for work before it ends.
const IDLE_FOR: Duration = Duration::from_secs(1);

pub(crate) static DISPATCHER: LazyLock<Dispatcher> = LazyLock::new(Dispatcher::default);

#[derive(Default)]
pub(crate) struct Dispatcher {
    work: Mutex<Queued>,
    arrived: Condvar,
}

#[derive(Default)]
struct Queued {
    jobs: VecDeque<Job>,
    workers: usize,
    /// How many workers wait.
    free: usize,
    done: u64,
}

impl Queued {
    /// Returns whether the worker that asks is the only free one: it starts others if those at work are blocked, and does no
    /// job itself.
    fn needs_a_watcher(&self) -> bool {
        self.free == 0 && (FEWEST_WORKERS..MOST_WORKERS).contains(&self.workers)
    }

    /// Returns whether the worker that asks may end. One that is free always stays to watch.
    fn has_surplus(&self) -> bool {
        self.jobs.is_empty() && self.free > 0 && self.workers > FEWEST_WORKERS
    }
}

impl Dispatcher {
    /// Queues a job for a worker. The caller may be the deadline thread, or have locked a mutex.
    pub(crate) fn enqueue(&self, job: Job) {
        self.work.lock().jobs.push_back(job);
        self.arrived.notify_one();
    }

    /// Makes sure that there are so many workers. If no thread can be had, the next listener tries again. Neither the start of a thread nor the log runs under the mutex.
    pub(crate) fn start(&'static self, count: usize) {
        loop {
            {
                let mut work = self.work.lock();
                if work.workers >= count.min(MOST_WORKERS) {
                    return;
                }
                work.workers += 1;
            }
            let worker = thread::Builder::new().name("distlock-listener".to_owned());
            if let Err(error) = worker.spawn(|| self.run()) {
                self.work.lock().workers -= 1;
                return log!(error, %error, "no thread for listeners");
            }
        }
    }

    fn run(&'static self) {
        while let Some(job) = self.next() {
            let again = job.carry_out();
            let mut work = self.work.lock();
            work.done += 1;
            work.jobs.extend(again);
        }
    }

    /// Returns the next job of a worker, or `None` when the worker is not needed any more.
    fn next(&'static self) -> Option<Job> {
        let mut work = self.work.lock();
        loop {
            let watches = work.needs_a_watcher() && !work.jobs.is_empty();
            if !watches && let Some(job) = work.jobs.pop_front() {
                return Some(job);
            }
            let (done, longest) = (work.done, if watches { PATIENCE } else { IDLE_FOR });
            work.free += 1;
            let waiting = self.arrived.wait_timeout_while(work, longest, |work| {
                if watches { work.free == 1 && work.done == done } else { work.jobs.is_empty() }
            });
            let waited;
            (work, waited) = waiting.unwrap_or_else(PoisonError::into_inner);
            work.free -= 1;
            if waited.timed_out() && !work.jobs.is_empty() {
                let more = 2 * work.workers;
                drop(work);
                self.start(more);
                work = self.work.lock();
            } else if waited.timed_out() && work.has_surplus() {
                work.workers -= 1;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::listener::LockListener;
    use crate::api::mailbox::Reader;
    use crate::api::publisher::Topic;
    use crate::policy::hold::Hold;
    use crate::types::LossReason;

    #[test]
    fn an_event_starts_no_worker_where_it_arises_and_no_listener_ends_under_the_mutex() {
        struct EnqueuesAtItsEnd(&'static Dispatcher);
        impl LockListener for EnqueuesAtItsEnd {
            fn on_abort(&self, _: &Hold, _: &LossReason) {}
        }
        impl Drop for EnqueuesAtItsEnd {
            fn drop(&mut self) {
                self.0.enqueue(Job::Deliver(Mailbox::new(Topic::Client, Reader::Stream(None))));
            }
        }
        let dispatcher: &'static Dispatcher = Box::leak(Box::default());
        let listener = EnqueuesAtItsEnd(dispatcher);
        dispatcher.enqueue(Job::Deliver(Mailbox::new(Topic::Client, Reader::Listener(Arc::new(listener)))));
        assert_eq!(dispatcher.work.lock().workers, 0);
        dispatcher.start(FEWEST_WORKERS);
        while dispatcher.work.lock().done < 2 {
            thread::yield_now();
        }
        assert!(dispatcher.work.lock().workers >= FEWEST_WORKERS);
    }

    #[test]
    fn the_last_idle_worker_stays_and_delivers_nothing_while_others_can_be_started() {
        let work = |workers, free| Queued { workers, free, ..Queued::default() };
        assert!(!work(3, 0).has_surplus() && work(3, 1).has_surplus() && !work(2, 1).has_surplus());
        assert!(work(2, 0).needs_a_watcher() && !work(2, 1).needs_a_watcher());
        assert!(!work(1, 0).needs_a_watcher() && !work(MOST_WORKERS, 0).needs_a_watcher());
    }
}
