//! A guard, which releases its lock when it is dropped.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use crate::api::joint::Joints;
use crate::api::scope;
use crate::policy::client_lock::ClientLock;
use crate::policy::hold::Hold;
use crate::types::{ErrorKind, FencingToken, LockError, LossReason, Operation, Owner};

/// One entry of an owner into a lock. It ends with [`LockGuard::release`] or when the guard is dropped.
///
/// Each guard from [`acquire`](crate::DistributedLock::acquire) has an owner of its own, so two guards exclude each
/// other even inside one task. Where you want reentry, [`LockGuard::reenter`] makes a second guard of the same hold.
///
/// Dropping a guard releases the lock in the background: it never blocks, never panics, and works outside a runtime. It
/// is best effort, because the caller does not see an error; [`LockGuard::release`] returns it. After a loss, either of them
/// says that the holder has stopped: drop the guard when the work has ended.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard {
    lock: Origin,
    owner: Owner,
    hold: Hold,
    /// Whether the entry ends with this guard.
    ends_entry: bool,
}

/// The lock that gave out a guard.
#[derive(Clone)]
pub(crate) enum Origin {
    One(Arc<ClientLock>),
    Several(Arc<Joints>),
}

impl LockGuard {
    pub(crate) fn new(lock: Origin, owner: Owner, hold: Hold) -> Self {
        Self { lock, owner, hold, ends_entry: true }
    }

    /// Returns whether the guard is one of this lock.
    pub(crate) fn is_of(&self, other: &Arc<ClientLock>) -> bool {
        matches!(&self.lock, Origin::One(lock) if Arc::ptr_eq(lock, other))
    }

    /// Returns the hold that the guard keeps.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.hold().is_valid());
    /// # Ok(()) });
    /// ```
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Returns the owner that the guard acts for. With [`Owner::scope`], code that calls `lock` can act for it too.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let guard = lock.acquire().await?;
    /// let reentered = guard.owner().scope(async { lock.try_lock().await });
    /// assert!(reentered.await?);
    /// # Ok(()) });
    /// ```
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Returns the fencing token; the same as [`Hold::token`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let first = lock.acquire().await?.token();
    /// assert!(lock.acquire().await?.token() > first);
    /// # Ok(()) });
    /// ```
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// Waits until the hold is lost; returns `None` if it was released instead. The same as [`Hold::lost`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// tokio::select! {
    ///     Some(reason) = guard.lost() => println!("stopped: {reason}"),
    ///     () = async { /* the work */ } => guard.release().await?,
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again at any time.
    pub fn lost(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        self.hold.lost()
    }

    /// Makes a second guard of the same hold, without I/O. The lock is released when the last guard is.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let outer = locks.mutex("orders/42")?.acquire().await?;
    /// let inner = outer.reenter()?;
    /// outer.release().await?;
    /// assert!(inner.hold().is_valid()); // still held
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the hold has been lost; [`ErrorKind::NotOwner`] when code that acts for the same owner has already
    /// ended this guard's entry with `unlock`.
    pub fn reenter(&self) -> Result<Self, LockError> {
        match &self.lock {
            Origin::One(lock) if lock.reenter(self.owner, &self.hold) => {}
            Origin::One(lock) => return Err(lock.about(self.hold.why_over(Operation::Acquire))),
            Origin::Several(joints) => drop(joints.enter(self.owner, Some(&self.hold))?),
        }
        Ok(Self::new(self.lock.clone(), self.owner, self.hold.clone()))
    }

    /// Releases the lock, and reports whether it was held until now.
    ///
    /// Renewal stops first. The future completes by the hold's deadline, and within ten seconds.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lock had been lost before: what was done under it may not have been exclusive.
    /// [`ErrorKind::NotOwner`] when code that acts for the same owner has already ended this guard's entry with
    /// `unlock`: the lock was free from then on. [`ErrorKind::Unconfirmed`] when the server has not answered by the
    /// deadline, or for ten seconds if that is sooner; the release continues in the background.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock as well: before the first poll by dropping the guard, afterwards by
    /// finishing in the background.
    pub async fn release(mut self) -> Result<(), LockError> {
        self.ends_entry = false;
        let lock = match &self.lock {
            Origin::One(lock) => lock,
            Origin::Several(joints) => return joints.release(self.owner, Some(&self.hold)).await,
        };
        let released = lock.release(self.owner, self.hold.mode(), Some(&self.hold)).await;
        match released {
            // The owner has seen the loss in another call; this caller has not.
            Err(error) if error.kind() == ErrorKind::NotOwner => {
                Err(lock.about(self.hold.why_over(Operation::Release)))
            }
            released => released,
        }
    }

    /// Leaves the entry to the owner, which ends it with [`unlock`](crate::DistributedLock::unlock).
    pub(crate) fn leave_to_owner(self) {
        if let Some(guard) = scope::keep(self) {
            guard.forget_entry();
        }
    }

    /// What is left of the lock after a loss stays at the server for the abort margin, although this guard ends: what was done
    /// under it may go on.
    pub(crate) fn keep_margin(&self) {
        match &self.lock {
            Origin::One(lock) => lock.keep_margin(self.owner, &self.hold),
            Origin::Several(joints) => joints.keep_margin(self.owner, &self.hold),
        }
    }

    /// Drops the guard, but not its entry: the owner ends that, or has ended it.
    pub(crate) fn forget_entry(mut self) {
        self.ends_entry = false;
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.ends_entry {
            return;
        }
        match &self.lock {
            Origin::One(lock) => lock.leave_in_background(self.owner, &self.hold),
            Origin::Several(joints) => joints.leave_in_background(self.owner, &self.hold),
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
