//! Work that runs once for each slot of time, whichever replica comes first.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::api::guard::LockGuard;
use crate::api::lock::DistributedLock;
use crate::api::options::check_remembering;
use crate::policy::hold::Hold;
use crate::spi::{Memo, Recall, Remembered};
use crate::types::{ErrorKind, LockError, LockName, Mode, Operation};

/// Work that runs at most once for each slot among all clients: a minute, a date, the number of a batch.
///
/// Under a plain lock alone, three replicas whose clocks differ by more than the work takes run it three times, one after the
/// other. Here the server remembers each slot, so the second replica finds that the slot has run.
///
/// The slot is taken before the work begins. **Work that fails, or whose process dies, is not repeated**: run it again with
/// another slot, such as `2026-11-22 again`, or allow it with [`retry_failed`](Self::retry_failed).
///
/// ```
/// # use lock_core::LockError;
/// # lock_memory::example(async |locks| {
/// let nightly = locks.once("reports", "2026-11-22")?;
/// let ran = nightly.run(async |_| Ok::<_, LockError>("sent")).await?;
/// let again = nightly.run(async |_| Ok::<_, LockError>("sent twice")).await?;
/// assert_eq!((ran, again), (Some("sent"), None));
/// # Ok(()) });
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing runs until `run` is called"]
pub struct Once {
    client: LockClient,
    lock: Arc<dyn DistributedLock>,
    memo: Memo,
    keep: Duration,
    /// Whether work is repeated until it has succeeded: the server learns of the slot then, and not before the work begins.
    retries_failed: bool,
}

/// How long a slot is remembered by default.
const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

