//! What a backend tells the core about an attempt, and about the hold that comes of it.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::Wait;
use crate::runtime::clock::Moment;
use crate::runtime::pending::Pending;
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::LossReason;

/// Where those wait who want an attempt.
pub(crate) trait Waiters: Send + Sync {
    /// The next moment later than `moment` at which one of them stops waiting, in nanoseconds of the client's clock.
    fn next_end(&self, moment: u64) -> Option<u64>;
}

/// What is reported of the hold that came of an attempt.
pub(crate) trait Reported: Send + Sync {
    fn lost(self: Arc<Self>, reason: LossReason);
    fn suspect(self: Arc<Self>);
    fn restored(self: Arc<Self>);
}

/// By which a backend tells the core what becomes of an attempt. Cheap to clone; keep a clone where the server's
/// messages arrive.
#[derive(Clone)]
pub struct Signals(Arc<State>);

struct State {
    /// How long the one waits for whom the attempt was begun.
    wait: Wait,
    /// Where all those wait who want the attempt; nowhere, in a test without the core.
    waiters: Weak<dyn Waiters>,
    /// When the last of those who want the attempt stops waiting.
    until: AtomicU64,
    /// Zero when there is none.
    place: AtomicU64,
    joined: Notify,
    inner: Mutex<Inner>,
}

struct Inner {
    contact: Contact,
    loss: Option<LossReason>,
    hold: Option<Weak<dyn Reported>>,
    /// Set when nobody wants the attempt any more: what is to be undone.
    stopped: Option<Stop>,
    driver: Option<Waker>,
    /// Those whose time is up and who wait for a first word from the server.
    awaiting_contact: Vec<Waker>,
}

enum Stop {
    Asked(Pending),
    Noticed,
}

enum Contact {
    /// The server has not said yet whether someone else holds the lock.
    Unconfirmed,
    /// The server has said so, and contact has been good since.
    Queued,
    Unreachable(LockError),
}

impl Signals {
    /// For an attempt without the core.
    pub(crate) fn new(wait: Wait) -> Self {
        struct Nowhere;

        impl Waiters for Nowhere {
            fn next_end(&self, _: u64) -> Option<u64> {
                None
            }
        }

        Self::for_waiters(wait, Weak::<Nowhere>::new())
    }

    pub(crate) fn for_waiters(wait: Wait, waiters: Weak<dyn Waiters>) -> Self {
        let until = wait.deadline().as_nanoseconds();
        Self(Arc::new(State {
            wait,
            waiters,
            until: AtomicU64::new(until),
            place: AtomicU64::new(0),
            joined: Notify::new(),
            inner: Mutex::new(Inner {
                contact: Contact::Unconfirmed,
                loss: None,
                hold: None,
                stopped: None,
                driver: None,
                awaiting_contact: Vec::new(),
            }),
        }))
    }

    /// The server has confirmed that someone else holds the lock and that the attempt waits in good order.
    ///
    /// It counts until [`Signals::unreachable`]: a backend whose waiters have heartbeats says that as soon as one fails.
    pub fn queued(&self) {
        self.set_contact(Contact::Queued);
    }

    /// Remembers the attempt's place in the server's queue. Should the place be lost (`acquire` answers `None` before its
    /// time), the attempt that the core makes instead [starts from it](crate::AcquireRequest::place).
    pub fn keep_place(&self, place: NonZeroU64) {
        self.0.place.store(place.get(), Ordering::Release);
    }

    pub(crate) fn place(&self) -> Option<NonZeroU64> {
        NonZeroU64::new(self.0.place.load(Ordering::Acquire))
    }

    /// Contact with the server is lost while the attempt waits. If the wait ends before [`Signals::queued`] is said
    /// again, it ends with this error instead of "not acquired".
    pub fn unreachable(&self, error: LockError) {
        self.set_contact(Contact::Unreachable(error));
    }

