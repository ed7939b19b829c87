//! Read-write locks and semaphores whose methods block.

use std::time::Duration;

use super::guard::LockGuard;
use super::lock::DistributedLock;
use super::wait;
use crate::status::{Broken, HolderId, LockStatus};
use crate::{LockError, LockName, Operation};

/// A lock with a read side and a write side; see [`distlock::RwLock`](crate::RwLock).
///
/// ```
/// # #[cfg(feature = "memory")] {
/// let catalog = distlock::blocking::connect("memory:")?.rw_lock("catalog")?;
/// let reading = catalog.read().acquire()?; // beside other readers
/// assert!(catalog.write().try_acquire()?.is_none());
/// reading.release()?;
/// # }
/// # Ok::<(), distlock::LockError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "this locks nothing: acquire its read side or its write side"]
pub struct RwLock(crate::RwLock);

impl From<crate::RwLock> for RwLock {
    fn from(lock: crate::RwLock) -> Self {
        Self(lock)
    }
}

impl RwLock {
    /// Returns the name of the lock.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let catalog = distlock::blocking::connect("memory:")?.rw_lock("catalog")?;
    /// assert_eq!(catalog.name().as_str(), "catalog");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the side that any number of owners hold at the same time, while no owner holds the other.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let catalog = distlock::blocking::connect("memory:")?.rw_lock("catalog")?;
    /// let (one, other) = (catalog.read().acquire()?, catalog.read().acquire()?); // both at once
    /// one.release()?;
    /// other.release()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn read(&self) -> DistributedLock {
        self.0.read().into()
    }

    /// Returns the side that excludes all other owners, on both sides. It is the mutex of that name.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let catalog = distlock::blocking::connect("memory:")?.rw_lock("catalog")?;
    /// let writing = catalog.write().acquire()?;
    /// assert!(catalog.read().try_acquire()?.is_none());
    /// writing.release()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn write(&self) -> DistributedLock {
        self.0.write().into()
    }
}

/// A number of permits that several owners share; see [`distlock::Semaphore`](crate::Semaphore).
///
/// ```
/// # #[cfg(feature = "memory")] {
/// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
/// let guard = render.acquire(2)?; // both or none
/// assert_eq!(render.status()?.free_permits(), Some(1));
/// guard.release()?;
/// # }
/// # Ok::<(), distlock::LockError>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "this takes no permit: call `acquire`"]
pub struct Semaphore(crate::Semaphore);

impl From<crate::Semaphore> for Semaphore {
    fn from(semaphore: crate::Semaphore) -> Self {
        Self(semaphore)
    }
}

impl Semaphore {
    /// Returns the name of the semaphore.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// assert_eq!(render.name().as_str(), "render");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns how many permits there are.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// assert_eq!(render.size(), 3);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn size(&self) -> u32 {
        self.0.size()
    }

    /// Returns `take` permits as a lock, with all methods of one.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let drawn = render.permits(2)?.with_lock(|_| Ok::<_, LockError>("drawn with two permits"))?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Semaphore::permits`](crate::Semaphore::permits).
    pub fn permits(&self, take: u32) -> Result<DistributedLock, LockError> {
        self.0.permits(take).map(DistributedLock::from)
    }

    /// Acquires `take` permits, all or nothing, waiting as long as it takes.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let guard = render.acquire(2)?;
    /// guard.release()?; // gives both back
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Semaphore::permits`] and [`DistributedLock::acquire`].
    pub fn acquire(&self, take: u32) -> Result<LockGuard, LockError> {
        self.permits(take)?.acquire()
    }

    /// Like [`Semaphore::acquire`], but waits at most `duration`, and fails with
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) if there are not that many permits in that time.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::ErrorKind;
    /// use std::time::Duration;
    ///
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let _all = render.acquire(3)?;
    /// let error = render.acquire_for(1, Duration::from_millis(10)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Semaphore::permits`] and [`DistributedLock::acquire_for`].
    pub fn acquire_for(&self, take: u32, duration: Duration) -> Result<LockGuard, LockError> {
        self.permits(take)?.acquire_for(duration)
    }

    /// Like [`Semaphore::acquire`], without waiting: returns `None` when there are not that many permits now.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let _most = render.acquire(2)?;
    /// assert!(render.try_acquire(2)?.is_none());
    /// assert!(render.try_acquire(1)?.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Semaphore::permits`] and [`DistributedLock::try_acquire`].
    pub fn try_acquire(&self, take: u32) -> Result<Option<LockGuard>, LockError> {
        self.permits(take)?.try_acquire()
    }

    /// Returns who has permits and who waits for some, as far as the backend can tell.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let _guard = render.acquire(2)?;
    /// assert_eq!(render.status()?.free_permits(), Some(1));
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`LockClient::status`](super::LockClient::status).
    pub fn status(&self) -> Result<LockStatus, LockError> {
        wait::for_result(Operation::Inspect, self.0.status())
    }

    /// Takes its permits away from `holder`, which reports them as lost.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let render = distlock::blocking::connect("memory:")?.semaphore("render", 3)?;
    /// let guard = render.acquire(2)?;
    /// render.break_holder(&guard.hold().id())?;
    /// assert!(guard.release().is_err()); // lost
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`LockClient::break_holder`](super::LockClient::break_holder).
    pub fn break_holder(&self, holder: &HolderId) -> Result<Broken, LockError> {
        wait::for_result(Operation::Break, self.0.break_holder(holder))
    }
}
