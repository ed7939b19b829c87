//! How a backend reports to the core on an attempt, and on the hold that it leads to.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Wake;

use tokio::sync::Notify;

use super::Wait;
use crate::runtime::engine::{Engine, Parked};
use crate::types::error::LockError;
use crate::types::loss::LossReason;
use crate::types::status::Participant;

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

/// Through this a backend reports to the core what becomes of an attempt. It is cheap to clone; keep a clone where the
/// server's messages arrive.
///
/// ```
/// use std::num::NonZeroU64;
///
/// use lock_core::{AttemptHandle, ErrorKind, LockError, LossReason, Operation};
///
/// enum Message {
///     Queued(NonZeroU64),
///     Disconnected,
///     Deleted,
/// }
///
/// fn receive(message: Message, attempt: &AttemptHandle) {
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
pub struct AttemptHandle(Arc<State>);

struct State {
    /// The attempt's number in its local lock.
    number: u64,
    /// The lock; empty in a test without the core.
    reports: Weak<dyn Reports>,
    wait: Wait,
    /// Zero when there is none.
    place: AtomicU64,
    /// Made when it is first needed: most attempts are granted before.
    questions: OnceLock<Box<Notify>>,
    /// Where the work on the attempt, and later that on its release, waits for its first reply.
    work: Parked,
}

impl AsRef<Parked> for State {
    fn as_ref(&self) -> &Parked {
        &self.work
    }
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.work.woken();
    }
}

impl AttemptHandle {
    /// Creates the handle of an attempt without the core.
    pub(crate) fn new(wait: Wait) -> Self {
        struct Nowhere;

        impl Reports for Nowhere {
            fn report(self: Arc<Self>, _: u64, _: Report) {}
        }

        Self::numbered(0, wait, Weak::<Nowhere>::new())
    }

    pub(crate) fn numbered(number: u64, wait: Wait, reports: Weak<dyn Reports>) -> Self {
        Self(Arc::new(State {
            number,
            reports,
            wait,
            place: AtomicU64::new(0),
            questions: OnceLock::new(),
            work: Parked::default(),
        }))
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

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
        if let Some(reports) = self.0.reports.upgrade() {
            reports.report(self.0.number, report);
        }
    }

    /// Reports that the server has confirmed that another client holds the lock, and that the attempt is queued.
    ///
    /// This is valid until [`AttemptHandle::unreachable`]: a backend whose waiters send heartbeats calls that as soon as one
    /// fails.
    pub fn queued(&self) {
        self.continue_on_engine();
        self.report(Report::Queued);
    }

    /// Reports that the server has confirmed that another client holds the lock, and not yet that the attempt is queued.
    ///
    /// A wait that ends now is reported as "not acquired", as after [`AttemptHandle::queued`]. But other requests of the same
    /// client that must not overtake this attempt are not sent yet.
    ///
    /// ```
    /// use lock_core::AttemptHandle;
    ///
    /// enum Found {
    ///     HeldByAnother,
    ///     InTheQueue,
    /// }
    ///
    /// fn report(found: Found, attempt: &AttemptHandle) {
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
    /// the core makes another attempt, which [starts from it](crate::AcquireRequest::place).
    pub fn keep_place(&self, place: NonZeroU64) {
        self.0.place.store(place.get(), Ordering::Release);
    }

    pub(crate) fn place(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.place.load(Ordering::Acquire))
    }

    /// Reports that contact with the server is lost while the attempt waits. If the wait ends before the next call of
    /// [`AttemptHandle::queued`], it ends with this error instead of "not acquired".
    pub fn unreachable(&self, error: LockError) {
        self.report(Report::Unreachable(error));
    }

    /// Reports that the lock is lost: a watch fired, the key is gone, the session has ended. The report is kept: a
    /// backend may call this before the core has seen the grant, and more than once.
    pub fn lost(&self, reason: LossReason) {
        self.report(Report::Lost(reason));
    }

    pub(crate) fn wait(&self) -> Wait {
        self.0.wait
    }

    /// Asks the backend. It runs foreign code.
    pub(crate) fn ask(&self) {
        self.questions().notify_one();
    }

    /// Waits until the core asks whether the server still has the attempt in its queue, or has granted it. The backend then asks
    /// the server at once, and reports the answer as always: it calls [`queued`](AttemptHandle::queued) or
    /// [`unreachable`](AttemptHandle::unreachable), or returns the grant.
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
    /// use lock_core::{AttemptHandle, Clock};
    ///
    /// /// The pause between two looks at the server.
    /// async fn pause(attempt: &AttemptHandle, clock: &Clock) {
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

impl fmt::Debug for AttemptHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AttemptHandle").field("wait", &self.wait()).finish_non_exhaustive()
    }
}
