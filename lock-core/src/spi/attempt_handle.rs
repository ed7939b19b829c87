//! How a backend reports to the core on an attempt, and on the hold that it leads to.

use std::fmt;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::Notify;

use super::Wait;
use crate::runtime::clock::Moment;
use crate::runtime::engine::{Engine, Parked};
use crate::runtime::pending::Pending;
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::LossReason;
use crate::types::status::Participant;

/// The local queue of the waiters that want an attempt.
pub(crate) trait Waiters: Send + Sync {
    /// The next moment after `moment` at which one of them stops waiting, in nanoseconds of the client's clock.
    fn next_end(&self, moment: u64) -> Option<u64>;

    /// The server has named the holder that they wait for.
    fn held_by(&self, holder: Participant);

    /// The server has confirmed that this attempt is queued.
    fn queued(self: Arc<Self>, attempt: &AttemptHandle);
}

/// Receives the report that the hold that an attempt led to is lost.
pub(crate) trait Reported: Send + Sync {
    fn lost(self: Arc<Self>, reason: LossReason);
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
    patience: Patience,
    /// When the core made it.
    since: Moment,
    /// The queue of all waiters that want the attempt; empty in a test without the core.
    waiters: Weak<dyn Waiters>,
    /// When the last of the waiters that want the attempt stops waiting.
    until: AtomicU64,
    /// Zero when there is none.
    place: AtomicU64,
    /// Made when it is first needed: most attempts are granted before.
    joined: OnceLock<Box<Notify>>,
    /// Whether another request of the client waits until the attempt is queued.
    is_awaited: AtomicBool,
    inner: Mutex<Inner>,
    /// Where the work on the attempt waits for its first reply.
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

struct Inner {
    contact: Contact,
    loss: Option<LossReason>,
    hold: Option<Weak<dyn Reported>>,
    /// Set when no waiter wants the attempt any more: what is to be undone.
    stopped: Option<Stop>,
    driver: Option<Waker>,
    awaiting_contact: Option<Box<AwaitingContact>>,
}

/// Waiters whose time is up and that still wait for a first answer from the server.
#[derive(Default)]
struct AwaitingContact(Vec<Waker>);

impl AwaitingContact {
    fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// Whether an attempt waits. How long, changes with its waiters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    TriesOnce,
    Waits,
}

enum Stop {
    Asked(Pending),
    Noticed,
}

enum Contact {
    /// The server has not confirmed yet whether another client holds the lock.
    Unconfirmed,
    /// The attempt has not been sent, because another one of the same client comes before it.
    Behind,
    /// The server has confirmed that another client holds the lock, and contact has been good since.
    Busy,
    /// The server has also confirmed that the attempt is queued.
    Queued,
    Unreachable(LockError),
}

impl AttemptHandle {
    /// Creates the handle of an attempt without the core.
    pub(crate) fn new(wait: Wait) -> Self {
        struct Nowhere;

        impl Waiters for Nowhere {
            fn next_end(&self, _: u64) -> Option<u64> {
                None
            }

            fn held_by(&self, _: Participant) {}

            fn queued(self: Arc<Self>, _: &AttemptHandle) {}
        }

        Self::for_waiters(wait, Weak::<Nowhere>::new(), Moment::from_nanoseconds(0))
    }

