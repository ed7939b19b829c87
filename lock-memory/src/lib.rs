//! The reference backend: locks in the memory of one process.
//!
//! Backend authors read it first: it uses nothing of the core but the public SPI. Tests use it instead of a server, and the
//! core itself is tested with it: with the feature `testing`, a test can make the "server" fail, delay, drop replies, expire,
//! delete and steal.
//!
//! # How it holds the lock
//! A [`MemoryServer`] has a table of locks and semaphores; each has holders and a queue, with the rules of [`lock_kit::Shares`]. The
//! critical section in which a holder or a waiter leaves also grants the lock to the head of the queue and to all that
//! can hold it together with it, which are then woken. Fencing tokens count up from 1 for the whole server.
//!
//! # How a loss is noticed
//! Without a lease the server notifies the holder through its [`AcquireRequest`]. With `?lease=` the server does not notify
//! the holder, which notices the loss at its next renewal, or at its own deadline, as with a network server.
//!
//! # What happens at each failure
//! * *Unknown outcome* (a dropped reply): the repeated request finds its own grant by the attempt's id.
//! * *Expired lease*: the server ends the hold when its lease ends by its clock, and grants the lock to those that wait.
//! * *Dropped future*: the place in the queue, or the grant, stays until the core calls `cancel`, which removes it.
//! * *Dead waiter*: a waiter dies only with the process, and the server dies with it.
#![forbid(unsafe_code)]

mod client;
#[cfg(feature = "testing")]
pub mod faults;
mod memos;
#[cfg(not(feature = "testing"))]
mod no_faults;
mod server;
#[cfg(test)]
mod wakers;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Clock, Downgraded,
    Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection, LeaseState, Leasing,
    LockError, LockName, LockStatus, Memo, Moment, NameRules, Operation, PermitLimits, Reach, Recall,
    Released, Remembered, Reserving, Term, Updated, Wait,
};

#[cfg(feature = "testing")]
use faults::Faults;
use faults::Outage;
#[cfg(not(feature = "testing"))]
use no_faults as faults;
use server::{Fate, Requested, Server};

pub use client::DRIVER;
#[doc(hidden)]
pub use client::example;
#[cfg(feature = "testing")]
pub use server::{Loss, Told};

/// A lock server in this process. It is cheap to clone; all clones are the same server.
///
/// ```
/// use lock_memory::MemoryServer;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let server = MemoryServer::new();
/// let (ours, theirs) = (server.client()?, server.client()?);
///
/// let guard = ours.mutex("orders/42")?.acquire().await?;
/// assert!(theirs.mutex("orders/42")?.try_acquire().await?.is_none());
/// guard.release().await?;
/// assert!(theirs.mutex("orders/42")?.try_acquire().await?.is_some());
/// # Ok::<(), lock_core::LockError>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct MemoryServer(Arc<Server>);

impl MemoryServer {
    /// Creates a server that uses the system clock.
    #[allow(clippy::new_without_default, reason = "two servers are never equal")]
    pub fn new() -> Self {
        Self::with_clock(Clock::system())
    }

    /// Creates a server whose leases are measured with `clock`.
    ///
    /// ```
    /// # use lock_memory::{MemoryOptions, MemoryServer};
    /// # use lock_core::*;
    /// # use std::time::Duration;
    /// # lock_memory::example(async |_| {
    /// let (clock, time) = Clock::manual();
    /// let server = MemoryServer::with_clock(clock.clone());
    /// let lease = MemoryOptions::new().lease(Duration::from_secs(30));
    /// let locks = server.client_with(lease, ClientBuilder::new().clock(clock))?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// server.faults().sever();
    /// time.advance(Duration::from_secs(30));
    /// assert_eq!(guard.lost().await, Some(LossReason::Expired));
    /// # Ok(()) });
    /// ```
    pub fn with_clock(clock: Clock) -> Self {
        Self(Server::new(clock))
    }

