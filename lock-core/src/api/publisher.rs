//! Which listener gets which event: the listeners of a client and of its locks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::mailbox::{ListenerMailbox, Notification};
use crate::policy::hold::state::Event;
use crate::policy::hold::{HoldCore, Observer};
#[cfg(test)]
use crate::runtime::counts;
use crate::runtime::dispatcher;
use crate::types::loss::LossReason;
use crate::types::mode::LockKind;
use crate::types::name::LockName;

/// Passes the events of one client's holds to its listeners.
#[derive(Default)]
pub(crate) struct Publisher {
    listening: RwLock<Listening>,
    /// Whether there was ever a listener. Most clients have none, and their holds look here alone.
    has_listened: AtomicBool,
}

#[derive(Default)]
struct Listening {
    to_client: Vec<Arc<ListenerMailbox>>,
    to_locks: HashMap<LockKey, Vec<Arc<ListenerMailbox>>>,
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

impl Publisher {
    /// Adds a listener to this lock, or to all locks.
    pub(crate) fn add(
        self: &Arc<Self>,
        lock: Option<LockKey>,
        listener: Arc<dyn LockListener>,
    ) -> Subscription {
        dispatcher::prepare();
        let mailbox = Arc::new(ListenerMailbox::new(lock, listener));
        let subscription = self.subscription(&mailbox);
        let mut listening = self.write();
        if listening.state == State::Closed {
            mailbox.post(Notification::Closed);
        }
        match mailbox.lock() {
            Some(lock) => listening.to_locks.entry(lock.clone()).or_default().push(mailbox),
            None => listening.to_client.push(mailbox),
        }
        self.has_listened.store(true, Ordering::Release);
        subscription
    }

    fn subscription(self: &Arc<Self>, mailbox: &Arc<ListenerMailbox>) -> Subscription {
        let (publisher, mailbox) = (Arc::downgrade(self), Arc::downgrade(mailbox));
        Subscription::new(move || {
            let Some(mailbox) = mailbox.upgrade() else { return };
            if let Some(publisher) = publisher.upgrade() {
                publisher.write().remove(&mailbox);
            }
            mailbox.end();
        })
    }

    pub(crate) fn has_listeners(&self) -> bool {
        !self.read().is_empty()
    }

    /// The client is closed.
    pub(crate) fn close(&self) {
        let mut listening = self.write();
        if std::mem::replace(&mut listening.state, State::Closed) == State::Open {
            listening.all().for_each(|mailbox| mailbox.post(Notification::Closed));
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Listening> {
        #[cfg(test)]
        counts::mutex();
        self.listening.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Listening> {
        self.listening.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listening {
    /// Removes a mailbox that the caller keeps, so that nothing of the user's is dropped here.
    fn remove(&mut self, mailbox: &Arc<ListenerMailbox>) {
        let others = |other: &Arc<ListenerMailbox>| !Arc::ptr_eq(other, mailbox);
        let Some(lock) = mailbox.lock() else { return self.to_client.retain(others) };
        let Some(mailboxes) = self.to_locks.get_mut(lock) else { return };
        mailboxes.retain(others);
        if mailboxes.is_empty() {
            self.to_locks.remove(lock);
        }
    }

    fn of(&self, lock: &LockKey) -> impl Iterator<Item = &Arc<ListenerMailbox>> {
        self.to_client.iter().chain(self.to_locks.get(lock).into_iter().flatten())
    }

    fn is_empty(&self) -> bool {
        self.to_client.is_empty() && self.to_locks.is_empty()
    }

    fn all(&self) -> impl Iterator<Item = &Arc<ListenerMailbox>> {
        self.to_client.iter().chain(self.to_locks.values().flatten())
    }
}

impl Observer for Publisher {
    /// The caller holds the mutex of the hold's reports, so this runs no user code and drops no user value.
    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        if !self.has_listened.load(Ordering::Acquire) {
            return;
        }
        let listening = self.read();
        if listening.is_empty() {
            return;
        }
        let lock = (hold.name().clone(), hold.grant().mode.kind());
        for mailbox in listening.of(&lock) {
            mailbox.post(Notification::OfHold(event, Hold(Arc::clone(hold))));
        }
    }
}
