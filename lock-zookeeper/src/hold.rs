//! The state of a hold: its nodes, and whether they still exist.
//!
//! The client watches a hold's nodes, so that its holder learns at once of a deletion: without one of them, some other program no
//! longer knows of the hold. It sets the watches 20 ms after their
//! creation, whether they wait or hold, so that a short wait or a short hold costs no request for it. If another program deletes a younger node, there may be two holders until then; if it deletes an older one,
//! until the watch reports it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{AcquireRequest, AttemptId, BackendContext, LossReason, Moment};
use tokio::sync::{Notify, mpsc};

use crate::backend::ZooKeeperBackend;
use crate::failure::Outcome;
use crate::node_claim::{NodeClaim, NodeClaims};
use crate::record::is_broken;
use crate::session::{Told, Watching};

/// The age from which a node is no longer new, and is watched.
pub(crate) const SHORT_HOLD: Duration = Duration::from_millis(20);

/// A hold whose nodes are new, and not watched yet.
pub(crate) struct NewHold {
    watch: Weak<Watch>,
    claim: Weak<NodeClaim>,
    watch_at: Moment,
}

impl NewHold {
    /// None if the hold is released, or about to be.
    fn standing(&self) -> Option<Arc<Watch>> {
        self.watch.upgrade().filter(|watch| !watch.is_over())
    }
}

/// Begins to watch the nodes of holds when they are no longer new. It passes over holds that are released by then: a short one
/// costs neither a task nor an alarm.
pub(crate) async fn watch_in_time(context: BackendContext, mut holds: mpsc::UnboundedReceiver<NewHold>) {
    while let Some(hold) = holds.recv().await {
        if hold.standing().is_none() {
            continue;
        }
        context.clock().sleep_until(hold.watch_at).await;
        if let Some(watch) = hold.standing() {
            context.spawn(watch.over(hold.claim, None));
        }
    }
}

/// The pause after a failure before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// What the client needs to renew and release a hold.
pub(crate) struct Lease {
    id: AttemptId,
    claims: Arc<NodeClaims>,
    pub(crate) claim: Arc<NodeClaim>,
    /// The fencing token, if grants have any: a writer that goes on reading keeps it.
    pub(crate) token: Option<i64>,
    watch: Arc<Watch>,
}

/// The watch over a hold's nodes.
#[derive(Debug)]
pub(crate) struct Watch {
    attempt: AcquireRequest,
    is_over: AtomicBool,
    ended: Notify,
}

impl Lease {
    pub(crate) fn new(
        id: AttemptId,
        claims: Arc<NodeClaims>,
        claim: Arc<NodeClaim>,
        token: Option<i64>,
        attempt: AcquireRequest,
    ) -> Self {
        let watch = Watch { attempt, is_over: AtomicBool::new(false), ended: Notify::new() };
        Self { id, claims, claim, token, watch: Arc::new(watch) }
    }

    /// Watches over the nodes from now on if they are watched already, and otherwise when they are no longer new.
    pub(crate) fn keep_watch(&self, backend: &ZooKeeperBackend, watching: Option<Watching>) {
        let claim = Arc::downgrade(&self.claim);
        if watching.is_some() {
            return backend.context.spawn(Arc::clone(&self.watch).over(claim, watching));
        }
        let watch = Arc::downgrade(&self.watch);
        let watch_at = backend.context.clock().now().plus(SHORT_HOLD);
        // Sending fails only after the receiver has ended with the client.
        let _ = backend.new_holds.send(NewHold { watch, claim, watch_at });
    }

    /// The owner is about to delete the nodes, so what the watch reports from now on is not a loss. The watch stays until the node is
    /// gone, so it ends without a request to remove it.
    pub(crate) fn begin_release(&self) {
        self.watch.is_over.store(true, Ordering::Release);
    }

    /// Called when nothing is left of the hold: ends the watch and forgets the claims.
    pub(crate) fn forget(&self) {
        self.watch.ended.notify_one();
        self.claims.forget(self.id);
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
            .field("claim", &self.claim)
            .finish_non_exhaustive()
    }
}

impl Watch {
    /// Watches the nodes until the hold ends, or until one of them is gone, which it reports to the holder.
    pub(crate) async fn over(self: Arc<Self>, claim: Weak<NodeClaim>, watching: Option<Watching>) {
        tokio::select! {
            biased;
            () = self.ended.notified() => {}
            () = self.until_gone(&claim, watching) => {}
        }
    }

    async fn until_gone(&self, claim: &Weak<NodeClaim>, mut watching: Option<Watching>) {
        loop {
            match watching.take() {
                None => {}
                Some(watching) => match watching.await {
                    Told::Deleted => return self.lost(LossReason::Deleted),
                    Told::SessionOver => return,
                    Told::Changed => {}
                },
            }
            let looked = {
                let Some(claim) = claim.upgrade() else { return };
                // A hold without nodes is released.
                let Some(paths) = claim.paths() else { return };
                claim.session().watch_all(&paths).await
            };
            match looked {
                Ok(Some(node)) if is_broken(&node.data) => return self.lost(LossReason::Broken),
                Ok(Some(node)) => watching = Some(node.watching),
                Ok(None) => return self.lost(LossReason::Deleted),
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return,
                Err(_) if pause(claim, PAUSE).await => {}
                Err(_) => return,
            }
        }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    fn lost(&self, reason: LossReason) {
        if !self.is_over() {
            self.attempt.lost(reason);
        }
    }
}

/// Waits without keeping the claim alive. Returns whether the claim still exists.
async fn pause(claim: &Weak<NodeClaim>, pause: Duration) -> bool {
    let Some(clock) = claim.upgrade().map(|claim| claim.session().clock().clone()) else { return false };
    clock.sleep_until(clock.now().plus(pause)).await;
    claim.strong_count() > 0
}
