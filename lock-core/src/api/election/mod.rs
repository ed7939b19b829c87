//! Leader election: a lock whose holder shows a value, and a view of it for all clients.

mod leadership;
mod observe;
mod run;

use std::sync::Arc;
use std::time::Duration;

use crate::api::client::LockClient;
use crate::api::lock::{DistributedLock, endless_wait_ended};
use crate::api::options::LockOptions;
use crate::api::reentrant::ReentrantLock;
use crate::spi::{Mode, Wait};
use crate::types::{ErrorKind, HolderInfo, LockError, LockName, Operation, Owner};

pub use leadership::{Leadership, Leading};
pub use observe::LeaderWatch;

/// An election: of all candidates, at most one leads at any time.
///
/// An election is the lock of that name: `election("scheduler")` and `mutex("scheduler")` exclude each other. A
/// candidate waits in the lock's queue, a leader holds the lock, and its term is the fencing token. What a leader adds
/// is a value, such as its address, which all clients can [observe](Election::observe).
///
/// ```
/// # use std::time::Duration;
/// # lock_memory::example(async |locks| {
/// let election = locks.election("scheduler")?;
/// let leadership = election.campaign("10.0.0.7:8080").await?; // waits until it leads
/// assert!(leadership.term().is_some());
///
/// let leader = election.observe().await?.leader(); // without being a candidate
/// assert_eq!(leader.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
///
/// leadership.resign().await?;
/// # Ok(()) });
/// ```
#[derive(Debug, Clone)]
#[must_use = "an election does nothing until a client campaigns or observes"]
pub struct Election {
    lock: ReentrantLock,
    value: String,
    interval: Duration,
}

/// How often an observer asks the server by default.
const INTERVAL: Duration = Duration::from_secs(1);

/// The most bytes of a value: servers store it with the lock, and send it with each answer.
const LONGEST_VALUE: usize = 1024;

impl LockClient {
    /// Returns the election called `name`, in which of all candidates at most one leads. It is the lock of that name: an
    /// election and a mutex of one name exclude each other.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let leadership = locks.election("scheduler")?.campaign("10.0.0.7:8080").await?;
    /// assert!(leadership.is_leading());
    /// leadership.resign().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`]; [`ErrorKind::Closed`] after [`LockClient::close`].
    pub fn election(&self, name: impl AsRef<str>) -> Result<Election, LockError> {
        let lock = self.lock_in(Mode::Exclusive, name, LockOptions::new())?;
        Ok(Election { lock, value: String::new(), interval: INTERVAL })
    }
}

impl Election {
    /// Sets the value with which [`Election::run`] campaigns; none by default.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?.with_value("10.0.0.7:8080");
    /// let seen = election.run(async |_| election.observe().await.map(|watch| watch.leader())).await??;
    /// assert_eq!(seen.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
    /// # Ok(()) });
    /// ```
    pub fn with_value(mut self, value: impl Into<String>) -> Self {
        self.value = value.into();
        self
    }

    /// Sets how often [`Election::observe`] asks the server; one second by default.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let watch = locks.election("scheduler")?.with_interval(Duration::from_secs(5)).observe().await?;
    /// assert_eq!(watch.interval(), Duration::from_secs(5));
    /// # Ok(()) });
    /// ```
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Returns the name of the election.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// assert_eq!(locks.election("scheduler")?.name().as_str(), "scheduler");
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> &LockName {
        self.lock.of_client.name()
    }

    /// Waits until this candidate leads. Until then, the server shows `value` with the candidates that wait, where it shows
    /// them, and from then on as the leader's.
    ///
    /// The value has at most 1024 bytes; an empty one is the same as none.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("10.0.0.7:8080").await?;
    /// let second = tokio::time::timeout(Duration::from_millis(10), election.campaign("10.0.0.8:8080"));
    /// assert!(second.await.is_err()); // a candidate that gives up
    /// leadership.resign().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a longer value; [`ErrorKind::Unsupported`] for a value on a backend that [cannot
    /// show it](crate::Capabilities::describing), before anything is sent; and those of
    /// [`DistributedLock::acquire_as`](crate::DistributedLock::acquire_as).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    pub async fn campaign(&self, value: impl Into<String>) -> Result<Leadership, LockError> {
        let led = self.campaign_until(value.into(), Wait::Forever).await?;
        led.ok_or_else(|| self.lock.of_client.about(endless_wait_ended(self.name())))
    }

    /// Like [`campaign`](Self::campaign), but waits at most `duration`, and fails with [`ErrorKind::Busy`] when another
    /// candidate leads, or comes before this one, all that time. Zero tries once.
    ///
    /// A server that does not answer gets one second for its first answer, however short `duration` is.
    ///
    /// ```
    /// # use lock_core::ErrorKind;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign_for("10.0.0.7:8080", Duration::from_secs(2)).await?;
    /// let error = election.campaign_for("10.0.0.8:8080", Duration::ZERO).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// leadership.resign().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`], and the same as [`campaign`](Self::campaign).
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the candidate.
    pub async fn campaign_for(
        &self,
        value: impl Into<String>,
        duration: Duration,
    ) -> Result<Leadership, LockError> {
        let wait = Wait::within(duration, self.lock.of_client.clock().now());
        let led = self.campaign_until(value.into(), wait).await?;
        led.ok_or_else(|| self.lock.busy())
    }

    /// Returns `None` when this candidate does not lead in time.
    async fn campaign_until(&self, value: String, wait: Wait) -> Result<Option<Leadership>, LockError> {
        let info = self.info(value)?;
        let mut lock = self.lock.clone();
        let options = Arc::make_mut(&mut lock.acquisition.options);
        options.holder = info;
        // A leader may change its value, which the one after it must not inherit.
        options.local_handoff = None;
        options.is_term = true;
        self.lock.of_client.metrics_in(Mode::Exclusive).leads(0.0, 0);
        let guard = lock.acquire_guard(Owner::new(), wait).await?;
        Ok(guard.map(|guard| Leadership::new(self.clone(), guard)))
    }

    /// What the server shows of a candidate with this value.
    fn info(&self, value: String) -> Result<Arc<HolderInfo>, LockError> {
        let error = |kind| LockError::new(kind, Operation::Describe).on(self.name());
        if value.len() > LONGEST_VALUE {
            return Err(error(ErrorKind::InvalidOption)
                .because(format!("the value has {} bytes, more than {LONGEST_VALUE}", value.len()))
                .remedy("store long data elsewhere and publish its location"));
        }
        let capabilities = self.lock.client.capabilities();
        if !value.is_empty() && !capabilities.describing {
            return Err(error(ErrorKind::Unsupported)
                .because(format!("the backend {:?} cannot show the value of a leader", capabilities.backend))
                .remedy("campaign with an empty value, or choose another backend or option"));
        }
        let mut info = HolderInfo::clone(self.lock.of_client.holder());
        info.value = Some(value).filter(|value| !value.is_empty());
        Ok(Arc::new(info))
    }
}
