//! The state of a hold: its entry, and whether it still exists.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{AcquireRequest, BackendContext, Moment};
use tokio::sync::{Notify, mpsc};

use crate::claim::{Claim, Claims};
use crate::entries::Granted;

/// The age from which an entry is watched.
pub const SHORT_HOLD: Duration = Duration::from_millis(20);

/// What it takes to renew and release a hold.
pub struct EntryLease<C: Claim> {
    claims: Arc<Claims<C>>,
    granted: Granted<C>,
    watch: Arc<Watch>,
}

/// The watch over a hold's entry.
struct Watch {
    attempt: AcquireRequest,
    is_over: AtomicBool,
    ended: Notify,
}

/// A hold that is new, and not watched yet.
pub(crate) struct NewHold<C> {
    watch: Weak<Watch>,
    claim: Weak<C>,
    watch_at: Moment,
}

impl<C> NewHold<C> {
    /// None if the hold is released, or about to be.
    fn standing(&self) -> Option<Arc<Watch>> {
        self.watch.upgrade().filter(|watch| !watch.is_over())
    }
}

/// Begins to watch holds when they are no longer new. It passes over those that are released by then: a short one costs neither a task
/// nor an alarm.
pub(crate) async fn watch_in_time<C: Claim>(
    context: BackendContext,
    mut holds: mpsc::UnboundedReceiver<NewHold<C>>,
) {
    while let Some(hold) = holds.recv().await {
        if hold.standing().is_none() {
            continue;
        }
        context.clock().sleep_until(hold.watch_at).await;
        if let Some(watch) = hold.standing() {
            context.spawn(watch.over(hold.claim));
        }
    }
}

impl<C: Claim> EntryLease<C> {
    /// The hold of an attempt, which is watched when it is no longer new.
    pub(crate) fn new(attempt: AcquireRequest, granted: Granted<C>, claims: Arc<Claims<C>>) -> Self {
        let watch = Watch { attempt, is_over: AtomicBool::new(false), ended: Notify::new() };
        Self { claims, granted, watch: Arc::new(watch) }
    }

    pub(crate) fn new_at(&self, now: Moment) -> NewHold<C> {
        let (watch, claim) = (Arc::downgrade(&self.watch), Arc::downgrade(self.claim()));
        NewHold { watch, claim, watch_at: now.plus(SHORT_HOLD) }
    }

    /// Returns the claim of its entry.
    pub(crate) fn claim(&self) -> &Arc<C> {
        &self.granted.claim
    }

    /// Returns what it was granted, for another hold of the same entry.
    pub(crate) fn granted(&self) -> Granted<C> {
        let Granted { claim, name, token } = &self.granted;
        Granted { claim: Arc::clone(claim), name: name.clone(), token: *token }
    }

    pub(crate) fn attempt(&self) -> &AcquireRequest {
        &self.watch.attempt
    }

    /// The owner is about to remove the entry, so what the watch reports from now on is not a loss. The watch stays until the entry is
    /// gone, so it ends without a request to end it.
    pub(crate) fn begin_release(&self) {
        self.watch.is_over.store(true, Ordering::Release);
    }

    /// Nothing is left of the hold: ends the watch, and forgets the claims.
    pub(crate) fn forget(&self) {
        self.watch.ended.notify_one();
        self.claims.forget(self.watch.attempt.id());
    }
}

impl<C: Claim> Drop for EntryLease<C> {
    fn drop(&mut self) {
        self.begin_release();
        self.forget();
    }
}

impl<C: Claim> fmt::Debug for EntryLease<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("EntryLease").field("claim", self.claim()).finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the entry until the hold ends, or until the entry is gone or marked, which it reports to the holder.
    async fn over<C: Claim>(self: Arc<Self>, claim: Weak<C>) {
        let lost = tokio::select! {
            biased;
            () = self.ended.notified() => return,
            lost = C::until_lost(claim) => lost,
        };
        if let Some(reason) = lost.filter(|_| !self.is_over()) {
            self.attempt.lost(reason);
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}
