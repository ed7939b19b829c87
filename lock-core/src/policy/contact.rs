//! Whether the client has contact with the server: pauses between requests end when contact returns.

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Contact {
    state: watch::Sender<State>,
    /// The last receiver that is dropped wakes the sender, which is more work than all the rest.
    _never_the_last: watch::Receiver<State>,
}

#[derive(Debug, PartialEq)]
enum State {
    Good,
    Lost,
}

/// Waits for the return of contact.
pub(crate) struct Return(watch::Receiver<State>);

impl Default for Contact {
    fn default() -> Self {
        let (state, receiver) = watch::channel(State::Good);
        Self { state, _never_the_last: receiver }
    }
}

impl Contact {
    pub(crate) fn lost(&self) {
        self.state.send_if_modified(|state| {
            *state = State::Lost;
            // Only a return ends a pause.
            false
        });
    }

    pub(crate) fn returned(&self) {
        self.state.send_if_modified(|state| std::mem::replace(state, State::Good) == State::Lost);
    }

    pub(crate) fn watch(&self) -> Return {
        Return(self.state.subscribe())
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
