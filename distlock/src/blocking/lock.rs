//! A lock whose methods block.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::guard::LockGuard;
use super::wait;
use crate::events::Subscription;
use crate::{Hold, LockError, LockListener, LockName, Operation, Owner};

/// A lock whose methods block the calling thread. It is cheap to clone; all clones are the same lock.
///
/// It is a wrapper of any [`distlock::DistributedLock`](crate::DistributedLock): [`DistributedLock::from`] makes one of a lock
/// of your own, and [`DistributedLock::as_async`] returns it. The methods have the names of the asynchronous ones, and all
/// that block may return [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), see the [module](super).
#[derive(Clone)]
pub struct DistributedLock(Arc<dyn crate::DistributedLock>);

impl From<Arc<dyn crate::DistributedLock>> for DistributedLock {
    fn from(lock: Arc<dyn crate::DistributedLock>) -> Self {
        Self(lock)
    }
}

impl DistributedLock {
    /// Returns the same lock with asynchronous methods.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::blocking;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let same = blocking::DistributedLock::from(lock.as_async().clone());
    /// let _guard = same.acquire()?;
    /// assert!(lock.is_locked());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn as_async(&self) -> &Arc<dyn crate::DistributedLock> {
        &self.0
    }

    /// Returns the name of the lock.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// assert_eq!(lock.name().as_str(), "orders/42");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Acquires the lock for the calling thread, waiting as long as it takes. If the thread holds it already, it enters
    /// once more, and [`unlock`](DistributedLock::unlock) has to be called once more.
    ///
    /// **A thread that ends, or returns early, between `lock` and `unlock` leaves its hold behind, renewed for ever**,
    /// unless the client limits it with `max_hold`. Guards and [`with_lock`](DistributedLock::with_lock) do not have this
    /// problem.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// lock.lock()?;
    /// lock.lock()?; // the same thread: reentered
    /// lock.unlock()?;
    /// lock.unlock()?; // released
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::DistributedLock::lock`](crate::DistributedLock::lock);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn lock(&self) -> Result<(), LockError> {
        self.wait(Operation::Acquire, self.0.lock())
    }

    /// Like [`DistributedLock::lock`], without waiting: returns `false` when another owner holds the lock, or waits in
    /// this client before the caller.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// if lock.try_lock()? {
    ///     // … the work …
    ///     lock.unlock()?;
    /// }
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::lock`].
    pub fn try_lock(&self) -> Result<bool, LockError> {
        self.wait(Operation::Acquire, self.0.try_lock())
    }

    /// Like [`DistributedLock::lock`], but waits at most `duration`: returns `false` when another owner holds the lock
    /// all that time. A server that does not answer gets one second for its first answer, however short `duration` is.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use std::time::Duration;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _held = lock.acquire()?; // the guard has an owner of its own
    /// assert!(!lock.try_lock_for(Duration::from_millis(10))?);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::lock`].
    pub fn try_lock_for(&self, duration: Duration) -> Result<bool, LockError> {
        self.wait(Operation::Acquire, self.0.try_lock_for(duration))
    }

    /// Ends one entry of the calling thread, and releases the lock if that was the last one.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// lock.lock()?;
    /// lock.unlock()?;
    /// assert!(lock.unlock().is_err()); // more often than it locked
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::DistributedLock::unlock`](crate::DistributedLock::unlock);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), and nothing changes then.
    pub fn unlock(&self) -> Result<(), LockError> {
        self.wait(Operation::Release, self.0.unlock())
    }

    /// Acquires the lock and returns a guard, which releases it. The guard has an owner of its own: **a thread that
    /// already holds the lock does not enter again**, but gets [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock), or waits
    /// for its own guard.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let guard = distlock::blocking::connect("memory:")?.mutex("orders/42")?.acquire()?;
    /// // … the work …
    /// guard.release()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::DistributedLock::acquire`](crate::DistributedLock::acquire);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn acquire(&self) -> Result<LockGuard, LockError> {
        self.wait(Operation::Acquire, self.0.acquire()).map(LockGuard::new)
    }

    /// Acquires the lock, waiting at most `duration`, and fails with [`ErrorKind::Busy`](crate::ErrorKind::Busy) if
    /// another owner holds it all that time. Zero tries once.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::ErrorKind;
    /// use std::time::Duration;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _held = lock.acquire_for(Duration::from_secs(2))?;
    /// let error = lock.acquire_for(Duration::from_millis(10)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy), and the same as [`DistributedLock::acquire`].
    pub fn acquire_for(&self, duration: Duration) -> Result<LockGuard, LockError> {
        self.wait(Operation::Acquire, self.0.acquire_for(duration)).map(LockGuard::new)
    }

    /// Acquires the lock without waiting: returns `None` when another owner holds it.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _held = lock.acquire()?;
    /// assert!(lock.try_acquire()?.is_none());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire`].
    pub fn try_acquire(&self) -> Result<Option<LockGuard>, LockError> {
        self.wait(Operation::Acquire, self.0.try_acquire()).map(|guard| guard.map(LockGuard::new))
    }

    /// Like [`DistributedLock::acquire_for`], but returns `None` when another owner holds the lock all that time.
    ///
    /// # Errors
    /// Same as [`DistributedLock::acquire`].
    pub fn try_acquire_for(&self, duration: Duration) -> Result<Option<LockGuard>, LockError> {
        let acquiring = self.0.try_acquire_for(duration);
        self.wait(Operation::Acquire, acquiring).map(|guard| guard.map(LockGuard::new))
    }

    /// Runs `body` under the lock, and then releases the lock.
    ///
    /// **The loss of the lock does not stop `body`**, because a closure cannot be stopped: it runs to its end, and the
    /// result is [`ErrorKind::Lost`](crate::ErrorKind::Lost) afterwards. Long bodies check
    /// [`Hold::is_valid`] between two steps.
    ///
    /// If the caller holds the lock already, through `lock` or in the body of another `with_lock`, the body enters again
    /// without waiting. What the body locks without a guard and does not unlock is released at its end.
    ///
    /// The body returns a `Result` with an error of your own that a [`LockError`] converts into, and that is what this
    /// method returns.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let pictures = vec!["a.png", "b.png"];
    /// let lock = distlock::blocking::connect("memory:")?.mutex("thumbnails")?;
    /// let drawn = lock.with_lock(|hold| {
    ///     let drawn = pictures.iter().take_while(|_| hold.is_valid()).count(); // one picture for each step
    ///     Ok::<_, LockError>(drawn)
    /// })?;
    /// assert_eq!(drawn, 2);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Before the body runs, same as [`DistributedLock::acquire`]. Then the error of the body, or an error that says that
    /// the body may not have been exclusive: [`ErrorKind::Lost`](crate::ErrorKind::Lost), and
    /// [`ErrorKind::NotOwner`](crate::ErrorKind::NotOwner) when it unlocked more often than it locked.
    pub fn with_lock<T, E: From<LockError>>(&self, body: impl FnOnce(Hold) -> Result<T, E>) -> Result<T, E> {
        self.may_block(Operation::Acquire)?;
        wait::block_on(self.0.with_lock(|hold| async move { body(hold) }))
    }

    /// Like [`DistributedLock::with_lock`], but waits at most `duration` for the lock. The body never runs without it.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::{ErrorKind, LockError};
    /// use std::time::Duration;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _held = lock.acquire()?; // the guard has an owner of its own
    /// let late = lock.with_lock_for(Duration::from_millis(10), |_| Ok::<_, LockError>(()));
    /// assert_eq!(late.unwrap_err().kind(), ErrorKind::Busy);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another owner holds the lock all that time, and the same as
    /// [`DistributedLock::with_lock`].
    pub fn with_lock_for<T, E: From<LockError>>(
        &self,
        duration: Duration,
        body: impl FnOnce(Hold) -> Result<T, E>,
    ) -> Result<T, E> {
        self.may_block(Operation::Acquire)?;
        wait::block_on(self.0.with_lock_for(duration, |hold| async move { body(hold) }))
    }

    /// Like [`DistributedLock::with_lock`], without waiting: returns `None`, and does not run the body, when another
    /// owner holds the lock.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _held = lock.acquire()?; // the guard has an owner of its own
    /// assert_eq!(lock.try_with_lock(|_| Ok::<_, LockError>("done"))?, None);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`DistributedLock::with_lock`].
    pub fn try_with_lock<T, E: From<LockError>>(
        &self,
        body: impl FnOnce(Hold) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        self.may_block(Operation::Acquire)?;
        wait::block_on(self.0.try_with_lock(|hold| async move { body(hold) }))
    }

    /// Returns the hold of the calling thread, if it has one. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// lock.lock()?;
    /// let token = lock.hold().and_then(|hold| hold.token()); // send it with each write
    /// assert!(token.is_some());
    /// lock.unlock()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn hold(&self) -> Option<Hold> {
        Owner::as_thread(|| self.0.hold())
    }

    /// Returns whether the calling thread holds the lock, by the clock. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// lock.lock()?;
    /// assert!(lock.is_held());
    /// lock.unlock()?;
    /// assert!(!lock.is_held());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn is_held(&self) -> bool {
        Owner::as_thread(|| self.0.is_held())
    }

    /// Returns how many entries the calling thread has. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// lock.lock()?;
    /// lock.lock()?;
    /// assert_eq!(lock.hold_count(), 2);
    /// lock.unlock()?;
    /// lock.unlock()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn hold_count(&self) -> u64 {
        Owner::as_thread(|| self.0.hold_count())
    }

    /// Returns whether any owner holds the lock through this client. It does not block.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let _guard = lock.acquire()?;
    /// assert!(lock.is_locked());
    /// assert!(!lock.is_held()); // not by this thread itself
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    /// Adds a listener for losses and other events of this name, for the whole client. It stays until the subscription is
    /// dropped. It is called on a thread of its own while the holder works, so it can make a closure stop in time.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::{Hold, LossReason};
    /// use std::sync::Arc;
    ///
    /// let lock = distlock::blocking::connect("memory:")?.mutex("orders/42")?;
    /// let subscription = lock.add_listener(Arc::new(|hold: &Hold, reason: &LossReason| {
    ///     eprintln!("{} is lost: {reason}", hold.name());
    /// }));
    /// drop(subscription); // removes the listener
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.add_listener(listener)
    }

    fn wait<T>(
        &self,
        operation: Operation,
        future: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.may_block(operation)?;
        wait::block_on(future)
    }

    fn may_block(&self, operation: Operation) -> Result<(), LockError> {
        wait::may_block(operation).map_err(|error| error.on(self.name()))
    }
}

impl fmt::Debug for DistributedLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
