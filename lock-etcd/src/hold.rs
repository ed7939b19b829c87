//! The state of a hold: its key, and whether it still exists.
//!
//! The client watches the key of a hold, so that its holder learns at once that another program has deleted it, or that an operator
//! has broken it. The watch begins 20 ms after the grant, from the revision of the grant on, so that a short hold costs none.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::{AcquireRequest, AttemptId, BackendContext, LossReason, Mode, Moment};
use tokio::sync::{Notify, mpsc};

use crate::attempt::entry_of;
use crate::backend::EtcdBackend;
use crate::claim::{Claim, Claims};
use crate::failure::{Failure, Outcome};
use crate::messages::Range;

/// The age from which a hold is watched.
const SHORT_HOLD: Duration = Duration::from_millis(20);

/// The pause after a failure before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// What the client needs to renew and release a hold.
pub(crate) struct Lease {
    id: AttemptId,
    claims: Arc<Claims>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) mode: Mode,
    watch: Arc<Watch>,
}

/// The watch over a hold's key.
pub(crate) struct Watch {
    attempt: AcquireRequest,
    /// From this revision on nothing has been heard of the key.
    from: i64,
    is_over: AtomicBool,
    ended: Notify,
}

/// A hold that is new, and not watched yet.
pub(crate) struct NewHold {
    watch: Weak<Watch>,
    claim: Arc<Claim>,
    watch_at: Moment,
}

/// Begins to watch holds when they are no longer new. It passes over those that are released by then: a short one costs neither a task
/// nor an alarm.
pub(crate) async fn watch_in_time(context: BackendContext, mut holds: mpsc::UnboundedReceiver<NewHold>) {
    while let Some(NewHold { watch, claim, watch_at }) = holds.recv().await {
        let is_standing = || watch.upgrade().filter(|watch| !watch.is_over.load(Ordering::Acquire));
        if is_standing().is_none() {
            continue;
        }
        context.clock().sleep_until(watch_at).await;
        if let Some(watch) = is_standing() {
            context.spawn(watch.over(claim));
        }
    }
}

impl Lease {
    /// The hold of an attempt whose key exists, and has not changed since this revision.
    pub(crate) fn new(
        backend: &EtcdBackend,
        request: &AcquireRequest,
        claim: Arc<Claim>,
        since: i64,
    ) -> Self {
        let watch = Arc::new(Watch {
            attempt: request.clone(),
            from: since + 1,
            is_over: AtomicBool::new(false),
            ended: Notify::new(),
        });
        let watch_at = backend.link.context.clock().now().plus(SHORT_HOLD);
        let new = NewHold { watch: Arc::downgrade(&watch), claim: Arc::clone(&claim), watch_at };
        // Sending fails only after the receiver has ended with the client.
        let _ = backend.new_holds.send(new);
        Self { id: request.id(), claims: Arc::clone(&backend.claims), claim, mode: request.mode(), watch }
    }

    /// The owner is about to delete the key, so what the watch reports from now on is not a loss.
    pub(crate) fn begin_release(&self) {
        self.watch.is_over.store(true, Ordering::Release);
        self.watch.ended.notify_one();
    }

    /// Called when nothing is left of the hold.
    pub(crate) fn forget(&self) {
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
    /// Watches the key until the hold ends, or until the key is gone or marked, which it reports to the holder.
    async fn over(self: Arc<Self>, claim: Arc<Claim>) {
        let lost = tokio::select! {
            biased;
            () = self.ended.notified() => return,
            lost = until_lost(&claim, self.from) => lost,
        };
        if let Some(reason) = lost.filter(|_| !self.is_over.load(Ordering::Acquire)) {
            self.attempt.lost(reason);
        }
    }
}

/// Waits until the key is gone or marked. None if its lease is over, which the core learns otherwise.
async fn until_lost(claim: &Claim, mut from: i64) -> Option<LossReason> {
    let clock = claim.link.context.clock();
    loop {
        let (connection, session) = claim.link.in_contact().await.ok()?;
        if session.lease != claim.session.lease {
            return None;
        }
        let mut watching = connection.watch(&claim.key, "", from);
        drop((connection, session));
        while let Some(events) = watching.next().await {
            for event in events {
                match event.entry {
                    Some(entry) if event.kind == 0 && !entry_of(entry.clone()).told.is_broken() => {}
                    Some(_) if event.kind == 0 => return Some(LossReason::Broken),
                    _ => return Some(LossReason::Deleted),
                }
            }
        }
        // Something may have been missed.
        match claim.link.ask(Range { key: claim.key.clone(), ..Range::default() }).await {
            Ok(mut answer) => {
                from = answer.header.map_or(0, |header| header.revision) + 1;
                // With another place it was deleted, and created again by a late request.
                let found = answer.found.pop().filter(|found| claim.place() == Some(found.created));
                let Some(found) = found else { return Some(LossReason::Deleted) };
                if entry_of(found).told.is_broken() {
                    return Some(LossReason::Broken);
                }
            }
            Err(Failure::Refused(_)) => return None,
            Err(failure) if failure.outcome() == Outcome::EndsWithLease => return None,
            Err(_) => clock.sleep_until(clock.now().plus(PAUSE)).await,
        }
    }
}