    fn set_contact(&self, contact: Contact) {
        let awaiting = {
            let mut inner = self.0.inner.lock();
            inner.contact = contact;
            std::mem::take(&mut inner.awaiting_contact)
        };
        awaiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the server has been heard of; else has the caller woken when it is.
    pub(crate) fn poll_contact(&self, context: &mut Context<'_>) -> Poll<()> {
        with_waker(context, |waker| {
            let mut inner = self.0.inner.lock();
            if !matches!(inner.contact, Contact::Unconfirmed) {
                return Poll::Ready(());
            }
            if !inner.awaiting_contact.iter().any(|other| other.will_wake(context.waker())) {
                inner.awaiting_contact.extend(waker.take());
            }
            Poll::Pending
        })
    }

    /// The lock is lost: a watch fired, the key is gone, the session has ended. Latches: it may be said before the core
    /// has seen the grant, and more than once.
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

    /// Contact with the server is lost while the lock is held; the hold still stands.
    pub fn suspect(&self) {
        if let Some(hold) = self.hold() {
            hold.suspect();
        }
    }

    /// Contact has returned, and the lock is still held.
    pub fn restored(&self) {
        if let Some(hold) = self.hold() {
            hold.restored();
        }
    }

    fn hold(&self) -> Option<Arc<dyn Reported>> {
        self.0.inner.lock().hold.as_ref().and_then(Weak::upgrade)
    }

    /// Binds the signals to the hold that came of the attempt; answers a loss that was signalled before.
    pub(crate) fn bind(&self, hold: Weak<dyn Reported>) -> Option<LossReason> {
        let mut inner = self.0.inner.lock();
        inner.hold = Some(hold);
        inner.loss
    }

    pub(crate) fn wait(&self) -> Wait {
        match Moment::from_nanoseconds(self.0.until.load(Ordering::Acquire)) {
            _ if self.0.wait == Wait::Try => Wait::Try,
            Moment::FOREVER => Wait::Forever,
            moment => Wait::Until(moment),
        }
    }

    pub(crate) fn extend(&self, until: u64) {
        self.0.until.fetch_max(until, Ordering::AcqRel);
        self.0.joined.notify_one();
    }

    /// The next moment later than `moment` at which somebody who wants the attempt stops waiting. A backend that asks the
    /// server once more before that does not let a silent server be taken for another holder.
    pub fn next_end(&self, moment: Moment) -> Option<Moment> {
        let after = moment.as_nanoseconds();
        let end = match (self.0.wait, self.0.waiters.upgrade()) {
            (Wait::Try, _) => None,
            (_, Some(waiters)) => waiters.next_end(after),
            (wait, None) => Some(wait.deadline().as_nanoseconds()).filter(|until| *until > after),
        };
        end.map(Moment::from_nanoseconds).filter(|end| *end != Moment::FOREVER)
    }

    /// Waits until somebody more wants the attempt, who may stop waiting earlier than the others:
    /// [`next_end`](Signals::next_end) may have changed. For one task.
    ///
    /// # Cancel safety
    /// May be dropped at any time; what it has not told of, it tells of when it is called again.
    pub async fn joined(&self) {
        self.0.joined.notified().await;
    }

    /// The outage that the backend has reported, if it has and contact has not returned.
    pub(crate) fn outage(&self) -> Option<LockError> {
        match &self.0.inner.lock().contact {
            Contact::Unreachable(error) => Some(error.clone()),
            Contact::Queued | Contact::Unconfirmed => None,
        }
    }

    /// Why a wait that ends now cannot say that someone else holds the lock.
    pub(crate) fn obstacle(&self) -> Option<LockError> {
        match &self.0.inner.lock().contact {
            Contact::Queued => None,
            Contact::Unreachable(error) => Some(error.clone()),
            Contact::Unconfirmed => Some(
                LockError::new(ErrorKind::Unreachable, Operation::Acquire)
                    .because("the server had not answered when the wait ended")
                    .remedy("check the server, or wait longer")
                    .retryable(),
            ),
        }
    }

    /// Nobody wants the attempt any more; `undoing` lasts until it is undone.
    pub(crate) fn stop(&self, undoing: Pending) {
        let driver = {
            let mut inner = self.0.inner.lock();
            if matches!(inner.stopped, Some(Stop::Noticed)) {
                // It has ended by itself meanwhile, and been dealt with.
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

    /// The undoing of the attempt, if it was stopped. It cannot be stopped any more after this.
    pub(crate) fn take_undoing(&self) -> Option<Pending> {
        let (stopped, driver) = {
            let mut inner = self.0.inner.lock();
            (inner.stopped.replace(Stop::Noticed), inner.driver.take())
        };
        // A waker keeps the memory of its task, and these signals live as long as the hold.
        drop(driver);
        match stopped {
            Some(Stop::Asked(undoing)) => Some(undoing),
            _ => None,
        }
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signals").field("wait", &self.wait()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_core_the_next_end_is_the_attempts_own() {
        let at = Moment::from_nanoseconds;
        let signals = Signals::new(Wait::Until(at(300)));
        assert_eq!((signals.next_end(at(0)), signals.next_end(at(300))), (Some(at(300)), None));
        assert_eq!(Signals::new(Wait::Forever).next_end(at(0)), None);
        assert_eq!(Signals::new(Wait::Try).next_end(at(0)), None);
    }

    #[test]
    fn a_drivers_waker_that_is_replaced_may_come_back() {
        let signals = Signals::new(Wait::Forever);
        let tells = signals.clone();
        let waker = crate::runtime::waker::waker_with_an_end(move || tells.queued());
        assert!(signals.poll_stopped(&mut Context::from_waker(&waker)).is_pending());
        drop(waker);
        assert!(signals.poll_stopped(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(signals.obstacle().is_none());
    }
}
