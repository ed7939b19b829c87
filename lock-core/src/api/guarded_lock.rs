//! The lock that gave out a guard.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::hold::Hold;
use crate::policy::entry::Entry;
use crate::types::error::{LockError, Operation};
use crate::types::loss::{HoldEnd, LossReason};
use crate::types::owner::Owner;

/// What a [`LockGuard`](crate::LockGuard) asks of the lock that gave it out.
///
/// Implement it together with [`DistributedLock`](crate::DistributedLock) for a lock that makes its own guards. A
/// decorator, which passes on the guards of another lock, does not need it.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use async_trait::async_trait;
/// use lock_core::{Clock, GuardedLock, Hold, HoldControl, LockError, LockGuard, LockName, Owner};
///
/// /// One hold, with the number of its guards.
/// struct Counted(HoldControl, Mutex<u64>);
///
/// #[async_trait]
/// impl GuardedLock for Counted {
///     fn reenter(&self, _: Owner, _: &Hold) -> Result<(), LockError> {
///         *self.1.lock().unwrap() += 1;
///         Ok(())
///     }
///
///     async fn release(self: Arc<Self>, owner: Owner, hold: &Hold) -> Result<(), LockError> {
///         Ok(self.release_in_background(owner, hold))
///     }
///
///     fn release_in_background(self: Arc<Self>, owner: Owner, hold: &Hold) {
///         let mut guards = self.1.lock().unwrap();
///         *guards -= 1;
///         if *guards == 0 {
///             owner.left(hold); // the scope of the owner has nothing left to end
///             let _ = self.0.release();
///         }
///     }
/// }
///
/// # lock_core::example(async |_| {
/// let control = HoldControl::new(LockName::new("orders/42")?, None, Clock::system());
/// let lock = Arc::new(Counted(control.clone(), Mutex::new(1)));
/// let guard = LockGuard::new(lock, Owner::new(), control.hold());
/// let second = guard.reenter()?;
/// guard.release().await?;
/// assert!(second.hold().is_valid());
/// drop(second);
/// assert!(!control.hold().is_valid());
/// # Ok(()) });
/// ```
#[async_trait]
pub trait GuardedLock: Send + Sync {
    /// Enters once more for `owner`, which has `hold`, without I/O.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold has been lost.
    fn reenter(&self, owner: Owner, hold: &Hold) -> Result<(), LockError>;

    /// Ends one entry of `owner` into `hold`, and releases the lock if that was the last one.
    ///
    /// # Errors
    /// Same as [`LockGuard::release`](crate::LockGuard::release).
    ///
    /// # Cancel safety
    /// From the first poll on, dropping the future must not keep the entry.
    async fn release(self: Arc<Self>, owner: Owner, hold: &Hold) -> Result<(), LockError>;

    /// Ends one entry of `owner` into `hold` without waiting: the guard was dropped, or the scope of the owner has
    /// ended. It may be called outside a runtime, and must not block.
    fn release_in_background(self: Arc<Self>, owner: Owner, hold: &Hold);
}

#[derive(Clone)]
pub(crate) enum GuardOrigin {
    /// A lock of a client, which is called without a box around each future.
    Entry(Arc<Entry>),
    Other(Arc<dyn GuardedLock>),
}

impl GuardOrigin {
    /// Returns a number that no other lock has as long as this one exists.
    pub(crate) fn id(&self) -> usize {
        match self {
            Self::Entry(entry) => id_of(entry),
            Self::Other(lock) => id_of(lock),
        }
    }

    pub(crate) fn reenter(&self, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        match self {
            Self::Entry(entry) => entry.local.reenter(owner, &hold.0).map_err(|reason| {
                let known = match hold.end() {
                    Some(HoldEnd::Lost(reason)) => Some(reason),
                    _ => reason,
                };
                entry.lost(Operation::Acquire, known.unwrap_or(LossReason::Expired))
            }),
            Self::Other(lock) => lock.reenter(owner, hold),
        }
    }

    pub(crate) async fn release(&self, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        match self {
            Self::Entry(entry) => entry.release(owner, Some(&hold.0)).await,
            Self::Other(lock) => Arc::clone(lock).release(owner, hold).await,
        }
    }

    /// The error of a release after the loss of the hold.
    pub(crate) fn lost(&self, hold: &Hold, reason: LossReason) -> LockError {
        match self {
            Self::Entry(entry) => entry.lost(Operation::Release, reason),
            Self::Other(_) => LockError::lost(Operation::Release, hold.name(), reason).of(hold.mode().kind()),
        }
    }

    pub(crate) fn release_in_background(&self, owner: Owner, hold: &Hold) {
        match self {
            Self::Entry(entry) => entry.leave_in_background(owner, &hold.0),
            Self::Other(lock) => Arc::clone(lock).release_in_background(owner, hold),
        }
    }
}

/// The address of what the pointer shares.
pub(crate) fn id_of<T: ?Sized>(lock: &Arc<T>) -> usize {
    Arc::as_ptr(lock).cast::<()>().addr()
}

impl fmt::Debug for GuardOrigin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Entry(entry) => entry.fmt(formatter),
            Self::Other(_) => formatter.write_str("GuardedLock"),
        }
    }
}
