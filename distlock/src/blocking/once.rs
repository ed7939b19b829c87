//! Work that runs once for each slot, as a closure.

use std::time::Duration;

use super::guard::LockGuard;
use super::wait;
use crate::{Hold, LockError, LockName, Operation};

/// Work that runs at most once for each slot among all clients; see [`distlock::Once`](crate::Once).
#[derive(Debug, Clone)]
#[must_use = "nothing runs until `run` is called"]
pub struct Once(crate::Once);

impl From<crate::Once> for Once {
    fn from(once: crate::Once) -> Self {
        Self(once)
    }
}

impl Once {
    /// Sets how long the server remembers the slot, as [`distlock::Once::keep`](crate::Once::keep) does.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    /// use std::time::Duration;
    ///
    /// let minute = distlock::blocking::connect("memory:")?.once("poll", "12:07")?;
    /// minute.keep(Duration::from_secs(3600)).run(|_| Ok::<_, LockError>(()))?;
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn keep(self, keep: Duration) -> Self {
        Self(self.0.keep(keep))
    }

    /// Lets work that has failed run again for its slot, as [`distlock::Once::retry_failed`](crate::Once::retry_failed) does.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::{ErrorKind, LockError, Operation};
    ///
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?.retry_failed();
    /// assert!(nightly.run(|_| Err::<(), _>(LockError::new(ErrorKind::Internal, Operation::Hold))).is_err());
    /// assert!(nightly.run(|_| Ok::<_, LockError>(()))?.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn retry_failed(self) -> Self {
        Self(self.0.retry_failed())
    }

    /// Returns the name of the work.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// assert_eq!(nightly.name().as_str(), "reports");
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Runs `body`, unless it has run for this slot before, at any client; then returns `None`. It blocks while another slot
    /// runs.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    ///
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// assert_eq!(nightly.run(|_| Ok::<_, LockError>("sent"))?, Some("sent"));
    /// assert_eq!(nightly.run(|_| Ok::<_, LockError>("sent twice"))?, None);
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Once::run`](crate::Once::run); [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn run<T, E: From<LockError>>(
        &self,
        body: impl FnOnce(Hold) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        wait::may_block(Operation::Acquire).map_err(|error| error.on(self.name()))?;
        wait::block_on(self.0.run(|hold| async move { body(hold) }))
    }

    /// Like [`Once::run`], but waits at most `duration` while another slot runs.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use distlock::LockError;
    /// use std::time::Duration;
    ///
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// let sent = nightly.run_within(Duration::from_secs(2), |_| Ok::<_, LockError>("sent"))?;
    /// assert_eq!(sent, Some("sent"));
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Once::run`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another run holds the lock all that time.
    pub fn run_within<T, E: From<LockError>>(
        &self,
        duration: Duration,
        body: impl FnOnce(Hold) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        wait::may_block(Operation::Acquire).map_err(|error| error.on(self.name()))?;
        wait::block_on(self.0.run_within(duration, |hold| async move { body(hold) }))
    }

    /// Blocks until it has the lock, and takes the slot, for work that is no closure: `None` when it has run for this slot before.
    /// With [`retry_failed`](Self::retry_failed) the slot is taken by [`succeeded`](Self::succeeded).
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// if let Some(guard) = nightly.acquire()? {
    ///     // … the work …
    ///     guard.release()?;
    /// }
    /// assert!(nightly.acquire()?.is_none());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Once::acquire`](crate::Once::acquire); [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn acquire(&self) -> Result<Option<LockGuard>, LockError> {
        let acquired = wait::for_result(Operation::Acquire, self.0.acquire());
        acquired.map(|guard| guard.map(LockGuard::new))
    }

    /// Like [`Once::acquire`], but waits at most `duration` while another slot runs.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// use std::time::Duration;
    ///
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?;
    /// let guard = nightly.acquire_for(Duration::from_secs(2))?;
    /// assert!(guard.is_some());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Once::acquire`]; [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another run holds the lock all that time.
    pub fn acquire_for(&self, duration: Duration) -> Result<Option<LockGuard>, LockError> {
        let acquired = wait::for_result(Operation::Acquire, self.0.acquire_for(duration));
        acquired.map(|guard| guard.map(LockGuard::new))
    }

    /// Takes the slot of work that has succeeded, as [`distlock::Once::succeeded`](crate::Once::succeeded) does. Call it before
    /// the guard is released.
    ///
    /// ```
    /// # #[cfg(feature = "memory")] {
    /// let nightly = distlock::blocking::connect("memory:")?.once("reports", "2026-11-22")?.retry_failed();
    /// if let Some(guard) = nightly.acquire()? {
    ///     // … the work …
    ///     nightly.succeeded()?;
    ///     guard.release()?;
    /// }
    /// assert!(nightly.acquire()?.is_none());
    /// # }
    /// # Ok::<(), distlock::LockError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`distlock::Once::succeeded`](crate::Once::succeeded); [`ErrorKind::WouldBlock`](crate::ErrorKind::WouldBlock).
    pub fn succeeded(&self) -> Result<(), LockError> {
        wait::for_result(Operation::Remember, self.0.succeeded())
    }
}
