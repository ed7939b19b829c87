//! Ends pauses between requests when contact with the server returns.

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Contact {
    returns: watch::Sender<()>,
    /// The last receiver that is dropped wakes the sender, which is more work than all the rest.
    _never_the_last: watch::Receiver<()>,
}

/// Waits for the return of contact.
pub(crate) struct Return(watch::Receiver<()>);

impl Default for Contact {
    fn default() -> Self {
        let (returns, receiver) = watch::channel(());
        Self { returns, _never_the_last: receiver }
    }
}

impl Contact {
    pub(crate) fn returned(&self) {
        self.returns.send_replace(());
    }

    pub(crate) fn watch(&self) -> Return {
        Return(self.returns.subscribe())
    }
}

impl Return {
    /// Waits until contact has returned since the last call.
    pub(crate) async fn noticed(&mut self) {
        if self.0.changed().await.is_err() {
            // The client is gone, so contact never returns.
            std::future::pending::<()>().await;
        }
    }
}
