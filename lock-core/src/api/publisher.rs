//! Which listener gets which event: the listeners of a client and of its locks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::api::listener::Subscription;
use crate::api::mailbox::{Mailbox, Reader};
use crate::policy::hold::state::Event;
use crate::policy::hold::{EventSink, Hold};
use crate::runtime::Mutex;
use crate::types::{LockKind, LockName};

/// Passes the events of one client's holds to its listeners.
#[derive(Default)]
pub(crate) struct Publisher {
    listening: Mutex<Listening>,
    /// Whether there was ever a listener. Most clients have none, and their holds look here alone.
    has_listened: AtomicBool,
}

#[derive(Default)]
struct Listening {
    mailboxes: HashMap<Topic, Vec<Arc<Mailbox>>>,
    is_closed: bool,
}

/// Of which holds a listener gets the events.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// All of a client, or those of certain options.
    Client,
    Lock(LockName, LockKind),
    /// Those of several locks together.
    Several(Box<[LockName]>),
}

impl Topic {
    /// Returns the lock, if it is one alone.
    pub(crate) fn lock(&self) -> Option<&LockName> {
        if let Self::Lock(name, _) = self { Some(name) } else { None }
    }
}

impl Publisher {
    pub(crate) fn add(self: &Arc<Self>, topic: Topic, reader: Reader) -> Subscription {
        let mailbox = Mailbox::new(topic.clone(), reader);
        let subscription =
            Subscription { publisher: Arc::downgrade(self), mailbox: Arc::downgrade(&mailbox) };
        let mut listening = self.listening.lock();
        if listening.is_closed {
            mailbox.post(None);
        }
        listening.mailboxes.entry(topic).or_default().push(mailbox);
        self.has_listened.store(true, Ordering::Release);
        subscription
    }

    /// Removes a mailbox that the caller keeps, so that nothing of the user's is dropped here.
    pub(crate) fn remove(&self, mailbox: &Arc<Mailbox>) {
        let mailboxes = &mut self.listening.lock().mailboxes;
        let Some(of_topic) = mailboxes.get_mut(&mailbox.topic) else { return };
        of_topic.retain(|other| !Arc::ptr_eq(other, mailbox));
        if of_topic.is_empty() {
            mailboxes.remove(&mailbox.topic);
        }
    }

    /// The client is closed.
    pub(crate) fn close(&self) {
        let mut listening = self.listening.lock();
        if !std::mem::replace(&mut listening.is_closed, true) {
            listening.mailboxes.values().flatten().for_each(|mailbox| mailbox.post(None));
        }
    }
}

impl EventSink for Publisher {
    /// The caller has locked the mutex of the hold's state, so this runs no user code and drops no user value.
    fn publish(&self, event: Event, hold: &Hold) {
        if !self.has_listened.load(Ordering::Acquire) {
            return;
        }
        let mailboxes = &self.listening.lock().mailboxes;
        if mailboxes.is_empty() {
            return;
        }
        let topics = match &*hold.0.parts {
            [] => vec![Topic::Client, Topic::Lock(hold.name().clone(), hold.mode().kind())],
            parts => vec![Topic::Several(parts.iter().map(|part| part.name().clone()).collect())],
        };
        for mailbox in topics.iter().filter_map(|topic| mailboxes.get(topic)).flatten() {
            mailbox.publish(event, hold);
        }
    }
}
