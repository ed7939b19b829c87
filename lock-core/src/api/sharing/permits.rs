//! Semaphores.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::lock::DistributedLock;
use crate::api::reentrant::ReentrantLock;
use crate::spi::{LockKind, Mode};
use crate::types::{Broken, ErrorKind, HolderId, LockError, LockName, LockStatus, Operation};

/// A semaphore: a number of permits, of which each holder takes one or more.
///
/// * **All or nothing, and first come, first served**: a request for several permits waits at the head of the queue until
///   all of them are free, and none that comes later passes it.
/// * **The number of permits lasts as long as there is a holder or a waiter.** Who comes with another number meanwhile
///   gets [`ErrorKind::InvalidOption`], which names both. To change the number, let the semaphore drain.
/// * **A semaphore is another thing than the lock of its name**: `semaphore("render", 3)` and `mutex("render")` do not
///   exclude each other.
/// * The token of a holder is an id. **It fences nothing**, because holders are beside each other.
///
/// ```
/// # use lock_core::Mode;
/// # lock_memory::example(async |locks| {
/// let semaphore = locks.semaphore("render", 3)?;
/// let (small, large) = (semaphore.acquire(1).await?, semaphore.acquire(2).await?);
/// assert!(semaphore.try_acquire(1).await?.is_none());
/// assert!(matches!(large.hold().mode(), Mode::Permits { take, .. } if take.get() == 2));
/// large.release().await?;
/// assert_eq!(semaphore.status().await?.free_permits(), Some(2));
/// small.release().await?;
/// # Ok(()) });
/// ```
#[derive(Debug, Clone)]
#[must_use = "this takes no permit: call `acquire`"]
pub struct Semaphore {
    pub(super) shared: ReentrantLock,
    pub(super) of: NonZeroU32,
}

impl Semaphore {
    /// Returns the name of the semaphore.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.semaphore("render", 3)?.name().as_str(), "render");
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> &LockName {
        self.shared.name()
    }

    /// Returns how many permits there are.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.semaphore("render", 3)?.size(), 3);
    /// # Ok(()) });
    /// ```
    pub fn size(&self) -> u32 {
        self.of.get()
    }

    /// Returns `take` permits as a lock, for code that works with any [`DistributedLock`]: `with_lock`, reentry by owner,
    /// a listener. An owner that has these permits and asks for as many again enters again; it does not take more.
    ///
    /// ```
    /// # use lock_core::{DistributedLock, LockError};
    /// # lock_memory::example(async |locks| {
    /// let permit = locks.semaphore("render", 3)?.permits(1)?;
    /// permit.with_lock(async |_| Ok::<_, LockError>(())).await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for no permits, and for more than there are; [`ErrorKind::Unsupported`] for more than
    /// the backend gives at once.
    pub fn permits(&self, take: u32) -> Result<Arc<dyn DistributedLock>, LockError> {
        self.taking(take).map(|lock| Arc::new(lock) as Arc<dyn DistributedLock>)
    }

    fn taking(&self, take: u32) -> Result<ReentrantLock, LockError> {
        let refused = |cause: String| {
            let error = LockError::new(ErrorKind::InvalidOption, Operation::Acquire).on(self.name());
            error.of(LockKind::Semaphore).because(cause)
        };
        let Some(take) = NonZeroU32::new(take) else {
            return Err(refused("an acquisition takes at least one permit".to_owned()));
        };
        if take > self.of {
            return Err(refused(format!("it has {} permits, and {take} can never be had", self.of)));
        }
        let mode = Mode::Permits { take, of: self.of };
        self.shared.client.refuse_unsupported(self.name(), mode)?;
        let mut lock = self.shared.clone();
        lock.acquisition.mode = mode;
        Ok(lock)
    }

    /// Acquires `take` permits and returns a guard, which gives them back.
    ///
    /// **A task that keeps permits and asks for more may wait for itself**: an acquisition of several permits at once does
    /// not.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.semaphore("render", 3)?.acquire(2).await?;
    /// guard.release().await?; // gives both back
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`Semaphore::permits`] and [`DistributedLock::acquire_as`], and [`ErrorKind::InvalidOption`] when the
    /// holders and waiters of the semaphore use it with another number of permits.
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    pub async fn acquire(&self, take: u32) -> Result<LockGuard, LockError> {
        self.taking(take)?.acquire().await
    }

    /// Acquires `take` permits, waiting at most `duration`, and fails with [`ErrorKind::Busy`] when there are not enough
    /// of them in that time.
    ///
    /// ```
    /// # use lock_core::ErrorKind;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let semaphore = locks.semaphore("render", 1)?;
    /// let _held = semaphore.acquire_for(1, Duration::from_secs(2)).await?;
    /// let error = semaphore.acquire_for(1, Duration::from_millis(10)).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], and the same as [`Semaphore::acquire`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    pub async fn acquire_for(&self, take: u32, duration: Duration) -> Result<LockGuard, LockError> {
        self.taking(take)?.acquire_for(duration).await
    }

    /// Acquires `take` permits without waiting: returns `None` when there are not enough, or others wait.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let semaphore = locks.semaphore("render", 3)?;
    /// let _all = semaphore.acquire(3).await?;
    /// assert!(semaphore.try_acquire(1).await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`Semaphore::acquire`].
    ///
    /// # Cancel safety
    /// Same as [`DistributedLock::acquire_as`].
    pub async fn try_acquire(&self, take: u32) -> Result<Option<LockGuard>, LockError> {
        self.taking(take)?.try_acquire().await
    }

    /// Returns who holds permits and who waits for them, each with how many, and how many permits are
    /// [free](LockStatus::free_permits).
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let semaphore = locks.semaphore("render", 3)?;
    /// let guard = semaphore.acquire(2).await?;
    /// assert_eq!(semaphore.status().await?.free_permits(), Some(1));
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`LockClient::status`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn status(&self) -> Result<LockStatus, LockError> {
        self.shared.client.status_of(self.name().clone(), LockKind::Semaphore).await
    }

    /// Takes the permits of `holder` away from it, which reports them as lost. Does nothing if it has none any more.
    ///
    /// ```
    /// # use lock_core::LossReason;
    /// # lock_memory::example(async |locks| {
    /// let semaphore = locks.semaphore("render", 3)?;
    /// let (one, other) = (semaphore.acquire(1).await?, semaphore.acquire(1).await?);
    /// semaphore.break_holder(&one.hold().id()).await?;
    /// assert_eq!(one.lost().await, Some(LossReason::Broken));
    /// assert!(other.hold().is_valid());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`LockClient::break_holder`].
    ///
    /// # Cancel safety
    /// Same as [`LockClient::break_holder`].
    pub async fn break_holder(&self, holder: &HolderId) -> Result<Broken, LockError> {
        self.shared.client.break_holder_of(self.name().clone(), LockKind::Semaphore, holder).await
    }
}
