//! Which listener gets which event: the listeners of a client and of its locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::events::LockEvent;
use crate::api::hold::Hold;
use crate::api::listener::Subscription;
use crate::api::mailbox::{Mailbox, Reader};
use crate::policy::hold::state::Event;
use crate::policy::hold::{HoldCore, Observer};
use crate::runtime::sync::Mutex;
use crate::types::loss::LossReason;
use crate::types::mode::LockKind;
use crate::types::name::LockName;

/// Passes the events of one client's holds to its listeners.
#[derive(Default)]
pub(crate) struct Publisher {
    listening: Mutex<Listening>,
    /// Whether there was ever a listener. Most clients have none, and their holds look here alone.
    has_listened: AtomicBool,
}

#[derive(Default)]
struct Listening {
    /// The listeners of each lock, and those of all locks.
    mailboxes: HashMap<Option<LockKey>, Vec<Arc<Mailbox>>>,
    is_closed: bool,
}

/// A lock or a semaphore.
pub(crate) type LockKey = (LockName, LockKind);

impl Publisher {
    /// Adds a reader of the events of this lock, or of all locks.
    pub(crate) fn add(self: &Arc<Self>, lock: Option<LockKey>, reader: Reader) -> Subscription {
        let mailbox = Mailbox::new(lock.clone(), reader);
        let subscription =
            Subscription { publisher: Arc::downgrade(self), mailbox: Arc::downgrade(&mailbox) };
        let mut listening = self.listening.lock();
        if listening.is_closed {
            mailbox.post(None);
        }
        listening.mailboxes.entry(lock).or_default().push(mailbox);
        self.has_listened.store(true, Ordering::Release);
        subscription
    }

    /// Removes a mailbox that the caller keeps, so that nothing of the user's is dropped here.
    pub(crate) fn remove(&self, mailbox: &Arc<Mailbox>) {
        let mailboxes = &mut self.listening.lock().mailboxes;
        let Some(of_lock) = mailboxes.get_mut(&mailbox.lock) else { return };
        of_lock.retain(|other| !Arc::ptr_eq(other, mailbox));
        if of_lock.is_empty() {
            mailboxes.remove(&mailbox.lock);
        }
    }

    pub(crate) fn has_listeners(&self) -> bool {
        !self.listening.lock().mailboxes.is_empty()
    }

    /// The client is closed.
    pub(crate) fn close(&self) {
        let mut listening = self.listening.lock();
        if !std::mem::replace(&mut listening.is_closed, true) {
            listening.mailboxes.values().flatten().for_each(|mailbox| mailbox.post(None));
        }
    }
}

impl Observer for Publisher {
    /// The caller has locked the mutex of the hold's state, so this runs no user code and drops no user value.
    fn publish(&self, event: Event<LossReason>, hold: &Arc<HoldCore>) {
        if !self.has_listened.load(Ordering::Acquire) {
            return;
        }
        let mailboxes = &self.listening.lock().mailboxes;
        if mailboxes.is_empty() {
            return;
        }
        let lock = (hold.name().clone(), hold.grant().mode.kind());
        for mailbox in [None, Some(lock)].iter().filter_map(|lock| mailboxes.get(lock)).flatten() {
            mailbox.post(Some(LockEvent::of(event, Hold(Arc::clone(hold)))));
        }
    }
}
