//! The Rust face of a hold: a guard that releases when it goes.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::api::hold::Hold;
use crate::api::scope;
use crate::policy::entry::Entry;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::{HoldEnd, LossReason};
use crate::types::owner::Owner;
use crate::types::token::FencingToken;

/// One entry of an owner into a lock, ended by [`LockGuard::release`] or by dropping it.
///
/// A guard from [`acquire`](crate::DistributedLockExt::acquire) is an owner of its own, so two guards exclude each other
/// even inside one task. Where reentry is wanted, [`LockGuard::reenter`] makes a second guard of the same hold.
///
/// Dropping a guard hands the release to the background: it never blocks, never panics and works outside a runtime. It is
/// best effort, because nobody is told when it fails; [`LockGuard::release`] tells.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    lock: Arc<Entry>,
    owner: Owner,
    hold: Hold,
    /// Whether the entry is still this guard's to end.
    ends: Ends,
}

#[derive(PartialEq)]
enum Ends {
    Here,
    Elsewhere,
}

impl LockGuard {
    pub(crate) fn new(entry: Arc<Entry>, owner: Owner, hold: Hold) -> Self {
        Self { lock: entry, owner, hold, ends: Ends::Here }
    }

    /// The hold that the guard keeps.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The owner that the guard acts for. [`Owner::scope`] lets code that calls `lock` act for it too.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The fencing token; the same as [`Hold::token`].
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// Waits until the hold is lost; `None` when it has been released instead. The same as [`Hold::lost`].
    ///
    /// # Cancel safety
    /// May be dropped and called again at any time.
    pub fn lost(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        self.hold.lost()
    }

    /// Makes a second guard of the same hold, without I/O. The lock is released when the last one is.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the hold has been lost.
    pub fn reenter(&self) -> Result<Self, LockError> {
        match self.lock.local.reenter(self.owner, &self.hold.0) {
            Ok(()) => Ok(Self::new(Arc::clone(&self.lock), self.owner, self.hold.clone())),
            Err(reason) => Err(self.cannot_reenter(reason)),
        }
    }

    /// Releases the lock, and says whether it was held until now.
    ///
    /// Renewal stops first. The answer comes by the hold's deadline at the latest.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock had been lost before: what was done under it may not have
    /// been exclusive. [`ErrorKind::NotOwner`] when an `unlock` of code that acts for the same owner has ended this guard's
    /// entry: the lock was free from then on. [`ErrorKind::Unconfirmed`] when the server has not answered by the deadline;
    /// the release goes on in the background.
    ///
    /// # Cancel safety
    /// Dropping the future releases as well: unpolled by dropping the guard, later by finishing in the background.
    pub async fn release(mut self) -> Result<(), LockError> {
        self.ends = Ends::Elsewhere;
        let released = self.lock.release(self.owner, Some(&self.hold.0)).await;
        match (released, self.hold.end()) {
            // The owner has been told elsewhere, and this caller has not.
            (Err(error), Some(HoldEnd::Lost(reason))) if error.kind() == ErrorKind::NotOwner => {
                Err(self.lock.lost(Operation::Release, reason))
            }
            (released, _) => released,
        }
    }

    /// Leaves the entry to the owner, who ends it with [`unlock`](crate::DistributedLock::unlock). This is how the Java
    /// face is made of the Rust one.
    pub fn leave_to_owner(mut self) -> Hold {
        self.ends = Ends::Elsewhere;
        scope::note_entry(self.owner, &self.lock, &self.hold);
        self.hold.clone()
    }

    fn cannot_reenter(&self, reason: Option<LossReason>) -> LockError {
        let known = match self.hold.end() {
            Some(HoldEnd::Lost(reason)) => Some(reason),
            _ => reason,
        };
        self.lock.lost(Operation::Acquire, known.unwrap_or(LossReason::Expired))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.ends == Ends::Here {
            self.lock.leave_in_background(self.owner, &self.hold.0);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LockGuard")
            .field("owner", &self.owner)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}