    /// Returns the server that every `memory:name` URL of this process refers to.
    ///
    /// ```
    /// # use lock_core::ClientBuilder;
    /// # use lock_kit::LockUrl;
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |_| {
    /// let locks = (lock_memory::DRIVER.connect)(LockUrl::parse("memory:billing")?, ClientBuilder::new()).await?;
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(MemoryServer::named("billing").len(), 1);
    /// # Ok(()) });
    /// ```
    pub fn named(name: &str) -> Self {
        static SERVERS: LazyLock<Mutex<HashMap<String, MemoryServer>>> = LazyLock::new(Mutex::default);
        SERVERS.lock().entry(name.to_owned()).or_insert_with(Self::new).clone()
    }

    /// The clock that measures leases.
    pub(crate) fn clock(&self) -> &Clock {
        self.0.clock()
    }

    /// Creates the backend of a client of this server, for a [builder](lock_core::ClientBuilder) that a program calls itself.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](lock_core::ErrorKind::InvalidOption) when the lease is too short for the abort margin.
    pub fn backend(
        &self,
        options: MemoryOptions,
        context: BackendContext,
    ) -> Result<MemoryBackend, LockError> {
        options.lease.map_or(Ok(()), |lease| context.check_lease(lease))?;
        let mut capabilities = capabilities();
        capabilities.pipelining = options.pipelining;
        capabilities.leftovers_last = options.lease;
        Ok(MemoryBackend {
            server: Arc::clone(&self.0),
            context,
            options,
            capabilities,
            group: GroupId::new(0),
        })
    }

    /// Returns how many locks are held or waited for.
    ///
    /// ```
    /// # use lock_core::*;
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |_| {
    /// let server = MemoryServer::new();
    /// let guard = server.client()?.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(server.len(), 1);
    /// guard.release().await?;
    /// assert!(server.is_empty());
    /// # Ok(()) });
    /// ```
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no lock is held or waited for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many waiters the lock has at the server.
    ///
    /// ```
    /// # use lock_core::*;
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |_| {
    /// # let server = MemoryServer::new();
    /// # let held = server.client()?.mutex("orders/42")?.acquire().await?;
    /// # let lock = server.client()?.mutex("orders/42")?;
    /// let (acquired, released) = tokio::join!(lock.acquire(), async {
    ///     while server.waiting_for(lock.name()) == 0 {
    ///         tokio::task::yield_now().await;
    ///     }
    ///     held.release().await
    /// });
    /// # (acquired?, released?);
    /// # Ok(()) });
    /// ```
    pub fn waiting_for(&self, name: &LockName) -> usize {
        self.0.waiting_for(&capabilities().names.apply(name))
    }
}

/// What a test does to the server. Needs the feature `testing`.
#[cfg(feature = "testing")]
impl MemoryServer {
    /// Returns the faults of the server, to inject new ones.
    pub fn faults(&self) -> &Faults {
        self.0.faults()
    }

    /// Takes a lock from its holder as `loss` says. Returns whether the lock was held.
    ///
    /// ```
    /// # use lock_core::*;
    /// # use lock_memory::{Loss, MemoryServer, Told};
    /// # lock_memory::example(async |_| {
    /// let server = MemoryServer::new();
    /// let guard = server.client()?.mutex("orders/42")?.acquire().await?;
    /// assert!(server.lose(guard.hold().name(), Loss::Steal, Told::AtOnce));
    /// assert_eq!(guard.lost().await, Some(LossReason::Taken));
    /// # Ok(()) });
    /// ```
    pub fn lose(&self, name: &LockName, loss: Loss, told: Told) -> bool {
        self.0.lose(&capabilities().names.apply(name), loss, told)
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemoryServer").field("locks", &self.len()).finish()
    }
}

/// Options of a client of a [`MemoryServer`].
///
/// ```
/// # use lock_core::ClientBuilder;
/// # use lock_memory::{MemoryOptions, MemoryServer, Replies};
/// # use std::time::Duration;
/// # lock_memory::example(async |_| {
/// let options = MemoryOptions::new().lease(Duration::from_secs(30)).replies(Replies::Later);
/// let locks = MemoryServer::new().client_with(options, ClientBuilder::new())?;
/// # Ok(()) });
/// ```
#[derive(Debug, Clone, Default)]
pub struct MemoryOptions {
    lease: Option<Duration>,
    #[cfg(feature = "testing")]
    replies: Replies,
    pipelining: bool,
}

/// When the server's replies arrive. Needs the feature `testing`.
#[cfg(feature = "testing")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replies {
    /// Immediately, within the first poll of a request.
    #[default]
    AtOnce,
    /// Never within the first poll, as with a server on a network.
    Later,
}

impl MemoryOptions {
    /// Creates options without a lease: a lock is held until it is released.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when replies arrive; immediately by default. Needs the feature `testing`.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn replies(mut self, replies: Replies) -> Self {
        self.replies = replies;
        self
    }

    /// Has an acquisition sent right behind a release. The server carries requests out in their order, unless
    /// [a fault](faults) delays one.
    #[must_use]
    pub fn pipelining(mut self) -> Self {
        self.pipelining = true;
        self
    }

    /// Sets a lease, which is renewed as with a network server.
    #[must_use]
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = Some(length);
        self
    }
}

