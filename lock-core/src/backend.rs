//! What a backend author writes.
//!
//! A [`Backend`] is a protocol and little else: how one attempt is made at the server, undone, renewed and released.
//! Everything that is the same for all servers is done by the core, once: the local mutex, the deadline of a wait,
//! retries and back-off, giving late grants back, the validity of a lease, telling the holder.
//!
//! # The rules
//! 1. **An attempt is idempotent by its [`AttemptId`].** Sent twice, it holds once. After an error that left the outcome
//!    unknown the core calls [`Backend::acquire`] again with the same request, or [`Backend::cancel`].
//! 2. **Every future may be dropped at every await.** After the core has dropped an `acquire` it calls `cancel` with the
//!    same request, until that answers `Ok`; then nothing of the attempt may be left, nor come later.
//! 3. **`cancel` undoes whatever happened**: nothing, a place in the queue, a grant.
//! 4. **Say [`Signals::queued`] when the server has confirmed that someone else holds the lock** and that the attempt
//!    waits. A wait that ends without that having been said is reported as unreachable, because nobody knows
//!    whether the lock was free.
//! 5. **The anchor of a lease is the moment before the request was sent** that the server answered with the lease.
//! 6. **Requests are bounded.** A server that does not answer is an error after the backend's own request timeout, with
//!    the exception of `acquire` while it is queued.
//! 7. **A first poll is quick.** That of `acquire`, `cancel` and `release` runs on the thread of whoever calls, with the
//!    engine's runtime entered; anything that blocks goes elsewhere. Everything else runs on the engine.
//! 8. **The number of a group that is lost is not used again.** Whatever is granted in it later is lost too.
//!
//! `docs/backends/writing-one.md` goes through the in-memory backend as a worked example.

use std::any::Any;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::capabilities::Capabilities;
use crate::clock::Moment;
use crate::error::LockError;
use crate::hold::LossReason;
use crate::name::{LockName, PhysicalName};
use crate::signals::Signals;
use crate::status::{Broken, HolderId, HolderInfo, LockStatus};
use crate::token::FencingToken;

pub use crate::host::Host;

/// One backend: a protocol to a server. See the module's documentation for the rules.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the backend remembers of a grant, to renew and release it.
    type Lease: fmt::Debug + Send + Sync + 'static;

    /// What this backend can do.
    fn capabilities(&self) -> &Capabilities;

    /// Makes one attempt: `Some` when the lock is granted, `None` when it is not to be had now.
    ///
    /// With [`Wait::Try`] that is the answer. With the others the core ends the wait by itself when the time is up, so
    /// `None` before that means that this attempt has come to nothing (its place in the queue is gone): the core cancels
    /// it and begins anew, with a new id, and with the place that the backend [kept](Signals::keep_place).
    ///
    /// # Cancel safety
    /// May be dropped at every await; the core then calls [`Backend::cancel`] with the same request.
    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Self::Lease>>, LockError>;

    /// Undoes the attempt, whatever came of it. Called again until it answers `Ok`.
    ///
    /// # Cancel safety
    /// Dropped only when the engine ends: what it had not undone then is left to the server.
    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError>;

    /// Renews leases of one group, and answers for each in the same order. Never called twice at once for a group.
    ///
    /// The core takes the time before it calls; that is the anchor of each lease that is answered [`LeaseState::Held`].
    ///
    /// # Cancel safety
    /// Dropped when it takes longer than the interval between renewals, and called again: a renewal that arrives although
    /// nobody waits for its answer must do no harm.
    async fn renew(&self, group: GroupId, leases: &[Arc<Self::Lease>]) -> Result<Vec<LeaseState>, LockError>;

    /// Releases a lease, if the server still has it for this owner; called again after an error. The core gives up when the
    /// lease is over, and only where [what is left behind ends by itself](Capabilities::leftovers_last). Where it does not, a
    /// lease of a session that has ended is answered with [`Released::WasLost`].
    ///
    /// # Cancel safety
    /// Dropped only when the engine ends: a lease that was not released then ends by itself.
    async fn release(&self, lease: &Self::Lease) -> Result<Released, LockError>;

    /// Tells who holds the lock and who waits for it.
    ///
    /// # Cancel safety
    /// May be dropped at every await, when the user drops the call; it changes nothing.
    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError>;

    /// Takes the lock away from `holder`, if that is who holds it.
    ///
    /// # Cancel safety
    /// May be dropped at every await, when the user drops the call; it has then taken the lock away, or not.
    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError>;

    /// Ends connections and background work. Nobody waits any more, and the release of everything that was held has been
    /// answered or at least sent.
    ///
    /// # Cancel safety
    /// Dropped when it takes longer than a second; the engine ends what is left of it.
    async fn close(&self) {}
}

