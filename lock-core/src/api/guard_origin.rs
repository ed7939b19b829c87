//! The lock that gave out a guard.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::hold::Hold;
use crate::policy::entry::Entry;
use crate::types::error::{LockError, Operation};
use crate::types::loss::{HoldEnd, LossReason};
use crate::types::owner::Owner;

/// Several locks as one, which this module must not know.
#[async_trait]
pub(crate) trait Several: Send + Sync {
    fn reenter(&self, owner: Owner, hold: &Hold) -> Result<(), LockError>;

    async fn release(self: Arc<Self>, owner: Owner, hold: &Hold) -> Result<(), LockError>;

    fn release_in_background(&self, owner: Owner, hold: &Hold);
}

#[derive(Clone)]
pub(crate) enum GuardOrigin {
    /// A lock of a client, which is called without a box around each future.
    Entry(Arc<Entry>),
    Several(Arc<dyn Several>),
}

impl GuardOrigin {
    /// Returns a number that no other lock has as long as this one exists.
    pub(crate) fn id(&self) -> usize {
        match self {
            Self::Entry(entry) => id_of(entry),
            Self::Several(lock) => id_of(lock),
        }
    }

    pub(crate) fn reenter(&self, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        match self {
            Self::Entry(entry) if entry.reenter(owner, &hold.0) => Ok(()),
            Self::Entry(entry) => Err(entry.lost(
                Operation::Acquire,
                match hold.end() {
                    Some(HoldEnd::Lost(reason)) => reason,
                    _ => LossReason::Expired,
                },
            )),
            Self::Several(lock) => lock.reenter(owner, hold),
        }
    }

    pub(crate) async fn release(&self, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        match self {
            Self::Entry(entry) => entry.release(owner, hold.mode(), Some(&hold.0)).await,
            Self::Several(lock) => Arc::clone(lock).release(owner, hold).await,
        }
    }

    /// The error of a release after the loss of the hold.
    pub(crate) fn lost(&self, hold: &Hold, reason: LossReason) -> LockError {
        match self {
            Self::Entry(entry) => entry.lost(Operation::Release, reason),
            Self::Several(_) => {
                LockError::lost(Operation::Release, hold.name(), reason).of(hold.mode().kind())
            }
        }
    }

    pub(crate) fn release_in_background(&self, owner: Owner, hold: &Hold) {
        match self {
            Self::Entry(entry) => entry.leave_in_background(owner, &hold.0),
            Self::Several(lock) => lock.release_in_background(owner, hold),
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
            Self::Several(_) => formatter.write_str("several locks"),
        }
    }
}
