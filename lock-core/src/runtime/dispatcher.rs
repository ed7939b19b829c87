//! Calls listeners, on threads of its own.
//!
//! Each listener has a mailbox: its events wait there and are delivered one at a time, in order. Mailboxes with events wait for
//! a worker. One worker is enough as long as callbacks return; another watches it. When mailboxes wait and no callback
//! returns for a moment, the one that watches starts more, up to a limit, and these end again when there is nothing to do. So a
//! callback that blocks delays only its own listener.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, LazyLock, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::sync::{Mutex, MutexGuard};

/// Events that are delivered in order.
pub(crate) trait Mailbox: Send + Sync {
    fn deliver_one(&self);

    /// Returns whether there is more to deliver; if not, the next event queues the mailbox again.
    fn has_more(&self) -> bool;
}

/// Queues the mailbox for a worker, which delivers its events. The caller may be the deadline thread.
pub(crate) fn enqueue(mailbox: Arc<dyn Mailbox>) {
    if DISPATCHER.enqueue(mailbox) < FEWEST_WORKERS {
        // `prepare` has written to the log that no thread could be had. Perhaps one can be had now.
        let _ = DISPATCHER.with_workers(FEWEST_WORKERS);
    }
}

/// Makes sure that there are workers for the first event.
pub(crate) fn prepare() {
    logged(DISPATCHER.with_workers(FEWEST_WORKERS));
}

/// The maximum number of workers: this many callbacks can block at once before the events of other listeners have to wait.
const MOST_WORKERS: usize = 64;

/// One that delivers, and one that watches it.
const FEWEST_WORKERS: usize = 2;

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
    delivered: u64,
}

impl Work {
    /// Returns whether the worker that asks is the only idle one: it starts others if those that deliver are blocked, and
    /// delivers nothing itself.
    fn needs_a_watcher(&self) -> bool {
        self.idle == 0 && self.workers > 1 && self.workers < MOST_WORKERS
    }

    /// Returns whether the idle worker that asks may end. One always stays to watch.
    fn has_surplus(&self) -> bool {
        self.mailboxes.is_empty() && self.idle > 0 && self.workers > FEWEST_WORKERS
    }
}

/// What a worker does next.
enum Next {
    Deliver(Arc<dyn Mailbox>),
    /// Makes sure that there are so many workers.
    Start(usize),
    End,
}

fn logged(started: io::Result<()>) {
    if let Err(error) = started {
        tracing::error!(target: "distlock", %error, "no thread for listeners");
    }
}

impl Dispatcher {
    /// Returns how many workers there are.
    fn enqueue(&self, mailbox: Arc<dyn Mailbox>) -> usize {
        let mut work = self.work.lock();
        work.mailboxes.push_back(mailbox);
        if work.idle > 0 {
            self.arrived.notify_one();
        }
        work.workers
    }

    /// Makes sure that there are so many workers. Neither the start of a thread nor the log runs under the mutex.
    fn with_workers(self: &Arc<Self>, count: usize) -> io::Result<()> {
        loop {
            {
                let mut work = self.work.lock();
                if work.workers >= count.min(MOST_WORKERS) {
                    return Ok(());
                }
                work.workers += 1;
            }
            let dispatcher = Arc::clone(self);
            let started =
                thread::Builder::new().name("distlock-listener".to_owned()).spawn(move || dispatcher.run());
            if let Err(error) = started {
                self.work.lock().workers -= 1;
                return Err(error);
            }
        }
    }

    fn run(self: &Arc<Self>) {
        loop {
            let mailbox = match self.next() {
                Next::Deliver(mailbox) => mailbox,
                Next::Start(count) => {
                    logged(self.with_workers(count));
                    continue;
                }
                Next::End => return,
            };
            mailbox.deliver_one();
            let again = mailbox.has_more();
            let mut work = self.work.lock();
            work.delivered += 1;
            if again {
                work.mailboxes.push_back(mailbox);
            }
        }
    }

    fn next(&self) -> Next {
        let mut work = self.work.lock();
        let mut watched: Option<(u64, Instant)> = None;
        loop {
            if !work.needs_a_watcher()
                && let Some(mailbox) = work.mailboxes.pop_front()
            {
                return Next::Deliver(mailbox);
            }
            if work.mailboxes.is_empty() {
                watched = None;
                let waited;
                (work, waited) = self.wait(work, IDLE_FOR);
                if waited == Waited::ToTheEnd && work.has_surplus() {
                    work.workers -= 1;
                    return Next::End;
                }
                continue;
            }
            match watched {
                Some((delivered, since)) if delivered == work.delivered => {
                    if since.elapsed() >= PATIENCE {
                        return Next::Start(2 * work.workers);
                    }
                }
                _ => watched = Some((work.delivered, Instant::now())),
            }
            (work, _) = self.wait(work, PATIENCE);
        }
    }

    fn wait<'a>(&self, mut work: MutexGuard<'a, Work>, longest: Duration) -> (MutexGuard<'a, Work>, Waited) {
        work.idle += 1;
        let (mut work, waited) =
            self.arrived.wait_timeout(work, longest).unwrap_or_else(PoisonError::into_inner);
        work.idle -= 1;
        (work, if waited.timed_out() { Waited::ToTheEnd } else { Waited::UntilWoken })
    }
}

#[derive(PartialEq, Eq)]
enum Waited {
    ToTheEnd,
    UntilWoken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_idle_worker_stays_and_delivers_nothing_while_others_can_be_started() {
        let work = |workers, idle| Work { workers, idle, ..Work::default() };
        assert!(!work(3, 0).has_surplus() && work(3, 1).has_surplus() && !work(2, 1).has_surplus());
        assert!(work(2, 0).needs_a_watcher() && !work(2, 1).needs_a_watcher());
        assert!(!work(1, 0).needs_a_watcher() && !work(MOST_WORKERS, 0).needs_a_watcher());
    }
}
