//! Locks that several can hold: read-write locks and semaphores.

mod permits;

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::api::client::LockClient;
use crate::api::lock::DistributedLock;
use crate::api::options::LockOptions;
use crate::spi::{LockKind, Mode};
use crate::types::{ErrorKind, LockError, LockName, Operation};

pub use permits::Semaphore;

/// A read-write lock: any number of readers, or one writer. Each side is a [`DistributedLock`].
///
/// **A guard is an owner of its own. A task that keeps a read guard and asks for another one waits for itself as soon as
/// a writer waits between them**, because later requests queue behind a waiting writer. An owner that reads enters again
/// without waiting: [`LockGuard::reenter`](crate::LockGuard::reenter), [`lock`](DistributedLock::lock) and `with_lock`.
///
/// * **First come, first served**, among readers and writers of all clients, where the backend serves waiters in order.
///   Readers that stand next to each other enter together, and neither side starves.
/// * **The write side is the mutex of that name**: `rw_lock("catalog")?.write()` and `mutex("catalog")?` are one lock.
/// * **A writer may read**, as the same owner: without the server, and with the writer's token. If it releases the write
///   side first, it goes on reading, with a token of its own, and no other writer comes between. Until then it loses both
///   sides together.
/// * **A reader cannot become a writer.** An owner that reads and asks for the write side gets
///   [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) at once: two readers that both did that would wait for each
///   other. It releases the read side first, or begins with the write side.
/// * A reader's [token](crate::FencingToken) is not below that of any writer before it. **A store that keeps tokens keeps
///   those of writers only**: one that refuses everything below the highest token it has seen would refuse readers that
///   hold the lock beside each other.
///
/// ```
/// # use lock_core::{DistributedLock, Mode};
/// # lock_memory::example(async |locks| {
/// let catalog = locks.rw_lock("catalog")?;
/// let (one, other) = (catalog.read().acquire().await?, catalog.read().acquire().await?);
/// assert_eq!(one.hold().mode(), Mode::Shared);
/// assert!(catalog.write().try_acquire().await?.is_none()); // two are reading
/// one.release().await?;
/// other.release().await?;
/// catalog.write().acquire().await?.release().await?;
/// # Ok(()) });
/// ```
#[derive(Debug, Clone)]
#[must_use = "this locks nothing: acquire its read side or its write side"]
pub struct RwLock {
    read: Arc<dyn DistributedLock>,
    write: Arc<dyn DistributedLock>,
}

impl LockClient {
    /// Returns the read-write lock called `name`. Its write side is the [mutex](Self::mutex) of that name.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_memory::example(async |locks| {
    /// let catalog = locks.rw_lock("catalog")?;
    /// let reading = catalog.read().acquire().await?;
    /// assert!(locks.mutex("catalog")?.try_acquire().await?.is_none());
    /// reading.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the backend has no shared holders; [`ErrorKind::InvalidName`];
    /// [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn rw_lock(&self, name: impl AsRef<str>) -> Result<RwLock, LockError> {
        self.rw_lock_with(name, LockOptions::new())
    }

    /// Like [`rw_lock`](Self::rw_lock), with options for the holds that are acquired through either side.
    ///
    /// ```
    /// # use lock_core::{DistributedLock, LockOptions};
    /// # lock_memory::example(async |locks| {
    /// let catalog = locks.rw_lock_with("catalog", LockOptions::new().label("import"))?;
    /// let reading = catalog.read().acquire().await?;
    /// assert_eq!(locks.status("catalog").await?.holders[0].label.as_deref(), Some("import"));
    /// reading.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`rw_lock`](Self::rw_lock) and [`mutex_with`](Self::mutex_with); [`ErrorKind::InvalidOption`] for
    /// [`LockOptions::at_least`].
    pub fn rw_lock_with(&self, name: impl AsRef<str>, options: LockOptions) -> Result<RwLock, LockError> {
        let read = self.lock_in(Mode::Shared, &name, options.clone())?;
        Ok(RwLock { read: Arc::new(read), write: self.mutex_with(name, options)? })
    }

    /// Returns the semaphore called `name`, which has `size` permits.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.semaphore("render", 3)?.acquire(1).await?;
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a semaphore without permits; [`ErrorKind::Unsupported`] where the backend has no
    /// semaphores, or none so large; [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn semaphore(&self, name: impl AsRef<str>, size: u32) -> Result<Semaphore, LockError> {
        self.semaphore_with(name, size, LockOptions::new())
    }

    /// Like [`semaphore`](Self::semaphore), with options for the holds that are acquired through it.
    ///
    /// ```
    /// # use lock_core::LockOptions;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let semaphore = locks.semaphore_with("render", 3, LockOptions::new().max_hold(Duration::from_secs(60)))?;
    /// let guard = semaphore.acquire(1).await?;
    /// assert!(guard.hold().remaining().is_some_and(|left| left <= Duration::from_secs(60)));
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`semaphore`](Self::semaphore); [`ErrorKind::InvalidOption`], naming the option, also for
    /// [`LockOptions::at_least`]; [`ErrorKind::Unsupported`] for an option that the backend does not have.
    pub fn semaphore_with(
        &self,
        name: impl AsRef<str>,
        size: u32,
        options: LockOptions,
    ) -> Result<Semaphore, LockError> {
        let Some(of) = NonZeroU32::new(size) else {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
                .on(&LockName::new(name)?)
                .of(LockKind::Semaphore)
                .because("a semaphore has at least one permit"));
        };
        let shared = self.lock_in(Mode::Permits { take: NonZeroU32::MIN, of }, name, options)?;
        Ok(Semaphore { shared, of })
    }
}

impl RwLock {
    /// Returns the name of the lock.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.rw_lock("catalog")?.name().as_str(), "catalog");
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> &LockName {
        self.write.name()
    }

    /// Returns the read side, which any number of owners hold at a time.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let prices = locks.rw_lock("catalog")?.read();
    /// prices.acquire().await?.release().await?;
    /// # Ok(()) });
    /// ```
    pub fn read(&self) -> Arc<dyn DistributedLock> {
        Arc::clone(&self.read)
    }

    /// Returns the write side, which excludes readers and other writers.
    ///
    /// ```
    /// # use lock_core::{DistributedLock, Owner};
    /// # lock_memory::example(async |locks| {
    /// let catalog = locks.rw_lock("catalog")?;
    /// Owner::new()
    ///     .scope(async {
    ///         catalog.write().lock().await?;
    ///         catalog.read().lock().await?; // the same owner: without the server
    ///         catalog.write().unlock().await?; // others may read from here on, and no one has written in between
    ///         catalog.read().unlock().await
    ///     })
    ///     .await
    /// # });
    /// ```
    pub fn write(&self) -> Arc<dyn DistributedLock> {
        Arc::clone(&self.write)
    }
}
