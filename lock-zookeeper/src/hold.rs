//! What is known of a hold: its node, and whether that is still there.
//!
//! A hold's node is watched, so that its holder hears at once when somebody deletes it. One that has waited is watched before
//! it holds. One that came at once is watched a moment later, so that a short hold costs no more than its two requests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{AttemptId, LossReason, Signals};
use tokio::sync::Notify;
use zookeeper_client::{EventType, WatchedEvent};

use crate::record::BROKEN;
use crate::trace::{Trace, Traces};
use crate::trouble::Outcome;

/// When the node of a hold that came at once is watched.
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

/// The watch over one node, until it tells something.
pub(crate) type Watching = Pin<Box<dyn Future<Output = WatchedEvent> + Send>>;

/// What a node's watch has told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Changed,
    Deleted,
    SessionOver,
}

impl Told {
    pub(crate) fn of(event: &WatchedEvent) -> Self {
        match event.event_type {
            EventType::NodeDeleted => Self::Deleted,
            EventType::Session if event.session_state.is_terminated() => Self::SessionOver,
            _ => Self::Changed,
        }
    }
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
    pub(crate) async fn over(self: Arc<Self>, trace: Weak<Trace>, path: String, watcher: Option<Watching>) {
        tokio::select! {
            biased;
            () = self.ended.notified() => {}
            () = self.until_gone(&trace, &path, watcher) => {}
        }
    }

    async fn until_gone(&self, trace: &Weak<Trace>, path: &str, watcher: Option<Watching>) {
        let mut watcher = watcher;
        if watcher.is_none() && !self.pause(trace, SHORT_HOLD).await {
            return;
        }
        loop {
            if let Some(watcher) = watcher.take() {
                match Told::of(&watcher.await) {
                    Told::Deleted => return self.lost(LossReason::Deleted),
                    Told::SessionOver => return,
                    Told::Changed => {}
                }
            }
            let Some(trace) = trace.upgrade() else { return };
            match trace.session().watch(path).await {
                Ok(Some(node)) if node.data == BROKEN => return self.lost(LossReason::Broken),
                Ok(Some(node)) => watcher = Some(Box::pin(node.watcher.changed())),
                Ok(None) => return self.lost(LossReason::Deleted),
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) => {
                    let trace = Arc::downgrade(&trace);
                    if !self.pause(&trace, PAUSE).await {
                        return;
                    }
                }
            }
        }
    }

    async fn pause(&self, trace: &Weak<Trace>, pause: Duration) -> bool {
        let Some(clock) = trace.upgrade().map(|trace| trace.session().clock().clone()) else { return false };
        clock.sleep_until(clock.now().plus(pause)).await;
        true
    }

    fn lost(&self, reason: LossReason) {
        if !self.is_over.load(Ordering::Acquire) {
            self.signals.lost(reason);
        }
    }
}
