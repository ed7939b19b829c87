//! The listeners of a client and of its locks, and those of a lock of your own.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::api::hold::Hold;
use crate::api::inbox::{Inbox, Notice};
use crate::api::listener::{LockListener, Subscription};
use crate::policy::hold::reports::Event;
use crate::policy::hold::{HoldCore, Observer};
use crate::runtime::dispatcher;
use crate::types::loss::LossReason;
use crate::types::mode::LockKind;
use crate::types::name::LockName;

/// Passes the events of one client's holds to its listeners.
#[derive(Default)]
pub(crate) struct Announcer(RwLock<Listening>);

#[derive(Default)]
struct Listening {
    to_client: Vec<Arc<Inbox>>,
    to_locks: HashMap<LockKey, Vec<Arc<Inbox>>>,
    state: State,
}

/// A lock or a semaphore.
pub(crate) type LockKey = (LockName, LockKind);

#[derive(Default, PartialEq)]
enum State {
    #[default]
    Open,
    Closed,
}

impl Announcer {
    /// Adds a listener to this lock, or to all locks.
    pub(crate) fn add(
        self: &Arc<Self>,
        lock: Option<LockKey>,
        listener: Arc<dyn LockListener>,
    ) -> Subscription {
        dispatcher::prepare();
        let inbox = Arc::new(Inbox::new(lock, listener));
        let subscription = self.subscription(&inbox);
        let mut listening = self.write();
        if listening.state == State::Closed {
            inbox.post(Notice::Closed);
        }
        match inbox.lock() {
            Some(lock) => listening.to_locks.entry(lock.clone()).or_default().push(inbox),
            None => listening.to_client.push(inbox),
        }
        subscription
    }

    fn subscription(self: &Arc<Self>, inbox: &Arc<Inbox>) -> Subscription {
        let (announcer, inbox) = (Arc::downgrade(self), Arc::downgrade(inbox));
        Subscription::new(move || {
            let Some(inbox) = inbox.upgrade() else { return };
            if let Some(announcer) = announcer.upgrade() {
                announcer.write().remove(&inbox);
            }
            inbox.end();
        })
    }

    /// The client is closed.
    pub(crate) fn close(&self) {
        let mut listening = self.write();
        if std::mem::replace(&mut listening.state, State::Closed) == State::Open {
            listening.all().for_each(|inbox| inbox.post(Notice::Closed));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Listening> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Listening> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening {
    /// Removes an inbox that the caller keeps, so that nothing of the user's is dropped here.
    fn remove(&mut self, inbox: &Arc<Inbox>) {
        let others = |other: &Arc<Inbox>| !Arc::ptr_eq(other, inbox);
        let Some(lock) = inbox.lock() else { return self.to_client.retain(others) };
        let Some(inboxes) = self.to_locks.get_mut(lock) else { return };
        inboxes.retain(others);
        if inboxes.is_empty() {
            self.to_locks.remove(lock);
        }
    }

    fn of(&self, lock: &LockKey) -> impl Iterator<Item = &Arc<Inbox>> {
        self.to_client.iter().chain(self.to_locks.get(lock).into_iter().flatten())
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Inbox>> {
        self.to_client.iter().chain(self.to_locks.values().flatten())
    }
}

/// The listeners of a lock of your own, which calls [`Listeners::add`] in its
/// [`add_listener`](crate::DistributedLock::add_listener). [`HoldControl::report_to`](crate::HoldControl::report_to) connects its
/// holds to them. It is cheap to clone; all clones are the same listeners.
///
/// ```
/// # use std::sync::Arc;
/// use lock_core::{Clock, Hold, HoldControl, Listeners, LockName, LossReason};
///
/// let (name, listeners) = (LockName::new("orders/42")?, Listeners::new());
/// let listener = |hold: &Hold, reason: &LossReason| eprintln!("{} is lost: {reason}", hold.name());
/// let subscription = listeners.add(&name, Arc::new(listener)); // what `add_listener` of the lock returns
/// let granted = HoldControl::new(name, None, Clock::system()).report_to(&listeners);
/// # granted.report_acquired();
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Clone, Default)]
pub struct Listeners(Arc<Announcer>);

impl Listeners {
    /// Creates a list without listeners.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a listener for the holds of the lock called `name`. It stays until the subscription is dropped.
    pub fn add(&self, name: &LockName, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.add(Some((name.clone(), LockKind::Lock)), listener)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().all().next().is_none()
    }

    /// The client that the lock belongs to is closed.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        Arc::clone(&self.0) as _
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Listeners").finish_non_exhaustive()
    }
}

impl Observer for Announcer {
    /// The caller holds the mutex of the hold's reports, so this runs no user code and drops no user value.
    fn announce(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        let lock = (hold.name().clone(), hold.grant().mode.kind());
        for inbox in self.read().of(&lock) {
            inbox.post(Notice::OfHold(event, Hold(Arc::clone(hold))));
        }
    }
}
