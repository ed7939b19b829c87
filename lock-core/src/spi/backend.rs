//! The trait that a backend implements.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{
    AcquireRequest, Downgraded, Grant, GroupId, InspectRequest, LeaseState, Memo, Recall, Released,
    Remembered, Updated,
};
use crate::types::{Broken, Capabilities, ErrorKind, HolderId, HolderInfo, LockError, LockStatus, Operation};

#[cfg(doc)]
use super::Wait;

/// One backend: a protocol to a server. The [module documentation](crate::spi) has the rules, and a
/// [complete backend](crate::spi#a-complete-backend). Write its methods as `async fn`; their futures have to be `Send`.
#[expect(unused_variables, reason = "a backend need not have all abilities")]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the backend keeps of a grant, to renew and release it.
    type Lease: fmt::Debug + Send + Sync + 'static;

    /// Returns what this backend can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes one attempt: returns `Some` when the server grants the lock, `None` when the lock is not available now.
    ///
    /// With [`Wait::Try`], `None` is the final answer, and so is an error: the core does not repeat a try. With the other waits, it
    /// calls again after a retryable error, with the same request, and itself ends the wait when the time is up. So `None` before that
    /// means that this attempt has failed (its place in the queue is gone): the core cancels it and makes a new attempt, with a
    /// new id, and with the place that the backend [kept](AcquireRequest::keep_place).
    ///
    /// # Cancel safety
    /// The future may be dropped at every await; the core then calls [`Backend::cancel`] with the same request.
    fn acquire(
        &self,
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Option<Grant<Self::Lease>>, LockError>> + Send;

    /// Undoes the attempt, whatever its outcome was. The core repeats the call until it returns `Ok`.
    ///
    /// # Cancel safety
    /// The future is dropped only when the engine ends: what it has not undone by then is left to the server.
    fn cancel(&self, request: &AcquireRequest) -> impl Future<Output = Result<(), LockError>> + Send;

    /// Renews leases of one group, and returns one result for each, in the same order. The core never makes two calls
    /// at once for the same group.
    ///
    /// The core reads the clock before the call; that moment is the anchor of each lease that the backend reports as
    /// [`LeaseState::Held`].
    ///
    /// # Cancel safety
    /// The future is dropped when it takes longer than the interval between renewals, and the call is repeated: a
    /// renewal that reaches the server after the future was dropped must do no harm.
    fn renew(
        &self,
        group: GroupId,
        leases: &[Arc<Self::Lease>],
    ) -> impl Future<Output = Result<Vec<LeaseState>, LockError>> + Send;

    /// Releases a lease if the server still has it for this owner. The core calls it again after an error. It gives up
    /// when the lease is over, but only if [the server ends leftovers by itself](Capabilities::leftovers_last). If it
    /// does not, the backend returns [`Released::WasLost`] for a lease of a session that has ended.
    ///
    /// # Cancel safety
    /// The future is dropped only when the engine ends: a lease that was not released by then ends by itself.
    fn release(&self, lease: &Self::Lease) -> impl Future<Output = Result<Released, LockError>> + Send;

    /// Makes an exclusive lease a shared one, in one step at the server: no other exclusive holder comes between, and
    /// shared ones that wait behind it enter with it. The new holder has the id and the holder's information of
    /// `request`, to which it reports, and a fencing token that is not below the old one, and below those
    /// of all exclusive holders that follow.
    ///
    /// The request is idempotent by its id: the core repeats it after a retryable error, until the lease is over. Where
    /// the core gives up it calls [`Backend::cancel`] with the request and [`Backend::release`] with the old lease,
    /// which is released whatever has become of it. The old lease is not renewed meanwhile.
    ///
    /// Only backends that declare [shared](Capabilities::shared) locks are asked.
    ///
    /// # Cancel safety
    /// The future is dropped when the lease is over, and when the engine ends.
    fn downgrade(
        &self,
        lease: &Self::Lease,
        request: &AcquireRequest,
    ) -> impl Future<Output = Result<Downgraded<Self::Lease>, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Downgrade)) }
    }

    /// Returns who holds the lock, or the semaphore, and who waits for it, each with its mode. A backend that implements it
    /// says so in its [capabilities](Capabilities::inspection).
    ///
    /// # Cancel safety
    /// The future may be dropped at every await, when the user drops the call; it changes nothing.
    fn inspect(
        &self,
        request: &InspectRequest,
    ) -> impl Future<Output = Result<LockStatus, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Inspect)) }
    }

    /// Returns requests to inspect the locks and semaphores that the server knows: all that are held or waited for, and perhaps some
    /// that were, each [by the name](InspectRequest::found) that it has there. A backend that implements it says so in its
    /// [capabilities](Capabilities::listing), and one that does not may say why. Where the name at the server is not the one that the
    /// user wrote, `inspect` gives that one in the status, if the server has it.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await, when the user drops the call; it changes nothing.
    fn list(&self) -> impl Future<Output = Result<Vec<InspectRequest>, LockError>> + Send {
        let refused = LockError::new(ErrorKind::Unsupported, Operation::Inspect);
        let refused = refused.because("the backend cannot name the locks of its server");
        async { Err(refused.remedy("ask for each lock by its name")) }
    }

    /// Takes the lock away from `holder`, if `holder` still holds it. A backend that implements it says so in its
    /// [capabilities](Capabilities::breaking).
    ///
    /// # Cancel safety
    /// The future may be dropped at every await, when the user drops the call; the lock may or may not have been taken
    /// away.
    fn break_holder(
        &self,
        request: &InspectRequest,
        holder: &HolderId,
    ) -> impl Future<Output = Result<Broken, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Break)) }
    }

    /// Replaces what the server shows of the holder, if the server still has the lease for this client. The core calls
    /// it for a leader whose value changes, and never makes two calls at once for the same lease.
    ///
    /// A request that reaches the server after the lease has ended must change nothing. A backend that implements it
    /// says so in its [capabilities](Capabilities::describing).
    ///
    /// # Cancel safety
    /// The future may be dropped at every await; the server may or may not show the new information.
    fn update_holder(
        &self,
        lease: &Self::Lease,
        holder: &HolderInfo,
    ) -> impl Future<Output = Result<Updated, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Describe)) }
    }

    /// Remembers the slot of a lock for `keep`, by the server's clock, unless the server remembers it already. Atomic
    /// among all clients; holders and waiters of the lock have nothing to do with it.
    ///
    /// The server forgets it by itself, or in a later call for whatever slot; never before `keep` is over, and at most a
    /// little later. It outlives the client. An unknown outcome is an error: the core does not repeat the call. A backend
    /// that implements it says so in its [capabilities](Capabilities::remembering).
    ///
    /// # Cancel safety
    /// The future may be dropped at every await; the server may or may not remember the slot.
    fn remember(
        &self,
        memo: &Memo,
        keep: Duration,
    ) -> impl Future<Output = Result<Remembered, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Remember).on(memo.name())) }
    }

    /// Returns for how much longer the server remembers the slot of a lock, never zero; `None` if it does not. Then it does with the slot
    /// what `recall` says. A backend that [remembers](Capabilities::remembering) implements it.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await; a slot that is to be forgotten may or may not be.
    fn recall(
        &self,
        memo: &Memo,
        recall: Recall,
    ) -> impl Future<Output = Result<Option<Duration>, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Remember).on(memo.name())) }
    }

    /// Asks the server for a sign of life, in one small round trip through a connection that requests for locks could
    /// use, and as bounded as they are. It returns an error when such a request could not be served now.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await, when the user drops the call; it changes nothing.
    fn ping(&self) -> impl Future<Output = Result<(), LockError>> + Send;

    /// Closes connections and ends background work. When the core calls this, there are no waiters any more, and the
    /// release of every hold has been answered or at least sent.
    ///
    /// # Cancel safety
    /// The future is dropped when it takes longer than a second; the engine ends what is left of it.
    fn close(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}