impl LockClient {
    /// Returns work that runs at most once for `slot` among all clients: a minute, a date, the number of a batch. It runs under
    /// the lock called `name`.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// let minute = locks.once("poll the mailbox", "2026-11-22 12:07")?;
    /// match minute.run(async |_| Ok::<_, LockError>(3)).await? {
    ///     Some(messages) => println!("{messages} messages"),
    ///     None => println!("another replica has done it"),
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the backend [cannot remember](crate::Capabilities::remembering) the slot;
    /// [`ErrorKind::InvalidOption`] for an empty slot or one of more than 200 bytes; [`ErrorKind::InvalidName`];
    /// [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn once(&self, name: impl AsRef<str>, slot: impl Into<String>) -> Result<Once, LockError> {
        let (lock, memo) = (self.mutex(&name)?, self.memo(name, slot)?);
        if memo.slot().is_empty() {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Remember)
                .on(lock.name())
                .at(self.server())
                .because("the slot is empty")
                .remedy("name what is to run once, such as a date or a minute"));
        }
        Ok(Once { client: self.clone(), lock, memo, keep: KEEP, retries_failed: false })
    }

    /// Makes the server remember a slot of a lock for `keep`, unless it remembers the slot already.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the server cannot remember;
    /// [`ErrorKind::InvalidName`] and
    /// [`ErrorKind::InvalidOption`]; others when the outcome is not known.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the server may or may not remember the slot.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub async fn remember(
        &self,
        name: impl AsRef<str>,
        slot: impl Into<String>,
        keep: Duration,
    ) -> Result<Remembered, LockError> {
        self.take_slot(&self.memo(name, slot)?, keep).await
    }

    /// Returns for how much longer the server remembers a slot of the [work](Self::once) called `name`: it has run, or runs; `None` if
    /// the slot is free. The empty slot is the pause that [`at_least`](crate::LockOptions::at_least) keeps.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// locks.once("reports", "2026-11-22")?.run(async |_| Ok::<_, LockError>(())).await?;
    /// assert!(locks.remembered("reports", "2026-11-22").await?.is_some());
    /// assert!(locks.remembered("reports", "2026-11-23").await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the backend [cannot remember](crate::Capabilities::remembering);
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::InvalidOption`] for a slot of more than 200 bytes; [`ErrorKind::Unreachable`].
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn remembered(
        &self,
        name: impl AsRef<str>,
        slot: impl Into<String>,
    ) -> Result<Option<Duration>, LockError> {
        self.recall(&self.memo(name, slot)?, Recall::Look).await
    }

    /// Makes the server forget a slot, so that its work may run again, or the pause of the empty slot. Returns whether it was remembered.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.once("reports", "2026-11-22")?;
    /// nightly.run(async |_| Ok::<_, LockError>(())).await?;
    /// assert!(locks.forget("reports", "2026-11-22").await?);
    /// assert!(nightly.run(async |_| Ok::<_, LockError>(())).await?.is_some());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`remembered`](Self::remembered).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the slot may or may not be forgotten.
    pub async fn forget(&self, name: impl AsRef<str>, slot: impl Into<String>) -> Result<bool, LockError> {
        Ok(self.recall(&self.memo(name, slot)?, Recall::Forget).await?.is_some())
    }

    fn memo(&self, name: impl AsRef<str>, slot: impl Into<String>) -> Result<Memo, LockError> {
        let name = self.full_name(name)?;
        let about = |error: LockError| error.on(&name).at(self.server());
        check_remembering(self.capabilities()).map_err(about)?;
        Memo::new(name.clone(), self.capabilities().names.apply(&name), slot).map_err(about)
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        let asked = memo.clone();
        let recalled = self.on_engine(Operation::Remember, move |context| async move {
            context.backend.recall(&asked, recall).await
        });
        recalled.await.map_err(|error| error.on(memo.name()))
    }

    /// Makes the server remember a slot.
    pub(super) async fn take_slot(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let asked = memo.clone();
        let remembered = self.on_engine(Operation::Remember, move |context| async move {
            context.backend.remember(&asked, keep).await
        });
        remembered.await.map_err(|error| error.on(memo.name()))
    }
}

impl Once {
    /// Sets how long the server remembers the slot; 24 hours by default. It has to be longer than the time by which the last
    /// replica may be late, with its wait for the lock: while another run of the name lasts. The server measures it, and may remember the slot a little longer. [`Duration::MAX`] is for ever: no
    /// server forgets the slot within a thousand years.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let minute = locks.once("poll", "12:07")?.keep(Duration::from_secs(3600));
    /// minute.run(async |_| Ok::<_, LockError>(())).await?;
    /// # Ok(()) });
    /// ```
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// Lets work that has failed, or whose process has died, run again for its slot: the server learns of the slot when the
    /// work has succeeded, and not before it begins. **Work may then run more than once for a slot**, one run after the other:
    /// also where it has succeeded, and its process died before the server knew.
    ///
    /// All replicas have to ask for it: another one takes the slot before its work.
    ///
    /// ```
    /// # use lock_core::{ErrorKind, LockError, Operation};
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.once("reports", "2026-11-22")?.retry_failed();
    /// let fails = async |_| Err::<(), _>(LockError::new(ErrorKind::Internal, Operation::Hold));
    /// assert!(nightly.run(fails).await.is_err());
    /// assert!(nightly.run(async |_| Ok::<_, LockError>(())).await?.is_some());
    /// assert!(nightly.run(async |_| Ok::<_, LockError>(())).await?.is_none());
    /// # Ok(()) });
    /// ```
    pub fn retry_failed(mut self) -> Self {
        self.retries_failed = true;
        self
    }

    /// Returns the name of the work.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.once("reports", "2026-11-22")?.name().as_str(), "reports");
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> &LockName {
        self.lock.name()
    }

    /// Runs `body`, unless it has run for this slot before, at any client; then returns `None`.
    ///
    /// It runs under the lock of the same name, so that two slots never run at the same time: while another one runs, this call
    /// waits. [`with_lock`](DistributedLock#method.with_lock) says what a loss does to the body.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.once("reports", "2026-11-22")?;
    /// match nightly.run(async |hold| Ok::<_, LockError>(hold.token())).await? {
    ///     Some(token) => println!("sent, with the fencing token {token:?}"),
    ///     None => println!("another replica has sent them"),
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Before the body runs: [`ErrorKind::InvalidOption`] for a time of zero in [`keep`](Self::keep), the errors of
    /// [`DistributedLock::acquire`], and those of the server. If the server's answer is lost, the slot may be taken although the
    /// body has not run. Then the same as for `with_lock`; with [`retry_failed`](Self::retry_failed) also those of
    /// [`succeeded`](Self::succeeded).
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background. The slot stays taken once the body has begun,
    /// and may be taken before.
    pub async fn run<T, E, F>(&self, body: impl FnOnce(Hold) -> F) -> Result<Option<T>, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        self.checked()?.with_lock(async |hold| self.unless_taken(hold, body).await).await
    }

    /// Like [`run`](Self::run), but waits at most `duration` while another slot runs.
    ///
    /// ```
    /// # use lock_core::{ErrorKind, LockError};
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let _running = locks.mutex("poll")?.acquire().await?; // as another slot does
    /// let next = locks.once("poll", "12:08")?;
    /// let error = next.run_within(Duration::from_millis(10), async |_| Ok::<_, LockError>(())).await;
    /// assert_eq!(error.unwrap_err().kind(), ErrorKind::Busy);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as for `run`; [`ErrorKind::Busy`] when another run holds the lock all that time, of this slot or of another.
    ///
    /// # Cancel safety
    /// Same as for `run`.
    pub async fn run_within<T, E, F>(
        &self,
        duration: Duration,
        body: impl FnOnce(Hold) -> F,
    ) -> Result<Option<T>, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        self.checked()?.with_lock_for(duration, async |hold| self.unless_taken(hold, body).await).await
    }

    /// Waits for the lock and takes the slot, for work that is no body: `None` when it has run for this slot before. With
    /// [`retry_failed`](Self::retry_failed) the slot is taken by [`succeeded`](Self::succeeded).
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.once("reports", "2026-11-22")?;
    /// if let Some(guard) = nightly.acquire().await? {
    ///     // … the work …
    ///     guard.release().await?;
    /// }
    /// assert!(nightly.acquire().await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Those of [`run`](Self::run) before its body runs.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background. The slot may be taken.
    pub async fn acquire(&self) -> Result<Option<LockGuard>, LockError> {
        let guard = self.checked()?.acquire().await?;
        self.unless_run(guard).await
    }

    /// Like [`acquire`](Self::acquire), but waits at most `duration` while another slot runs.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// # use std::time::Duration;
    /// let nightly = locks.once("reports", "2026-11-22")?;
    /// if let Some(guard) = nightly.acquire_for(Duration::from_secs(2)).await? {
    ///     // … the work …
    ///     guard.release().await?;
    /// }
    /// assert!(nightly.acquire_for(Duration::from_secs(2)).await?.is_none()); // it has run
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as for `acquire`; [`ErrorKind::Busy`] when another run holds the lock all that time, of this slot or of another.
    ///
    /// # Cancel safety
    /// Same as for `acquire`.
    pub async fn acquire_for(&self, duration: Duration) -> Result<Option<LockGuard>, LockError> {
        let guard = self.checked()?.acquire_for(duration).await?;
        self.unless_run(guard).await
    }

    /// Takes the slot of work that has succeeded, for [`retry_failed`](Self::retry_failed) and [`acquire`](Self::acquire). Call
    /// it before the guard is released: then no other run comes between.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let nightly = locks.once("reports", "2026-11-22")?.retry_failed();
    /// if let Some(guard) = nightly.acquire().await? {
    ///     // … the work …
    ///     nightly.succeeded().await?;
    ///     guard.release().await?;
    /// }
    /// assert!(nightly.acquire().await?.is_none());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Those of the server. The work has run, and may run again for its slot.
    ///
    /// # Cancel safety
    /// If the future is dropped, the slot may or may not be taken.
    pub async fn succeeded(&self) -> Result<(), LockError> {
        self.client.take_slot(&self.memo, self.keep).await.map(drop)
    }

    /// Takes the slot under the lock. If it has run, the lock is released in the background.
    async fn unless_run(&self, guard: LockGuard) -> Result<Option<LockGuard>, LockError> {
        if !self.takes_slot().await? {
            return Ok(None);
        }
        match guard.hold().loss() {
            // The slot is taken, and the work would not be alone.
            Some(reason) => {
                Err(LockError::lost(Operation::Acquire, self.name(), reason).at(self.client.server()))
            }
            None => Ok(Some(guard)),
        }
    }

    async fn unless_taken<T, E, F>(&self, hold: Hold, body: impl FnOnce(Hold) -> F) -> Result<Option<T>, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        if !self.takes_slot().await? {
            return Ok(None);
        }
        let done = body(hold).await?;
        if self.retries_failed {
            self.succeeded().await?;
        }
        Ok(Some(done))
    }

    /// Returns whether the work is to run: the slot was free, and is now taken if this is the time for it.
    async fn takes_slot(&self) -> Result<bool, LockError> {
        let is_free = if self.retries_failed {
            self.client.recall(&self.memo, Recall::Look).await?.is_none()
        } else {
            self.client.take_slot(&self.memo, self.keep).await? == Remembered::Now
        };
        if !is_free {
            self.client.client.context.metrics.of(self.name(), Mode::Exclusive).skipped();
        }
        Ok(is_free)
    }

    /// Returns the lock, unless a slot cannot be remembered for so long.
    fn checked(&self) -> Result<&dyn DistributedLock, LockError> {
        if !self.keep.is_zero() {
            return Ok(&*self.lock);
        }
        Err(LockError::new(ErrorKind::InvalidOption, Operation::Remember)
            .on(self.name())
            .because("the time to remember a slot is zero")
            .remedy("keep a slot for longer than the last replica may be late"))
    }
}
