//! The contract of a distributed lock: the trait that users call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::guard::LockGuard;
use crate::api::listener::{LockListener, Subscription};
use crate::api::scope;
use crate::policy::hold::Hold;
use crate::runtime::Clock;
use crate::spi::Wait;
use crate::types::{ErrorKind, LockError, LockName, Mode, Operation, Owner};

/// A lock that excludes all other users of the same name on the same server.
///
/// The trait is object safe: a client gives out `Arc<dyn DistributedLock>`, whose methods need no import, and a test can
/// use another backend. `dyn DistributedLock` also has [`with_lock`](#method.with_lock),
/// [`with_lock_for`](#method.with_lock_for) and [`try_with_lock`](#method.try_with_lock), which run a body under the lock.
///
/// A decorator implements it by passing the calls on to another lock. Holds and guards are those of a client, or of a
/// [`MultiLock`](crate::MultiLock).
///
/// # Locking without a guard
/// `lock`, `try_lock`, `try_lock_for` and `unlock` follow `java.util.concurrent.locks.Lock`: they are reentrant for the
/// same [`Owner`], which is the current task. They are for code that cannot carry a guard. Where it can, prefer
/// [`DistributedLock::acquire`].
#[async_trait]
pub trait DistributedLock: fmt::Debug + Send + Sync {
    /// Returns the name of the lock.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.mutex("orders/42")?.name().as_str(), "orders/42");
    /// # Ok(()) });
    /// ```
    fn name(&self) -> &LockName;

    /// Returns the address of the server that the lock is at, as errors show it; empty for a lock that is not a client's.
    /// A decorator passes the call on.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.mutex("orders/42")?.server(), "memory:");
    /// # Ok(()) });
    /// ```
    #[allow(clippy::unnecessary_literal_bound, reason = "a lock of a client returns what it borrows")]
    fn server(&self) -> &str {
        ""
    }

    /// Returns the clock that measures waits for this lock.
    ///
    /// ```
    /// # use lock_core::{Owner, Wait};
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let deadline = lock.clock().now().plus(Duration::from_secs(2));
    /// assert!(lock.acquire_as(Owner::new(), Wait::Until(deadline)).await?.is_some());
    /// # Ok(()) });
    /// ```
    fn clock(&self) -> &Clock;

    /// Acquires the lock for `owner`, or enters it once more if `owner` already holds it. The methods that acquire are
    /// built on this one.
    ///
    /// Returns `None` when the lock could not be had in time. One deadline covers the local queue and the remote wait.
    /// A server that does not answer gets one second for its first answer, however short the wait is; with [`Wait::Try`],
    /// which sends one request alone, as long as the backend lets a request take.
    ///
    /// ```
    /// # use lock_core::{Owner, Wait};
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let (first, second) = (Owner::new(), Owner::new());
    /// let guard = lock.acquire_as(first, Wait::Forever).await?;
    /// assert!(lock.acquire_as(second, Wait::Try).await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unreachable`] when the wait ended before the server had confirmed that another client holds the
    /// lock; [`ErrorKind::Lost`] once for an owner whose hold was lost and who does not know of the loss yet, and with
    /// [`Wait::Try`] when the grant is lost before the caller sees it (a longer wait continues in that case); any error
    /// of the server.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the wait. What has already been requested from the server is undone in the
    /// background.
    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError>;

    /// Ends one entry of `owner`, and releases the lock if that was the last one. [`unlock`](DistributedLock::unlock)
    /// is built on this method.
    ///
    /// ```
    /// # use lock_core::{Owner, Wait};
    /// # lock_memory::example(async |locks| {
    /// let (lock, owner) = (locks.mutex("orders/42")?, Owner::new());
    /// let _guard = lock.acquire_as(owner, Wait::Forever).await?;
    /// lock.release_as(owner).await?;
    /// assert!(!lock.is_locked());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotOwner`] when `owner` has no entry (nothing changes); [`ErrorKind::Lost`] when the hold had been
    /// lost and `owner` does not know of the loss yet; [`ErrorKind::Unconfirmed`] when the server has not answered by
    /// the hold's deadline, or for ten seconds if that is sooner.
    ///
    /// # Cancel safety
    /// Before the first poll, dropping the future changes nothing. The first poll ends the entry, and the rest
    /// continues in the background.
    async fn release_as(&self, owner: Owner) -> Result<(), LockError>;

    /// Returns the hold of `owner`, if it has one.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let guard = lock.acquire().await?;
    /// assert!(lock.hold_of(guard.owner()).is_some());
    /// # Ok(()) });
    /// ```
    fn hold_of(&self, owner: Owner) -> Option<Hold>;

