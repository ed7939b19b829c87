//! The trait that a backend implements.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{AcquireRequest, Grant, GroupId, InspectRequest, LeaseState, Released};
use crate::types::capabilities::Capabilities;
use crate::types::error::LockError;
use crate::types::status::{Broken, HolderId, LockStatus};

#[cfg(doc)]
use super::{Signals, Wait};

/// One backend: a protocol to a server. See the module's documentation for the rules.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the backend remembers of a grant, to renew and release it.
    type Lease: fmt::Debug + Send + Sync + 'static;

    /// What this backend can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes one attempt: `Some` when the lock is granted, `None` when it is not to be had now.
    ///
    /// With [`Wait::Try`] that is the answer. With the others the core ends the wait by itself when the time is up, so
    /// `None` before that means that this attempt has come to nothing (its place in the queue is gone): the core cancels
    /// it and begins anew, with a new id, and with the place that the backend [kept](Signals::keep_place).
    ///
    /// # Cancel safety
    /// May be dropped at every await; the core then calls [`Backend::cancel`] with the same request.
    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Self::Lease>>, LockError>;

    /// Undoes the attempt, whatever came of it. Called again until it answers `Ok`.
    ///
    /// # Cancel safety
    /// Dropped only when the engine ends: what it had not undone then is left to the server.
    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError>;

    /// Renews leases of one group, and answers for each in the same order. Never called twice at once for a group.
    ///
    /// The core takes the time before it calls; that is the anchor of each lease that is answered [`LeaseState::Held`].
    ///
    /// # Cancel safety
    /// Dropped when it takes longer than the interval between renewals, and called again: a renewal that arrives although
    /// nobody waits for its answer must do no harm.
    async fn renew(&self, group: GroupId, leases: &[Arc<Self::Lease>]) -> Result<Vec<LeaseState>, LockError>;

    /// Releases a lease, if the server still has it for this owner; called again after an error. The core gives up when the
    /// lease is over, and only where [what is left behind ends by itself](Capabilities::leftovers_last). Where it does not, a
    /// lease of a session that has ended is answered with [`Released::WasLost`].
    ///
    /// # Cancel safety
    /// Dropped only when the engine ends: a lease that was not released then ends by itself.
    async fn release(&self, lease: &Self::Lease) -> Result<Released, LockError>;

    /// Tells who holds the lock and who waits for it.
    ///
    /// # Cancel safety
    /// May be dropped at every await, when the user drops the call; it changes nothing.
    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError>;

    /// Takes the lock away from `holder`, if that is who holds it.
    ///
    /// # Cancel safety
    /// May be dropped at every await, when the user drops the call; it has then taken the lock away, or not.
    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError>;

    /// Ends connections and background work. Nobody waits any more, and the release of everything that was held has been
    /// answered or at least sent.
    ///
    /// # Cancel safety
    /// Dropped when it takes longer than a second; the engine ends what is left of it.
    async fn close(&self) {}
}