fn capabilities() -> Capabilities {
    Capabilities::new("memory", Reach::Process, NameRules::new(CharacterSet::ANY, LockName::MAX_LENGTH + 64))
        .with_fencing(Fencing::WhileServerLives)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_listing()
        .with_remembering()
        .with_leasing(Leasing::PerHold { shortest: Duration::ZERO, longest: Duration::MAX })
        .with_reserving(Reserving::AtMost(NonZeroU32::MAX))
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

/// What a client remembers of a grant: its id at the server, and what became of it.
#[derive(Debug)]
pub struct MemoryLease {
    requested: Requested,
    fate: Arc<Fate>,
}

/// The backend of one client of a [`MemoryServer`].
#[derive(Debug)]
pub struct MemoryBackend {
    server: Arc<Server>,
    context: BackendContext,
    options: MemoryOptions,
    capabilities: Capabilities,
    group: GroupId,
}

impl MemoryBackend {
    fn requested(&self, request: &AcquireRequest) -> Requested {
        Requested {
            id: request.id(),
            name: request.physical().clone(),
            mode: request.mode(),
            lease: request.lease().or(self.options.lease),
        }
    }

    /// The anchor of a lease that is asked for now. Without a lease there is none, and the clock is not read.
    fn anchor(&self, requested: &Requested) -> Option<Moment> {
        requested.lease.map(|_| self.context.clock().now())
    }

    fn name_holder(&self, requested: &Requested, request: &AcquireRequest) {
        if let Some(holder) = self.server.holder(requested) {
            request.held_by(holder);
        }
    }

    fn grant(&self, requested: Requested, fate: Arc<Fate>, anchor: Option<Moment>) -> Grant<MemoryLease> {
        let term = match (requested.lease, anchor) {
            (Some(length), Some(anchor)) => Term::Leased { anchor, length },
            _ => Term::UntilReported,
        };
        let (token, sections) = (Some(fate.token()), fate.sections());
        Grant { token, sections, ..Grant::new(MemoryLease { requested, fate }, self.group, term) }
    }

    /// Runs `request` as a call to a server that may be unreachable, slow, or lose the reply.
    async fn call<T>(
        &self,
        operation: Operation,
        request: impl FnOnce(&Server) -> T,
    ) -> Result<T, LockError> {
        let fault = self.server.faults().before(operation, &self.options).await?;
        let reply = request(&self.server);
        self.server.faults().after(operation, fault).await?;
        Ok(reply)
    }
}

impl Backend for MemoryBackend {
    type Lease = MemoryLease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<MemoryLease>>, LockError> {
        let requested = self.requested(request);
        let tries_once = request.wait() == Wait::Try;
        let sent_at = self.anchor(&requested);
        let granted =
            self.call(Operation::Acquire, |server| server.request(&requested, tries_once, request)).await??;
        let (fate, anchor) = match granted {
            Some(fate) => (fate, sent_at),
            None if tries_once => {
                self.name_holder(&requested, request);
                return Ok(None);
            }
            None => {
                self.name_holder(&requested, request);
                request.queued();
                // The grant that ends the wait is made at a moment of the same clock, so that moment is the anchor.
                let granted = self.server.granted(&requested).await.map_err(Outage::into_error)?;
                let Some(fate) = granted else { return Ok(None) };
                let granted_at = fate.granted_at();
                (fate, granted_at)
            }
        };
        Ok(Some(self.grant(requested, fate, anchor)))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let requested = self.requested(request);
        self.call(Operation::Cancel, |server| server.withdraw(&requested)).await.map(drop)
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<MemoryLease>]) -> Result<Vec<LeaseState>, LockError> {
        self.call(Operation::Renew, |server| {
            leases.iter().map(|lease| server.renew(&lease.requested, &lease.fate)).collect()
        })
        .await
    }

    async fn release(&self, lease: &MemoryLease) -> Result<Released, LockError> {
        let was_held = self.call(Operation::Release, |server| server.withdraw(&lease.requested)).await?;
        Ok(if was_held { Released::Clean } else { Released::WasLost(lease.fate.reason()) })
    }

    async fn downgrade(
        &self,
        lease: &MemoryLease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<MemoryLease>, LockError> {
        let requested = self.requested(request);
        let anchor = self.anchor(&requested);
        let downgrade = |server: &Server| server.downgrade(&lease.requested, &requested, request);
        Ok(match self.call(Operation::Downgrade, downgrade).await? {
            Some(fate) => Downgraded::Shared(self.grant(requested, fate, anchor)),
            None => Downgraded::WasLost(lease.fate.reason()),
        })
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        self.call(Operation::Inspect, |server| server.inspect(request)).await
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        self.call(Operation::Inspect, Server::list).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        self.call(Operation::Break, |server| server.break_holder(request, holder)).await
    }

    async fn update_holder(&self, lease: &MemoryLease, holder: &HolderInfo) -> Result<Updated, LockError> {
        self.call(Operation::Describe, |server| server.update_holder(&lease.requested, &lease.fate, holder))
            .await
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        self.call(Operation::Remember, |server| server.memos.remember(memo, keep, server.clock())).await
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.call(Operation::Remember, |server| server.memos.recall(memo, recall, server.clock())).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        self.call(Operation::Ping, |_| ()).await
    }
}
