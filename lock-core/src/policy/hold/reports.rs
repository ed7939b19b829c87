//! What a listener learns of one hold, and in which order: first the acquisition, then suspect and restored events,
//! then the end.
//!
//! Events that happen before the owner has received the hold wait until it has. If the waiter leaves before that, there
//! are no events: a hold that never had an owner is not reported.

use super::state::Contact;
use crate::runtime::sync::Mutex;

/// The events of a listener. `R` is the reason of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event<R> {
    Acquired,
    Released,
    Suspect,
    Restored,
    Abort(R),
}

/// What has been reported of one hold.
///
/// `publish` is called with the mutex held, which keeps the reports in order. So it must not run user code.
#[derive(Debug)]
pub(crate) struct Reports<R>(Mutex<Reported<R>>);

#[derive(Debug)]
enum Reported<R> {
    /// Nothing: the owner has not received the hold yet. It may already have ended.
    Nothing { end: Option<Event<R>> },
    /// The acquisition, and this state of the contact.
    Held(Contact),
    /// The end.
    End,
}

/// Whether the owner has received the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Yes,
    NotYet,
}

impl<R> Reports<R> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Reported::Nothing { end: None }))
    }

    /// The owner has received the hold. Returns whether this is the first time and the hold has ended meanwhile.
    pub(crate) fn acquired(
        &self,
        contact: impl FnOnce() -> Option<Contact>,
        mut publish: impl FnMut(Event<R>),
    ) -> bool {
        let mut reported = self.0.lock();
        let Reported::Nothing { end } = &mut *reported else { return false };
        let end = end.take();
        publish(Event::Acquired);
        let has_ended = end.is_some();
        if let Some(end) = end {
            *reported = Reported::End;
            publish(end);
        } else {
            *reported = Reported::Held(Contact::Good);
            reported.follow(contact(), publish);
        }
        has_ended
    }

    /// Contact has been lost or has returned: `contact` returns its current state, while the hold stands.
    pub(crate) fn contact_changed(
        &self,
        contact: impl FnOnce() -> Option<Contact>,
        publish: impl FnOnce(Event<R>),
    ) {
        self.0.lock().follow(contact(), publish);
    }

    /// The hold has ended, and nothing is reported afterwards. Returns whether the owner had received it.
    pub(crate) fn ended(&self, event: Event<R>, publish: impl FnOnce(Event<R>)) -> Known {
        let mut reported = self.0.lock();
        match &mut *reported {
            Reported::Nothing { end } => {
                end.get_or_insert(event);
                Known::NotYet
            }
            Reported::Held(_) => {
                *reported = Reported::End;
                publish(event);
                Known::Yes
            }
            Reported::End => Known::Yes,
        }
    }
}

impl<R> Reported<R> {
    fn follow(&mut self, contact: Option<Contact>, publish: impl FnOnce(Event<R>)) {
        let (Self::Held(reported), Some(contact)) = (self, contact) else { return };
        if *reported == contact {
            return;
        }
        *reported = contact;
        publish(match contact {
            Contact::Good => Event::Restored,
            Contact::Suspect => Event::Suspect,
        });
    }
}