    pub(crate) fn for_waiters(wait: Wait, waiters: Weak<dyn Waiters>, since: Moment) -> Self {
        let until = wait.deadline().as_nanoseconds();
        Self(Arc::new(State {
            patience: if wait == Wait::Try { Patience::TriesOnce } else { Patience::Waits },
            since,
            waiters,
            until: AtomicU64::new(until),
            place: AtomicU64::new(0),
            joined: OnceLock::new(),
            is_awaited: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                contact: Contact::Unconfirmed,
                loss: None,
                hold: None,
                stopped: None,
                driver: None,
                awaiting_contact: None,
            }),
            work: Parked::default(),
        }))
    }

    /// Makes the attempt, beginning on this thread.
    pub(crate) fn begin(&self, engine: &Engine, work: impl Future<Output = ()> + Send + 'static) {
        engine.begin(&self.0, work);
    }

    /// The engine continues the work on the attempt, although nothing has woken it. What waits there ends when the
    /// engine's runtime ends.
    pub(crate) fn continue_on_engine(&self) {
        self.0.work.woken();
    }

    /// Reports that the server has confirmed that another client holds the lock, and that the attempt is queued.
    ///
    /// This is valid until [`AttemptHandle::unreachable`]: a backend whose waiters send heartbeats calls that as soon as one
    /// fails.
    pub fn queued(&self) {
        self.continue_on_engine();
        if let (true, Some(waiters)) = (self.set_contact(Contact::Queued), self.0.waiters.upgrade()) {
            waiters.queued(self);
        }
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
        self.set_contact_if(|contact| !matches!(contact, Contact::Queued), Contact::Busy);
    }

    /// The attempt is not sent before another one of the same client.
    pub(crate) fn behind_another(&self) {
        self.continue_on_engine();
        self.set_contact(Contact::Behind);
    }

    /// The attempt is sent now.
    pub(crate) fn sent(&self) {
        self.set_contact(Contact::Unconfirmed);
    }

    /// Returns whether both are the handle of one attempt.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reports who holds the lock, where the server's reply says so. A wait that ends without the lock names the holder in
    /// its error.
    pub fn held_by(&self, holder: Participant) {
        if let Some(waiters) = self.0.waiters.upgrade() {
            waiters.held_by(holder);
        }
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
        self.set_contact(Contact::Unreachable(error));
    }

    /// The server has not answered a request that was sent before the attempt: if the wait ends before the server has
    /// answered at all, it ends with this error.
    pub(crate) fn overdue(&self, error: &LockError) {
        self.set_contact_if(
            |contact| matches!(contact, Contact::Unconfirmed),
            Contact::Unreachable(error.clone()),
        );
    }

    fn set_contact_if(&self, may_change: impl FnOnce(&Contact) -> bool, contact: Contact) {
        let awaiting = {
            let mut inner = self.0.inner.lock();
            if !may_change(&inner.contact) {
                return;
            }
            inner.contact = contact;
            inner.awaiting_contact.take()
        };
        if let Some(awaiting) = awaiting {
            awaiting.wake();
        }
    }

    /// Returns whether the contact was not confirmed before.
    fn set_contact(&self, contact: Contact) -> bool {
        let (former, awaiting) = {
            let mut inner = self.0.inner.lock();
            let former = std::mem::replace(&mut inner.contact, contact);
            (former, inner.awaiting_contact.take())
        };
        if let Some(awaiting) = awaiting {
            awaiting.wake();
        }
        !matches!(former, Contact::Queued)
    }

    /// Completes when the server has answered; until then registers the caller to be woken.
    pub(crate) fn poll_contact(&self, context: &mut Context<'_>) -> Poll<()> {
        with_waker(context, |waker| {
            let mut inner = self.0.inner.lock();
            if !matches!(inner.contact, Contact::Unconfirmed) {
                return Poll::Ready(());
            }
            let AwaitingContact(awaiting) = &mut **inner.awaiting_contact.get_or_insert_default();
            if !awaiting.iter().any(|other| other.will_wake(context.waker())) {
                awaiting.extend(waker.take());
            }
            Poll::Pending
        })
    }

    /// Reports that the lock is lost: a watch fired, the key is gone, the session has ended. The report is kept: a
    /// backend may call this before the core has seen the grant, and more than once.
    pub fn lost(&self, reason: LossReason) {
        let hold = {
            let mut inner = self.0.inner.lock();
            inner.loss.get_or_insert(reason);
            inner.hold.as_ref().and_then(Weak::upgrade)
        };
        if let Some(hold) = hold {
            hold.lost(reason);
        }
    }

    /// Connects the handle to the hold that the attempt led to. Returns a loss that was reported before.
    pub(crate) fn bind(&self, hold: Weak<dyn Reported>) -> Option<LossReason> {
        let mut inner = self.0.inner.lock();
        inner.hold = Some(hold);
        inner.loss
    }

    /// When the attempt was made.
    pub(crate) fn since(&self) -> Moment {
        self.0.since
    }

    pub(crate) fn wait(&self) -> Wait {
        match Moment::from_nanoseconds(self.0.until.load(Ordering::Acquire)) {
            _ if self.0.patience == Patience::TriesOnce => Wait::Try,
            Moment::FOREVER => Wait::Forever,
            moment => Wait::Until(moment),
        }
    }

    pub(crate) fn extend(&self, until: u64) {
        self.0.until.fetch_max(until, Ordering::AcqRel);
        self.joining().notify_one();
    }

    /// Another request of this client waits until the attempt is queued.
    pub(crate) fn awaited(&self) {
        self.0.is_awaited.store(true, Ordering::Release);
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
        let end = match (self.wait(), self.0.waiters.upgrade()) {
            (Wait::Try, _) => None,
            (_, Some(waiters)) => waiters.next_end(after),
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

    /// The outage that the backend has reported, if contact has not returned since.
    pub(crate) fn outage(&self) -> Option<LockError> {
        match &self.0.inner.lock().contact {
            Contact::Unreachable(error) => Some(error.clone()),
            Contact::Busy | Contact::Queued | Contact::Behind | Contact::Unconfirmed => None,
        }
    }

    /// The reason why a wait that ends now cannot report that another client holds the lock.
    pub(crate) fn why_unknown(&self) -> Option<LockError> {
        match &self.0.inner.lock().contact {
            Contact::Busy | Contact::Queued | Contact::Behind => None,
            Contact::Unreachable(error) => Some(error.clone()),
            Contact::Unconfirmed => Some(
                LockError::new(ErrorKind::Unreachable, Operation::Acquire)
                    .because("the server had not answered when the wait ended")
                    .remedy("check the server, or wait longer")
                    .retryable(),
            ),
        }
    }

    /// No waiter wants the attempt any more; `undoing` counts it as pending until it is undone.
    pub(crate) fn stop(&self, undoing: Pending) {
        let driver = {
            let mut inner = self.0.inner.lock();
            if matches!(inner.stopped, Some(Stop::Noticed)) {
                // The attempt has meanwhile ended by itself, and has been handled.
                return;
            }
            inner.stopped = Some(Stop::Asked(undoing));
            inner.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    pub(crate) fn poll_stopped(&self, context: &mut Context<'_>) -> Poll<()> {
        with_waker(context, |waker| {
            let mut inner = self.0.inner.lock();
            if inner.stopped.is_some() {
                return Poll::Ready(());
            }
            std::mem::swap(&mut inner.driver, waker);
            Poll::Pending
        })
    }

    /// Takes the pending undo of the attempt, if it was stopped. After this it cannot be stopped any more.
    pub(crate) fn take_undoing(&self) -> Option<Pending> {
        let (stopped, driver) = {
            let mut inner = self.0.inner.lock();
            (inner.stopped.replace(Stop::Noticed), inner.driver.take())
        };
        // A waker keeps its task in memory, and this handle lives as long as the hold.
        drop(driver);
        match stopped {
            Some(Stop::Asked(undoing)) => Some(undoing),
            _ => None,
        }
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

    #[test]
    fn what_is_busy_ends_a_wait_and_takes_no_place_back() {
        let handle = AttemptHandle::new(Wait::Forever);
        assert!(handle.why_unknown().is_some());
        handle.busy();
        assert!(handle.why_unknown().is_none());
        assert!(handle.set_contact(Contact::Queued), "it was queued before");
        handle.busy();
        assert!(!handle.set_contact(Contact::Queued), "it has lost its place");
    }

    #[tokio::test]
    async fn one_that_waits_behind_it_shows_and_is_reported() {
        let handle = AttemptHandle::new(Wait::Forever);
        assert!(!handle.is_awaited());
        handle.awaited();
        assert!(handle.is_awaited());
        handle.joined().await;
    }

    #[test]
    fn a_drivers_waker_that_is_replaced_may_come_back() {
        let handle = AttemptHandle::new(Wait::Forever);
        let tells = handle.clone();
        let waker = crate::runtime::waker::waker_with_an_end(move || tells.queued());
        assert!(handle.poll_stopped(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(handle.poll_stopped(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(handle.why_unknown().is_none());
    }
}
