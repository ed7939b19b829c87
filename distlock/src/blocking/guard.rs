//! A guard whose release blocks.

use std::fmt;

use super::wait;
use crate::{FencingToken, Hold, LockError, Operation};

/// One entry into a lock, which ends with [`LockGuard::release`] or when the guard is dropped.
///
/// Each guard from [`acquire`](super::DistributedLock::acquire) has an owner of its own, so two guards exclude each other
/// even in one thread. A guard may be moved to another thread.
///
/// Dropping a guard releases the lock in the background: it does not block, and works on any thread. The caller does not
/// see an error then; [`LockGuard::release`] returns it.
#[must_use = "dropping the guard releases the lock"]
pub struct LockGuard(crate::LockGuard);

impl LockGuard {
    pub(super) fn new(guard: crate::LockGuard) -> Self {
        Self(guard)
    }

    /// Returns the hold that the guard keeps. [`Hold::is_valid`] and [`Hold::end`] say whether the lock has been lost.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let guard = distlock::blocking::connect("memory:")?.mutex("orders/42")?.acquire()?;
    /// assert!(guard.hold().is_valid());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn hold(&self) -> &Hold {
        self.0.hold()
    }

    /// Returns the fencing token; the same as [`Hold::token`].
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let guard = distlock::blocking::connect("memory:")?.mutex("orders/42")?.acquire()?;
    /// assert!(guard.token().is_some()); // send it with each write
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn token(&self) -> Option<FencingToken> {
        self.0.token()
    }

    /// Makes a second guard of the same hold, without I/O. The lock is released when the last guard is.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let outer = distlock::blocking::connect("memory:")?.mutex("orders/42")?.acquire()?;
    /// let inner = outer.reenter()?;
    /// outer.release()?;
    /// assert!(inner.hold().is_valid()); // still held
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the hold has been lost.
    pub fn reenter(&self) -> Result<Self, LockError> {
        self.0.reenter().map(Self)
    }

    /// Releases the lock, blocks until the server has answered, and reports whether the lock was held until now. It
    /// returns by the hold's deadline, and within ten seconds.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let guard = distlock::blocking::connect("memory:")?.mutex("orders/42")?.acquire()?;
    /// guard.release()?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::LockGuard::release`](crate::LockGuard::release);
    /// [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock), and the lock is released in the background then.
    pub fn release(self) -> Result<(), LockError> {
        let name = self.hold().name().clone();
        wait::for_result(Operation::Release, self.0.release()).map_err(|error| error.on(&name))
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
