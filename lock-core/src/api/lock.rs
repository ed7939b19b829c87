//! The contract: what a distributed lock is to its users.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::guard::LockGuard;
use crate::api::hold::Hold;
use crate::api::listener::LockListener;
use crate::runtime::clock::Clock;
use crate::spi::Wait;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::name::LockName;
use crate::types::owner::Owner;

/// A lock that excludes everyone who uses the same name at the same server.
///
/// Few methods are required and the rest follows from them; nothing is generic, so `Arc<dyn DistributedLock>` works and a
/// test swaps in another backend. [`DistributedLockExt`] adds guards.
///
/// # The Java face
/// `lock`, `try_lock`, `try_lock_for` and `unlock` follow `java.util.concurrent.locks.Lock`: reentrant for the same
/// [`Owner`], who is the current task. They are for code that cannot carry a guard. Where it can, prefer
/// [`DistributedLockExt::acquire`].
#[async_trait]
pub trait DistributedLock: fmt::Debug + Send + Sync {
    /// The name of the lock.
    fn name(&self) -> &LockName;

    /// The clock that its waits are measured with.
    fn clock(&self) -> &Clock;

    /// Acquires the lock for `owner`, or enters it once more if `owner` holds it: the one way in.
    ///
    /// `None` when it was not to be had in time. One deadline covers the local queue and the remote wait; a server that does
    /// not answer gets a second for its first answer, however short the wait is.
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the wait ended and the server had not said that someone else holds the lock;
    /// [`ErrorKind::Lost`] once for an owner whose hold has been lost and who has not been told yet, and with [`Wait::Try`]
    /// when what was granted is lost before the caller sees it (a longer wait goes on then); whatever the server answers.
    ///
    /// # Cancel safety
    /// Dropped before it is ready it leaves nothing held or queued, here or at the server; what is on its way is undone in
    /// the background.
    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError>;

    /// Ends one entry of `owner`, and releases the lock if that was the last: the one way out.
    ///
    /// # Errors
    /// [`ErrorKind::NotOwner`] when `owner` has no entry (nothing is changed); [`ErrorKind::Lost`] when the hold had been
    /// lost and `owner` has not been told yet; [`ErrorKind::Unconfirmed`] when the server has not answered by the hold's deadline.
    ///
    /// # Cancel safety
    /// Unpolled it changes nothing; the first poll ends the entry, and the rest goes on in the background.
    async fn release_as(&self, owner: Owner) -> Result<(), LockError>;

    /// The hold that `owner` has, if it has one.
    fn hold_of(&self, owner: Owner) -> Option<Hold>;

    /// The number of entries that `owner` has.
    fn hold_count_of(&self, owner: Owner) -> u64;

    /// Whether anyone holds the lock through this client.
    fn is_locked(&self) -> bool;

    /// Sets who is told of losses and other events of this name, for the whole client; `None` for nobody.
    fn set_listener(&self, listener: Option<Arc<dyn LockListener>>);

    /// Who is told.
    fn listener(&self) -> Option<Arc<dyn LockListener>>;

    /// Acquires the lock for the current owner, waiting for as long as it takes.
    ///
    /// **The branches of `join!`, `select!` and `for_each_concurrent` are one task and so one owner: they do not exclude
    /// each other.** Use [`DistributedLockExt::acquire`], or give each branch an [`Owner::scope`].
    ///
    /// **A task that is cancelled between `lock` and `unlock` leaves its hold behind, renewed for ever** unless the client
    /// bounds it with `max_hold`. A guard does not have this problem, nor does a scope.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_as`], and [`ErrorKind::NoOwner`] outside a runtime.
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    async fn lock(&self) -> Result<(), LockError> {
        enter(self, Wait::Forever).await.map(drop)
    }

