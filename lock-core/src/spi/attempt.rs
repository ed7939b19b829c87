//! One attempt at a lock: what a backend gets to make it, and how the backend reports to the core on it, and on the hold that it
//! leads to.

use std::fmt;
use std::future::Future;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Wake;
use std::time::Duration;

use tokio::sync::Notify;

use super::HoldOptions;
use crate::runtime::{Engine, Moment, Parked};
use crate::types::{HolderInfo, LockError, LockName, LossReason, Mode, Participant, PhysicalName};

/// A random 128-bit number that a client gives to one attempt, so that the server can distinguish it from all others.
///
/// ```
/// use lock_core::AttemptId;
///
/// let id = AttemptId::new(42);
/// assert_eq!((id.get(), id.to_string()), (42, "0000000000000000000000000000002a".to_owned()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId([u8; 16]); // not u128, which would align whatever has an id to 16 bytes

impl AttemptId {
    /// Creates an id from its number.
    pub const fn new(number: u128) -> Self {
        Self(number.to_ne_bytes())
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        u128::from_ne_bytes(self.0)
    }
}

impl fmt::Display for AttemptId {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.get())
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// How long an acquisition may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one try, which takes a round trip to the server. Where others pass through a gate of the lock for a moment, as
    /// those that take permits, it tries again, mostly for milliseconds.
    Try,
    /// Until this moment of the client's clock.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    /// Returns a wait of `duration`, starting at `now`. Zero is [`Wait::Try`]; a duration beyond the range of the clock
    /// is [`Wait::Forever`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::{Clock, Wait};
    ///
    /// let (now, second) = (Clock::system().now(), Duration::from_secs(1));
    /// assert_eq!(Wait::within(second, now), Wait::Until(now.plus(second)));
    /// assert_eq!(Wait::within(Duration::ZERO, now), Wait::Try);
    /// assert_eq!(Wait::within(Duration::MAX, now), Wait::Forever);
    /// ```
    pub fn within(duration: Duration, now: Moment) -> Self {
        match now.plus(duration) {
            _ if duration.is_zero() => Self::Try,
            Moment::FOREVER => Self::Forever,
            deadline => Self::Until(deadline),
        }
    }

    /// Returns the moment at which the wait ends.
    pub(crate) fn deadline(self) -> Moment {
        match self {
            Self::Try => Moment::from_nanoseconds(0),
            Self::Until(moment) => moment,
            Self::Forever => Moment::FOREVER,
        }
    }
}

/// What a backend reports of an attempt, or of the lease that it led to.
pub(crate) enum Report {
    Queued,
    Busy,
    Unreachable(LockError),
    HeldBy(Participant),
    Lost(LossReason),
}

/// Receives the reports on the attempts of one lock, by their numbers.
pub(crate) trait Reports: Send + Sync {
    fn report(self: Arc<Self>, attempt: u64, report: Report);
}

/// One attempt at a lock: what is asked for, and the way by which a backend reports to the core what becomes of it, and of the hold
/// that it leads to. It is cheap to clone; keep a clone where the server's messages arrive.
///
/// ```
/// use std::sync::Arc;
///
/// use lock_core::{AcquireRequest, AttemptId, CharacterSet, HolderInfo, LockName, Mode, NameRules, Wait};
///
/// let name = LockName::new("orders/42")?;
/// let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
/// let holder = Arc::new(HolderInfo::of_this_process());
/// let request = AcquireRequest::new(AttemptId::new(7), name, physical, Wait::Forever, holder);
///
/// // What a backend does with it:
/// let sent = format!("lock {} {} {}", request.physical(), request.id(), request.holder().pid);
/// assert_eq!((request.name().as_str(), request.mode(), request.place()), ("orders/42", Mode::Exclusive, None));
/// if request.wait() != Wait::Try {
///     request.queued(); // when the server has answered that another client holds the lock
/// }
/// # Ok::<(), lock_core::LockError>(())
/// ```
///
/// What a connection does with one that it keeps:
///
/// ```
/// use std::num::NonZeroU64;
///
/// use lock_core::{AcquireRequest, ErrorKind, LockError, LossReason, Operation};
///
/// enum Message {
///     Queued(NonZeroU64),
///     Disconnected,
///     Deleted,
/// }
///
/// fn receive(message: Message, attempt: &AcquireRequest) {
///     match message {
///         Message::Queued(place) => {
///             attempt.keep_place(place);
///             attempt.queued();
///         }
///         Message::Disconnected => {
///             attempt.unreachable(LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable());
///         }
///         Message::Deleted => attempt.lost(LossReason::Deleted),
///     }
/// }
/// ```
#[derive(Clone)]
pub struct AcquireRequest(Arc<Inner>);

