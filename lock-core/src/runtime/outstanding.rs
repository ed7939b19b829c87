//! Counts what is outstanding, such as unconfirmed work, and waits until there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    count: AtomicUsize,
    /// How many pieces of work were dropped before they were done.
    abandoned: AtomicUsize,
    finished: Notify,
    /// Whether a caller has ever waited until there is none.
    is_awaited: AtomicBool,
}

impl Outstanding {
    /// Counts one piece of work until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Pending {
        self.add();
        Pending { work: Arc::clone(self), is_to_be_done: false }
    }

    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn subtract(&self) {
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_awaited.load(Ordering::SeqCst) {
            self.finished.notify_waiters();
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns how many pieces of work were dropped before they were done.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Waits until all is done; for ever, if some of it was abandoned.
    pub(crate) async fn all_done(&self) {
        self.none_left().await;
        if self.abandoned() > 0 {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until there is none left.
    pub(crate) async fn none_left(&self) {
        loop {
            let finished = self.finished.notified();
            // Either this sees the end of the last one, or that sees this.
            self.is_awaited.store(true, Ordering::SeqCst);
            if self.count() == 0 {
                return;
            }
            finished.await;
        }
    }
}

/// One piece of work that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Pending {
    work: Arc<Outstanding>,
    /// Whether it counts as abandoned if it is dropped.
    is_to_be_done: bool,
}

impl Pending {
    /// From now on the work counts as abandoned if it is dropped before it is [done](Self::done).
    pub(crate) fn until_done(mut self) -> Self {
        self.is_to_be_done = true;
        self
    }

    /// The work is done, or was given up with a line in the log.
    pub(crate) fn done(mut self) {
        self.is_to_be_done = false;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_to_be_done {
            // While the work is still counted: a caller that waits for its end sees that it was abandoned.
            self.work.abandoned.fetch_add(1, Ordering::SeqCst);
        }
        self.work.subtract();
    }
}