    /// As [`DistributedLock::lock`], without waiting: `false` when someone else holds the lock, or stands before the caller in
    /// this client. It takes at most the time that the backend gives a server to answer.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    async fn try_lock(&self) -> Result<bool, LockError> {
        enter(self, Wait::Try).await
    }

    /// As [`DistributedLock::lock`], waiting for at most `duration`: `false` when someone else holds the lock all that
    /// time. Zero tries once, [`Duration::MAX`] waits for ever.
    ///
    /// **A server that does not answer gets a second for its first answer, however short `duration` is**: only the server
    /// knows whether someone else holds the lock. Put a timeout around the call where it must end earlier.
    ///
    /// # Errors
    /// As [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    async fn try_lock_for(&self, duration: Duration) -> Result<bool, LockError> {
        enter(self, Wait::within(duration, self.clock().now())).await
    }

    /// Ends one entry of the current owner, and releases the lock if that was the last.
    ///
    /// # Errors
    /// As [`DistributedLock::release_as`], and [`ErrorKind::NoOwner`] outside a runtime.
    ///
    /// # Cancel safety
    /// As [`DistributedLock::release_as`].
    async fn unlock(&self) -> Result<(), LockError> {
        self.release_as(Owner::current()?).await
    }

    /// The hold that the current owner has, if it has one.
    fn hold(&self) -> Option<Hold> {
        Owner::current().ok().and_then(|owner| self.hold_of(owner))
    }

    /// Whether the current owner holds the lock, by the clock.
    fn is_held(&self) -> bool {
        self.hold().is_some_and(|hold| hold.is_valid())
    }

    /// How often the current owner has entered and not left.
    fn hold_count(&self) -> u64 {
        Owner::current().map_or(0, |owner| self.hold_count_of(owner))
    }
}

async fn enter<L: DistributedLock + ?Sized>(lock: &L, wait: Wait) -> Result<bool, LockError> {
    let guard = lock.acquire_as(Owner::current()?, wait).await?;
    Ok(guard.map(LockGuard::leave_to_owner).is_some())
}

/// Guards, for every [`DistributedLock`].
pub trait DistributedLockExt: DistributedLock {
    /// Acquires the lock, waiting for as long as it takes. The guard is an owner of its own.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    fn acquire(&self) -> impl Future<Output = Result<LockGuard, LockError>> + Send {
        async {
            let guard = self.acquire_as(Owner::new(), Wait::Forever).await?;
            guard.ok_or_else(|| {
                LockError::new(ErrorKind::Internal, Operation::Acquire)
                    .on(self.name())
                    .because("a wait without a deadline ended without the lock")
            })
        }
    }

    /// Acquires the lock without waiting: `None` when someone else holds it.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    fn try_acquire(&self) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send {
        self.acquire_as(Owner::new(), Wait::Try)
    }

    /// Acquires the lock, waiting for at most `duration`. Zero tries once, [`Duration::MAX`] waits for ever.
    ///
    /// **A server that does not answer gets a second for its first answer, however short `duration` is**, as with
    /// [`DistributedLock::try_lock_for`].
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// As [`DistributedLock::acquire_as`].
    fn try_acquire_for(
        &self,
        duration: Duration,
    ) -> impl Future<Output = Result<Option<LockGuard>, LockError>> + Send {
        self.acquire_as(Owner::new(), Wait::within(duration, self.clock().now()))
    }

    /// Runs `body` under the lock and releases it. Code in `body` that calls `lock` on the same lock reenters.
    ///
    /// # Errors
    /// As [`DistributedLock::acquire_as`], before the body runs. After it has run, when what it did may not have been
    /// exclusive, so that its result is not handed out: [`ErrorKind::Lost`] when the lock was lost meanwhile, and
    /// [`ErrorKind::NotOwner`] when the body has unlocked more often than it has locked, and so released the lock before its
    /// end. A body that wants to stop early waits for [`Hold::lost`]. A release that is not answered does not take the
    /// result away: the lock was held until then.
    ///
    /// # Cancel safety
    /// Dropping it drops the body and releases the lock in the background.
    fn with_lock<T: Send, F: Future<Output = T> + Send>(
        &self,
        body: impl FnOnce(Hold) -> F + Send,
    ) -> impl Future<Output = Result<T, LockError>> + Send {
        async {
            let guard = self.acquire().await?;
            let result = guard.owner().scope(body(guard.hold().clone())).await;
            match guard.release().await {
                Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotOwner) => Err(error),
                Err(error) => {
                    tracing::warn!(target: "distlock", %error, "the release after a body is repeated in the background");
                    Ok(result)
                }
                Ok(()) => Ok(result),
            }
        }
    }
}

impl<L: DistributedLock + ?Sized> DistributedLockExt for L {}
