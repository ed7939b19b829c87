//! What is known of a hold: its node, and whether that is still there.
//!
//! A hold's node is watched, so that its holder hears at once when somebody deletes it. Not from the first moment on: a node that
//! is new is watched 20 ms later, whether it waits or is held, so that a short wait and a short hold cost no more than they must.
//! Whoever deletes a node that is younger may have two holders for that long; who deletes an older one, for the time that the
//! watch takes to tell.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{AttemptId, LossReason, Signals};
use tokio::sync::Notify;

use crate::record::is_broken;
use crate::session::{Told, Watching};
use crate::trace::{Trace, Traces};
use crate::trouble::Outcome;

/// When a node is not new any more, and is watched.
pub(crate) const SHORT_HOLD: Duration = Duration::from_millis(20);

/// How long after a failure it is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// What is needed to renew and release a hold.
pub(crate) struct Lease {
    id: AttemptId,
    traces: Arc<Traces>,
    pub(crate) trace: Arc<Trace>,
    watch: Arc<Watch>,
}

/// The watch over a hold's node.
#[derive(Debug)]
pub(crate) struct Watch {
    signals: Signals,
    is_over: AtomicBool,
    ended: Notify,
}

impl Lease {
    pub(crate) fn new(id: AttemptId, traces: Arc<Traces>, trace: Arc<Trace>, signals: Signals) -> Self {
        let watch = Watch { signals, is_over: AtomicBool::new(false), ended: Notify::new() };
        Self { id, traces, trace, watch: Arc::new(watch) }
    }

    pub(crate) fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// The node is about to be deleted by its owner: what the watch tells from now on is no loss. The watch itself stays until the
    /// node is gone, which is how it ends without a request to remove it.
    pub(crate) fn begin_release(&self) {
        self.watch.is_over.store(true, Ordering::Release);
    }

    /// Nothing is left of the hold.
    pub(crate) fn forget(&self) {
        self.watch.ended.notify_one();
        self.traces.forget(self.id);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.begin_release();
        self.forget();
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Lease")
            .field("id", &self.id)
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the node until the hold ends, or the node is gone, of which the holder is told.
    pub(crate) async fn over(self: Arc<Self>, trace: Weak<Trace>, path: String, watching: Option<Watching>) {
        tokio::select! {
            biased;
            () = self.ended.notified() => {}
            () = self.until_gone(&trace, &path, watching) => {}
        }
    }

    async fn until_gone(&self, trace: &Weak<Trace>, path: &str, mut watching: Option<Watching>) {
        if watching.is_none() && !pause(trace, SHORT_HOLD).await {
            return;
        }
        loop {
            match watching.take() {
                None => {}
                Some(watching) => match watching.await {
                    Told::Deleted => return self.lost(LossReason::Deleted),
                    Told::SessionOver => return,
                    Told::Changed => {}
                },
            }
            let looked = match trace.upgrade() {
                Some(trace) => trace.session().watch(path).await,
                None => return,
            };
            match looked {
                Ok(Some(node)) if is_broken(&node.data) => return self.lost(LossReason::Broken),
                Ok(Some(node)) => watching = Some(node.watching),
                Ok(None) => return self.lost(LossReason::Deleted),
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) if pause(trace, PAUSE).await => {}
                Err(_) => return,
            }
        }
    }

    fn lost(&self, reason: LossReason) {
        if !self.is_over.load(Ordering::Acquire) {
            self.signals.lost(reason);
        }
    }
}

/// Waits without keeping the trace; answers whether it is still there.
async fn pause(trace: &Weak<Trace>, pause: Duration) -> bool {
    let Some(clock) = trace.upgrade().map(|trace| trace.session().clock().clone()) else { return false };
    clock.sleep_until(clock.now().plus(pause)).await;
    trace.strong_count() > 0
}