struct Inner {
    /// The attempt's number in its client.
    number: u64,
    id: AttemptId,
    name: LockName,
    physical: PhysicalName,
    mode: Mode,
    wait: Wait,
    options: Arc<HoldOptions>,
    /// The lock; `None` in a test without the core.
    reports: Option<Weak<dyn Reports>>,
    /// Zero when there is none.
    place: AtomicU64,
    /// Made when it is first needed: most attempts are granted before.
    questions: OnceLock<Box<Notify>>,
    /// Where the work on the attempt, and later that on its release, waits for its first reply.
    work: Parked,
}

impl AsRef<Parked> for Inner {
    fn as_ref(&self) -> &Parked {
        &self.work
    }
}

impl Wake for Inner {
    fn wake(self: Arc<Self>) {
        self.work.woken();
    }
}

/// How a request comes into being.
impl AcquireRequest {
    /// Creates a request for an exclusive hold, to test a backend without the core.
    pub fn new(
        id: AttemptId,
        name: LockName,
        physical: PhysicalName,
        wait: Wait,
        holder: Arc<HolderInfo>,
    ) -> Self {
        Self::of((0, id), (name, physical), Mode::Exclusive, wait, Arc::new(HoldOptions::of(holder)), None)
    }

    /// Creates the request of an attempt with this number and this id, and says who gets the reports on it.
    pub(crate) fn of(
        (number, id): (u64, AttemptId),
        (name, physical): (LockName, PhysicalName),
        mode: Mode,
        wait: Wait,
        options: Arc<HoldOptions>,
        reports: Option<Weak<dyn Reports>>,
    ) -> Self {
        Self(Arc::new(Inner {
            number,
            id,
            name,
            physical,
            mode,
            wait,
            options,
            reports,
            place: AtomicU64::new(0),
            questions: OnceLock::new(),
            work: Parked::default(),
        }))
    }

    /// Sets the mode, to test a backend without the core. Call this before the request is cloned.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        if let Some(attempt) = Arc::get_mut(&mut self.0) {
            attempt.mode = mode;
        }
        self
    }
}

/// What is asked for.
impl AcquireRequest {
    /// Returns the id of the attempt.
    pub fn id(&self) -> AttemptId {
        self.0.id
    }

    /// Returns the name of the lock, as the user wrote it.
    pub fn name(&self) -> &LockName {
        &self.0.name
    }

    /// Returns the name of the lock on the server.
    pub fn physical(&self) -> &PhysicalName {
        &self.0.physical
    }

    /// Returns how the lock is to be shared. A backend gets only the modes that its
    /// capabilities [declare](crate::Capabilities::refusal).
    pub fn mode(&self) -> Mode {
        self.0.mode
    }

    /// Returns who is asking, for people who inspect the lock.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.0.options.holder
    }

    /// Returns the lease that this attempt is to get, if it is not the client's. Only backends that
    /// [grant leases one by one](crate::Capabilities::leasing) get such attempts.
    pub fn lease(&self) -> Option<Duration> {
        self.0.options.lease
    }

    /// Returns how many fencing tokens the grant may reserve: its own and those after it, for sections that follow without
    /// the server. One, unless the backend [can reserve](crate::Capabilities::reserving) them. The grant says how many
    /// [it has](super::Grant::sections).
    pub fn sections(&self) -> NonZeroU32 {
        match self.0.options.local_handoff {
            Some(handoff) if self.0.mode == Mode::Exclusive && self.0.options.at_least.is_none() => {
                handoff.sections
            }
            _ => NonZeroU32::MIN,
        }
    }

    /// Returns how long the request that the attempt is made for waits. Except for [`Wait::Try`] that does not limit the attempt,
    /// which passes from one local waiter to the next: the core ends the wait.
    pub fn wait(&self) -> Wait {
        self.0.wait
    }

    /// Returns the [place](AcquireRequest::keep_place) that an earlier attempt of the same waiter had in the server's queue
    /// and lost, so that a short loss of contact does not move the waiter to the end of the queue. The backend decides
    /// what the number means.
    pub fn place(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.place.load(Ordering::Acquire))
    }

    /// Returns everything that is asked for beside the lock itself.
    pub(crate) fn options(&self) -> &Arc<HoldOptions> {
        &self.0.options
    }

    /// Returns the number of the attempt in its client.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }
}