    /// Returns whether `owner` would acquire the lock without waiting, because it has it already: a hold, or the write side
    /// of a lock whose read side this is. `lock` and `with_lock` ask this of the owners around the caller.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let catalog = locks.rw_lock("catalog")?;
    /// let guard = catalog.write().acquire().await?;
    /// assert!(catalog.read().has_entered(guard.owner()) && catalog.read().hold_of(guard.owner()).is_none());
    /// # Ok(()) });
    /// ```
    fn has_entered(&self, owner: Owner) -> bool {
        self.hold_of(owner).is_some()
    }

    /// Returns the number of entries of `owner`.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let guard = lock.acquire().await?;
    /// let again = guard.reenter()?;
    /// assert_eq!(lock.hold_count_of(again.owner()), 2);
    /// # Ok(()) });
    /// ```
    fn hold_count_of(&self, owner: Owner) -> u64;

    /// Returns whether any owner holds the lock through this client.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let guard = lock.acquire().await?;
    /// assert!(lock.is_locked());
    /// # Ok(()) });
    /// ```
    fn is_locked(&self) -> bool;

    /// Returns how the holds of this lock share it with others.
    ///
    /// ```
    /// # use lock_core::Mode;
    /// # lock_memory::example(async |locks| {
    /// let catalog = locks.rw_lock("catalog")?;
    /// assert_eq!((catalog.read().mode(), catalog.write().mode()), (Mode::Shared, Mode::Exclusive));
    /// # Ok(()) });
    /// ```
    fn mode(&self) -> Mode {
        Mode::Exclusive
    }

    /// Returns the error of an acquisition that another owner was in the way of all the time. It names the holder if that
    /// is known. [`acquire_for`](DistributedLock::acquire_for) fails with it.
    ///
    /// ```
    /// # use lock_core::ErrorKind;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let _held = lock.acquire().await?;
    /// let error = if lock.try_acquire().await?.is_none() { lock.busy() } else { return Ok(()) };
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// assert!(error.holder().is_some());
    /// # Ok(()) });
    /// ```
    fn busy(&self) -> LockError {
        LockError::busy(self.name())
    }

    /// Adds a listener for losses and other events of this name, for the whole client. It stays until the subscription
    /// is dropped, also while no one uses the lock.
    ///
    /// ```
    /// # use lock_core::{Hold, LossReason};
    /// # use std::sync::Arc;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let subscription = lock.add_listener(Arc::new(|hold: &Hold, reason: &LossReason| {
    ///     eprintln!("{} is lost: {reason}", hold.name());
    /// }));
    /// // … acquisitions of "orders/42", by this lock or another of the same client …
    /// drop(subscription); // removes the listener
    /// # Ok(()) });
    /// ```
    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription;