/// A random 128-bit number that a client gives to one attempt, so that the server can tell it from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId(u128);

impl AttemptId {
    /// An id with this number.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for AttemptId {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// How a lock is shared. Exclusive is what there is today; the others are reserved for the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
    /// Several holders at a time, none of them exclusive.
    Shared,
    /// Some of a fixed number of permits.
    Permits {
        /// How many permits this acquisition takes.
        take: NonZeroU32,
        /// How many there are.
        of: NonZeroU32,
    },
}

/// How long an acquisition may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: once, at most a round trip to the server.
    Try,
    /// Until a moment of the client's clock.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    /// Waiting for `duration` from `now` on: zero is [`Wait::Try`], what exceeds the clock is [`Wait::Forever`].
    pub fn within(duration: Duration, now: Moment) -> Self {
        match now.plus(duration) {
            _ if duration.is_zero() => Self::Try,
            Moment::FOREVER => Self::Forever,
            deadline => Self::Until(deadline),
        }
    }

    /// The moment at which the wait ends.
    pub(crate) fn deadline(self) -> Moment {
        match self {
            Self::Try => Moment::from_nanoseconds(0),
            Self::Until(moment) => moment,
            Self::Forever => Moment::FOREVER,
        }
    }
}

/// One attempt at a lock.
#[derive(Debug)]
pub struct AcquireRequest {
    pub(crate) id: AttemptId,
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
    pub(crate) mode: Mode,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) signals: Signals,
}

impl AcquireRequest {
    /// A request of one's own, to test a backend without the core.
    pub fn new(
        id: AttemptId,
        name: LockName,
        physical: PhysicalName,
        wait: Wait,
        holder: Arc<HolderInfo>,
    ) -> Self {
        Self { id, name, physical, mode: Mode::Exclusive, holder, signals: Signals::new(wait) }
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.id
    }

    /// The lock, as the user calls it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock, as the server knows it.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }

    /// How the lock is to be shared.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Who asks, for people who inspect the lock.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.holder
    }

    /// How long the attempt may wait. [`Wait::Try`] stays what it is. **The others may grow while the attempt waits**,
    /// because an attempt passes from one local waiter to the next: whoever gives it to a server as a bound reads it
    /// again when the bound is reached.
    pub fn wait(&self) -> Wait {
        self.signals.wait()
    }

    /// The [place](Signals::keep_place) that an earlier attempt of the same waiter had in the server's queue and lost, so
    /// that a short loss of contact does not send the waiter to the end of the queue. What the number means is the
    /// backend's business.
    pub fn place(&self) -> Option<NonZeroU64> {
        self.signals.place()
    }

    /// By which the backend tells the core what becomes of the attempt, and of the hold that comes of it.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }
}

/// A lock to look at.
#[derive(Debug, Clone)]
pub struct InspectRequest {
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
}

impl InspectRequest {
    /// A request of one's own, to test a backend without the core.
    pub fn new(name: LockName, physical: PhysicalName) -> Self {
        Self { name, physical }
    }

    /// The lock, as the user calls it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock, as the server knows it.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }
}

/// What is renewed together: a connection, a session. The backend gives out the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

