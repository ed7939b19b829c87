//! How a backend reports to the core on an attempt, and on the hold that it leads to.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::Wake;

use tokio::sync::Notify;

use super::Wait;
use crate::runtime::clock::Moment;
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

    /// The next moment after `moment` at which a waiter that wants the attempt stops waiting, in nanoseconds of the client's
    /// clock.
    fn next_end(&self, attempt: u64, moment: u64) -> Option<u64>;
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
    tries_once: bool,
    /// When the last of the waiters that want the attempt stops waiting.
    until: AtomicU64,
    /// Zero when there is none.
    place: AtomicU64,
    /// Made when it is first needed: most attempts are granted before.
    joined: OnceLock<Box<Notify>>,
    is_awaited: AtomicBool,
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

            fn next_end(&self, _: u64, _: u64) -> Option<u64> {
                None
            }
        }

        Self::numbered(0, wait, Weak::<Nowhere>::new())
    }

    pub(crate) fn numbered(number: u64, wait: Wait, reports: Weak<dyn Reports>) -> Self {
        Self(Arc::new(State {
            number,
            reports,
            tries_once: wait == Wait::Try,
            until: AtomicU64::new(wait.deadline().as_nanoseconds()),
            place: AtomicU64::new(0),
            joined: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
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
        match Moment::from_nanoseconds(self.0.until.load(Ordering::Acquire)) {
            _ if self.0.tries_once => Wait::Try,
            Moment::FOREVER => Wait::Forever,
            moment => Wait::Until(moment),
        }
    }

    /// Another waiter, which waits until then, also wants the attempt. Returns whether it waits longer than the others.
    pub(crate) fn extend(&self, until: u64) -> bool {
        !self.0.tries_once && self.0.until.fetch_max(until, Ordering::AcqRel) < until
    }

    /// Another request of this client waits until the attempt is queued. Returns whether that is new.
    pub(crate) fn awaited(&self) -> bool {
        !self.0.is_awaited.swap(true, Ordering::AcqRel)
    }

    /// Has the backend look again at what is asked of it. It runs foreign code.
    pub(crate) fn changed(&self) {
        self.joining().notify_one();
    }

    /// Returns whether another request of this client waits until the attempt, which is exclusive, is
    /// [queued](AttemptHandle::queued). A backend for which it is work to find that out can leave it until then. For an
    /// attempt that shares the lock this is always false, whether others wait or not.
    pub fn is_awaited(&self) -> bool {
        self.0.is_awaited.load(Ordering::Acquire)
    }

    /// Returns the next moment after `moment` at which one of the waiters that want the attempt stops waiting. A
    /// backend that asks the server once more before that moment avoids that a silent server is taken for another
    /// holder.
    pub fn next_end(&self, moment: Moment) -> Option<Moment> {
        let after = moment.as_nanoseconds();
        let end = match (self.wait(), self.0.reports.upgrade()) {
            (Wait::Try, _) => None,
            (_, Some(reports)) => reports.next_end(self.0.number, after),
            (wait, None) => Some(wait.deadline().as_nanoseconds()).filter(|until| *until > after),
        };
        end.map(Moment::from_nanoseconds).filter(|end| *end != Moment::FOREVER)
    }

    /// Waits until another waiter joins the attempt, which may stop waiting earlier than the others:
    /// [`next_end`](AttemptHandle::next_end) may have changed. It also returns when another request of this client begins to
    /// wait until the attempt is queued, see [`is_awaited`](AttemptHandle::is_awaited). Only one task may call this.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::spi::within;
    /// use lock_core::{AttemptHandle, Clock, Moment};
    ///
    /// /// Returns when it is time to ask the server once more, half a second before the next wait ends.
    /// async fn before_a_wait_ends(attempt: &AttemptHandle, clock: &Clock) {
    ///     loop {
    ///         let end = attempt.next_end(clock.now()).unwrap_or(Moment::FOREVER);
    ///         if within(clock, end.minus(Duration::from_millis(500)), attempt.joined()).await.is_none() {
    ///             return;
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; the next call reports what this one did not.
    pub async fn joined(&self) {
        self.joining().notified().await;
    }

    fn joining(&self) -> &Notify {
        self.0.joined.get_or_init(Box::default)
    }
}

impl fmt::Debug for AttemptHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("AttemptHandle").field("wait", &self.wait()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_core_the_next_end_is_the_attempts_own() {
        let at = Moment::from_nanoseconds;
        let handle = AttemptHandle::new(Wait::Until(at(300)));
        assert_eq!((handle.next_end(at(0)), handle.next_end(at(300))), (Some(at(300)), None));
        assert_eq!(AttemptHandle::new(Wait::Forever).next_end(at(0)), None);
        assert_eq!(AttemptHandle::new(Wait::Try).next_end(at(0)), None);
    }

    #[tokio::test]
    async fn one_that_waits_behind_it_shows_and_is_reported() {
        let handle = AttemptHandle::new(Wait::Forever);
        assert!(!handle.is_awaited());
        assert!(handle.awaited());
        handle.changed();
        assert!(handle.is_awaited());
        handle.joined().await;
    }
}