    /// Acquires the lock and returns a guard, which releases it. The guard has an owner of its own: **a task that
    /// already holds the lock waits for itself**, unless it enters again with [`LockGuard::reenter`], in
    /// [`with_lock`](#method.with_lock) or with [`DistributedLock::lock`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// // … the work …
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire_as`], and [`ErrorKind::Deadlock`] when the task or the body around the caller
    /// holds the lock through `lock` or `with_lock`. That includes other branches of a `join!`, which are the same task.
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn acquire(&self) -> Result<LockGuard, LockError> {
        let guard = self.acquire_as(Owner::new(), Wait::Forever).await?;
        guard.ok_or_else(|| endless_wait_ended(self.name()))
    }

    /// Acquires the lock, waiting at most `duration`, and fails with [`ErrorKind::Busy`] if another owner holds it all
    /// that time. The error names the holder where it is known. Zero is [`try_acquire`](DistributedLock::try_acquire),
    /// [`Duration::MAX`] waits for ever.
    ///
    /// **A server that does not answer gets one second for its first answer, however short `duration` is**, as with
    /// [`DistributedLock::try_lock_for`].
    ///
    /// ```
    /// # use lock_core::ErrorKind;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let _held = lock.acquire_for(Duration::from_secs(2)).await?;
    /// let error = lock.acquire_for(Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], and the same as [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn acquire_for(&self, duration: Duration) -> Result<LockGuard, LockError> {
        let guard = self.try_acquire_for(duration).await?;
        guard.ok_or_else(|| self.busy())
    }

    /// Acquires the lock without waiting: returns `None` when another owner holds it.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let Some(guard) = locks.mutex("orders/42")?.try_acquire().await? else {
    ///     return Ok(()); // another owner works on it
    /// };
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn try_acquire(&self) -> Result<Option<LockGuard>, LockError> {
        self.acquire_as(Owner::new(), Wait::Try).await
    }

    /// Like [`DistributedLock::acquire_for`], but returns `None` when another owner holds the lock all that time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let _held = lock.acquire().await?;
    /// assert!(lock.try_acquire_for(Duration::from_millis(10)).await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire_as`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn try_acquire_for(&self, duration: Duration) -> Result<Option<LockGuard>, LockError> {
        self.acquire_as(Owner::new(), Wait::within(duration, self.clock().now())).await
    }

    /// Acquires the lock for the current owner, waiting as long as it takes.
    ///
    /// **The branches of `join!`, `select!` and `for_each_concurrent` belong to one task and so to one owner: they do
    /// not exclude each other.** Use [`DistributedLock::acquire`], or give each branch an [`Owner::scope`].
    ///
    /// **A task that is cancelled between `lock` and `unlock` leaves its hold behind, renewed for ever**, unless the
    /// client limits it with `max_hold`. Guards and scopes do not have this problem.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// lock.lock().await?;
    /// lock.lock().await?; // the same task: reentered
    /// lock.unlock().await?;
    /// lock.unlock().await?; // released
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire_as`], and [`ErrorKind::NoOwner`] outside a runtime.
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn lock(&self) -> Result<(), LockError> {
        enter(self, Wait::Forever).await.map(drop)
    }

    /// Like [`DistributedLock::lock`], without waiting: returns `false` when another owner holds the lock, or waits in
    /// this client before the caller. It takes at most the time that the backend gives a server to answer.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// let _held = lock.acquire().await?;
    /// assert!(!lock.try_lock().await?);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn try_lock(&self) -> Result<bool, LockError> {
        enter(self, Wait::Try).await
    }

    /// Like [`DistributedLock::lock`], but waits at most `duration`: returns `false` when another owner holds the lock
    /// all that time. Zero is [`try_lock`](DistributedLock::try_lock), [`Duration::MAX`] waits for ever.
    ///
    /// **A server that does not answer gets one second for its first answer, however short `duration` is**: only the
    /// server knows whether another client holds the lock. Put a timeout around the call if it must end earlier.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// assert!(lock.try_lock_for(Duration::from_secs(2)).await?);
    /// lock.unlock().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::lock`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    async fn try_lock_for(&self, duration: Duration) -> Result<bool, LockError> {
        enter(self, Wait::within(duration, self.clock().now())).await
    }

    /// Ends one entry of the current owner, and releases the lock if that was the last one.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// lock.lock().await?;
    /// lock.unlock().await?;
    /// assert!(!lock.is_locked());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::release_as`], and [`ErrorKind::NoOwner`] outside a runtime.
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::release_as`].
    async fn unlock(&self) -> Result<(), LockError> {
        self.release_as(acting_owner(self)?).await
    }

    /// Returns the hold of the current owner, if it has one. **A guard has an owner of its own**, so this is `None` in a
    /// task that holds the lock by a guard alone: ask [`LockGuard::hold`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// lock.lock().await?;
    /// assert!(lock.hold().is_some_and(|hold| hold.is_valid()));
    /// lock.unlock().await?;
    /// # Ok(()) });
    /// ```
    fn hold(&self) -> Option<Hold> {
        acting_owner(self).ok().and_then(|owner| self.hold_of(owner))
    }

    /// Returns whether the current owner holds the lock, by the clock. **A guard has an owner of its own**, so this is
    /// `false` in a task that holds the lock by a guard alone: ask the guard's [`Hold::is_valid`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// assert!(!lock.is_held());
    /// lock.lock().await?;
    /// assert!(lock.is_held());
    /// lock.unlock().await?;
    /// # Ok(()) });
    /// ```
    fn is_held(&self) -> bool {
        self.hold().is_some_and(|hold| hold.is_valid())
    }

    /// Returns how many entries the current owner has. Guards do not count: each has an owner of its own.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// lock.lock().await?;
    /// assert_eq!(lock.hold_count(), 1);
    /// lock.unlock().await?;
    /// # Ok(()) });
    /// ```
    fn hold_count(&self) -> u64 {
        acting_owner(self).map_or(0, |owner| self.hold_count_of(owner))
    }
}

/// The owner for which `lock` and `unlock` act here.
fn acting_owner<L: DistributedLock + ?Sized>(lock: &L) -> Result<Owner, LockError> {
    scope::acting_owner(|owner| lock.hold_of(owner).is_some())
}

async fn enter<L: DistributedLock + ?Sized>(lock: &L, wait: Wait) -> Result<bool, LockError> {
    let owner = scope::acting_owner(|owner| lock.has_entered(owner))?;
    let guard = lock.acquire_as(owner, wait).await?;
    Ok(guard.map(LockGuard::leave_to_owner).is_some())
}

/// The error of a wait without a deadline that ended without the lock.
pub(crate) fn endless_wait_ended(name: &LockName) -> LockError {
    LockError::new(ErrorKind::Internal, Operation::Acquire)
        .on(name)
        .because("a wait without a deadline ended without the lock")
}