impl GroupId {
    /// A group with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A lock that the server has given.
#[derive(Debug)]
pub struct Grant<L> {
    pub(crate) lease: L,
    pub(crate) group: GroupId,
    pub(crate) term: Term,
    pub(crate) token: Option<FencingToken>,
    #[cfg(unix)]
    pub(crate) descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

impl<L> Grant<L> {
    /// A grant: what the backend needs to renew and release it, with which others it is renewed, and how long it is good
    /// for.
    pub fn new(lease: L, group: GroupId, term: Term) -> Self {
        Self {
            lease,
            group,
            term,
            token: None,
            #[cfg(unix)]
            descriptor: None,
        }
    }

    /// Adds the fencing token, minted by the server in the acquiring round trip.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds a descriptor that keeps the lock held for as long as any process has it open, for a child to inherit.
    #[cfg(unix)]
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: Arc<std::os::fd::OwnedFd>) -> Self {
        self.descriptor = Some(descriptor);
        self
    }

    /// The lease, to test a backend without the core.
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// The fencing token, if there is one.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// How long the grant is good for.
    pub fn term(&self) -> Term {
        self.term
    }

    fn erase(self) -> Grant<AnyLease>
    where
        L: Send + Sync + 'static,
    {
        Grant {
            lease: Arc::new(self.lease) as AnyLease,
            group: self.group,
            term: self.term,
            token: self.token,
            #[cfg(unix)]
            descriptor: self.descriptor,
        }
    }
}

/// How long a grant is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Until its end is reported through [`Signals::lost`]; it is not renewed.
    UntilReported,
    /// For `length` from `anchor` on, and again from each renewal on.
    Leased {
        /// The moment before the acquiring request was sent.
        anchor: Moment,
        /// How long the server keeps the lock without a renewal.
        length: Duration,
    },
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease is ours, and has been extended: it lasts from the moment before the call.
    Held,
    /// The lease is ours, and lasts from this moment, for backends that know better than the core what their server's
    /// answer is worth. It never shortens what was known before.
    HeldFrom(Moment),
    /// The lease is gone.
    Lost(LossReason),
    /// It could not be found out.
    Unknown,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lease was ours until now.
    Clean,
    /// The lease was not ours any more. The core believes that only of the first request that was sent: on a repeated one it
    /// means that an earlier one arrived.
    WasLost(LossReason),
}

/// A lease whose type the core has forgotten.
pub(crate) type AnyLease = Arc<dyn Any + Send + Sync>;

/// A backend whose type of lease the core has forgotten.
#[async_trait]
pub(crate) trait AnyBackend: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> &Capabilities;
    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<AnyLease>>, LockError>;
    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError>;
    async fn renew(&self, group: GroupId, leases: &[AnyLease]) -> Result<Vec<LeaseState>, LockError>;
    async fn release(&self, lease: &AnyLease) -> Result<Released, LockError>;
    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError>;
    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError>;
    async fn close(&self);
}

/// Forgets the type of a backend's lease.
#[derive(Debug)]
pub(crate) struct Erased<B>(pub(crate) B);

impl<B: Backend> Erased<B> {
    fn recall(lease: &AnyLease) -> Result<Arc<B::Lease>, LockError> {
        Arc::clone(lease).downcast().map_err(|_| {
            LockError::new(crate::ErrorKind::Internal, crate::Operation::Renew)
                .because("a lease of another backend was handed in")
        })
    }
}

#[async_trait]
impl<B: Backend> AnyBackend for Erased<B> {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<AnyLease>>, LockError> {
        Ok(self.0.acquire(request).await?.map(Grant::erase))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.0.cancel(request).await
    }

    async fn renew(&self, group: GroupId, leases: &[AnyLease]) -> Result<Vec<LeaseState>, LockError> {
        let leases = leases.iter().map(Self::recall).collect::<Result<Vec<_>, _>>()?;
        self.0.renew(group, &leases).await
    }

    async fn release(&self, lease: &AnyLease) -> Result<Released, LockError> {
        self.0.release(&*Self::recall(lease)?).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        self.0.inspect(request).await
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        self.0.break_holder(request, holder).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
