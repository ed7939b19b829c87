//! Contact with the server: lost, and returned in time.

use std::sync::Arc;
use std::time::Duration;

use distlock::{DistributedLock, Hold, LockListener, LossReason};
use tokio::sync::mpsc;

use crate::event::Event;

/// What is told about contact with the server while a lock is held. The loss of the lock is told by its hold.
#[derive(Debug)]
pub(crate) struct Contact {
    changes: mpsc::UnboundedReceiver<Change>,
    /// Keeps the queue open, so that waiting for the next change never ends without one.
    _open: mpsc::UnboundedSender<Change>,
}

#[derive(Debug)]
enum Change {
    Suspect(Option<Duration>),
    Restored,
}

struct Teller(mpsc::UnboundedSender<Change>);

impl LockListener for Teller {
    fn on_abort(&self, _hold: &Hold, _reason: &LossReason) {}

    fn on_suspect(&self, hold: &Hold) {
        let _ = self.0.send(Change::Suspect(hold.remaining()));
    }

    fn on_restored(&self, _hold: &Hold) {
        let _ = self.0.send(Change::Restored);
    }
}

impl Contact {
    /// Begins to listen to `lock`.
    pub(crate) fn watch(lock: &dyn DistributedLock) -> Self {
        let (sender, changes) = mpsc::unbounded_channel();
        lock.set_listener(Some(Arc::new(Teller(sender.clone()))));
        Self { changes, _open: sender }
    }

    /// Waits for the next change.
    ///
    /// # Cancel safety
    /// A change is either answered or left for the next call.
    pub(crate) async fn change(&mut self) -> Event<'static> {
        match self.changes.recv().await {
            Some(Change::Suspect(remaining)) => Event::Suspect { remaining },
            Some(Change::Restored) => Event::Restored,
            None => std::future::pending().await,
        }
    }
}
