//! Counts unconfirmed work, and waits until there is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct PendingWork {
    count: AtomicUsize,
    /// How many pieces of work were dropped before they were done.
    abandoned: AtomicUsize,
    finished: Notify,
    /// Whether a caller has ever waited until there is no work.
    is_awaited: AtomicBool,
}

impl PendingWork {
    /// Counts one piece of work until the returned value is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Pending {
        self.count.fetch_add(1, Ordering::AcqRel);
        Pending(Arc::clone(self))
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Returns how many pieces of work were dropped before they were done.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Waits until there is no work left.
    pub(crate) async fn finished(&self) {
        loop {
            let finished = self.finished.notified();
            // Either this sees the end of the last piece of work, or that sees this.
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
pub(crate) struct Pending(Arc<PendingWork>);

impl Pending {
    /// From now on the work counts as abandoned if it is dropped before it is done.
    pub(crate) fn until_done(self) -> Unfinished {
        Unfinished(Some(self))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_awaited.load(Ordering::SeqCst) {
            self.0.finished.notify_waiters();
        }
    }
}

/// A piece of work that counts as abandoned when this is dropped, unless it is done.
#[derive(Debug)]
pub(crate) struct Unfinished(Option<Pending>);

impl Unfinished {
    /// The work is done, or was given up with a line in the log.
    pub(crate) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // While the work is still counted: a caller that waits for its end sees that it was abandoned.
        if let Some(Pending(work)) = &self.0 {
            work.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }
}
