//! Reports when contact with the server is lost, and when it returns in time.

use std::sync::Arc;
use std::time::Duration;

use distlock::capabilities::Reach;
use distlock::events::Subscription;
use distlock::{DistributedLock, Hold, LockClient, LockListener, LossReason};
use tokio::sync::mpsc;

use crate::event::Event;

/// Listens for changes of contact with the server while a lock is held. The hold itself reports the loss of the lock.
///
/// It is dropped before the release, so that reporting the release does not start a thread.
#[derive(Debug)]
pub(crate) struct Contact {
    /// `None` if the backend has no contact to lose.
    changes: Option<(mpsc::UnboundedReceiver<ContactChange>, Subscription)>,
}

#[derive(Debug)]
enum ContactChange {
    Suspect(Option<Duration>),
    Restored,
}

struct Teller(mpsc::UnboundedSender<ContactChange>);

impl LockListener for Teller {
    fn on_abort(&self, _hold: &Hold, _reason: &LossReason) {}

    fn on_suspect(&self, hold: &Hold) {
        let _ = self.0.send(ContactChange::Suspect(hold.remaining()));
    }

    fn on_restored(&self, _hold: &Hold) {
        let _ = self.0.send(ContactChange::Restored);
    }
}

impl Contact {
    /// Begins to listen to `lock`, unless its backend is on this machine, because a listener costs a thread.
    pub(crate) fn watch(locks: &LockClient, lock: &dyn DistributedLock) -> Self {
        let changes = (locks.capabilities().reach == Reach::Network).then(|| {
            let (sender, changes) = mpsc::unbounded_channel();
            (changes, lock.add_listener(Arc::new(Teller(sender))))
        });
        Self { changes }
    }

    /// Waits for the next change.
    ///
    /// # Cancel safety
    /// A change is either returned or left for the next call.
    pub(crate) async fn change(&mut self) -> Event<'static> {
        let change = match &mut self.changes {
            Some((changes, _)) => changes.recv().await,
            None => None,
        };
        match change {
            Some(ContactChange::Suspect(remaining)) => Event::Suspect { remaining },
            Some(ContactChange::Restored) => Event::Restored,
            None => std::future::pending().await,
        }
    }
}