/// What becomes of the attempt.
impl AcquireRequest {
    /// Begins work at the server on this thread.
    pub(crate) fn begin(&self, engine: &Engine, work: impl Future<Output = ()> + Send + 'static) {
        engine.begin(&self.0, work);
    }

    /// The engine continues the work on the attempt, although nothing has woken it. What waits there ends when the
    /// engine's runtime ends.
    pub(crate) fn continue_on_engine(&self) {
        self.0.work.woken();
    }

    fn report(&self, report: Report) {
        if let Some(reports) = self.0.reports.as_ref().and_then(Weak::upgrade) {
            reports.report(self.0.number, report);
        }
    }

    /// Reports that the server has confirmed that another client holds the lock, and that the attempt is queued.
    ///
    /// This is valid until [`AcquireRequest::unreachable`]: a backend whose waiters send heartbeats calls that as soon as one
    /// fails.
    pub fn queued(&self) {
        self.continue_on_engine();
        self.report(Report::Queued);
    }

    /// Reports that the server has confirmed that another client holds the lock, and not yet that the attempt is queued.
    ///
    /// A wait that ends now is reported as "not acquired", as after [`AcquireRequest::queued`]. But other requests of the same
    /// client that must not overtake this attempt are not sent yet.
    ///
    /// ```
    /// use lock_core::AcquireRequest;
    ///
    /// enum Found {
    ///     HeldByAnother,
    ///     InTheQueue,
    /// }
    ///
    /// fn report(found: Found, attempt: &AcquireRequest) {
    ///     match found {
    ///         Found::HeldByAnother => attempt.busy(),
    ///         Found::InTheQueue => attempt.queued(),
    ///     }
    /// }
    /// ```
    pub fn busy(&self) {
        self.continue_on_engine();
        self.report(Report::Busy);
    }

    /// Reports who holds the lock, where the server's reply says so. A wait that ends without the lock names the holder in
    /// its error.
    pub fn held_by(&self, holder: Participant) {
        self.report(Report::HeldBy(holder));
    }

    /// Remembers the attempt's place in the server's queue. If the place is lost (`acquire` returns `None` too early),
    /// the core makes another attempt, which [starts from it](AcquireRequest::place).
    pub fn keep_place(&self, place: NonZeroU64) {
        self.0.place.store(place.get(), Ordering::Release);
    }

    /// Reports that contact with the server is lost while the attempt waits. If the wait ends before the next call of
    /// [`AcquireRequest::queued`], it ends with this error instead of "not acquired".
    pub fn unreachable(&self, error: LockError) {
        self.report(Report::Unreachable(error));
    }

    /// Reports that the lock is lost: a watch fired, the key is gone, the session has ended. The report is kept: a
    /// backend may call this before the core has seen the grant, and more than once.
    pub fn lost(&self, reason: LossReason) {
        self.report(Report::Lost(reason));
    }

    /// Asks the backend. It runs foreign code.
    pub(crate) fn ask(&self) {
        self.questions().notify_one();
    }

    /// Waits until the core asks whether the server still has the attempt in its queue, or has granted it. The backend then asks
    /// the server at once, and reports the answer as always: it calls [`queued`](AcquireRequest::queued) or
    /// [`unreachable`](AcquireRequest::unreachable), or returns the grant.
    ///
    /// The core asks before a wait ends, if the last report is older, so that a server that has fallen silent is not taken for
    /// another holder; for that the backend says [how long an answer may take](crate::Capabilities::answers_within). It also asks
    /// when another request of this client begins to wait until the attempt, which is exclusive, is queued: a backend for which
    /// it is work to find that out can leave it until then.
    ///
    /// Only one task may call this.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::spi::within;
    /// use lock_core::{AcquireRequest, Clock};
    ///
    /// /// The pause between two looks at the server.
    /// async fn pause(attempt: &AcquireRequest, clock: &Clock) {
    ///     let _ = within(clock, clock.now().plus(Duration::from_secs(10)), attempt.asked()).await;
    /// }
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; the next call reports what this one did not.
    pub async fn asked(&self) {
        self.questions().notified().await;
    }

    fn questions(&self) -> &Notify {
        self.0.questions.get_or_init(Box::default)
    }
}

impl fmt::Debug for AcquireRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { id, name, mode, wait, .. } = &*self.0;
        formatter
            .debug_struct("AcquireRequest")
            .field("id", id)
            .field("name", name)
            .field("mode", mode)
            .field("wait", wait)
            .finish_non_exhaustive()
    }
}
