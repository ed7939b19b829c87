//! The end of a client, at which unanswered requests are given up.

use std::time::Duration;

use tokio::sync::watch;

use crate::policy::context::ClientContext;
use crate::runtime::clock::Moment;
use crate::runtime::race::within;

/// The minimum time for which a request is repeated after the last handle of its client was dropped.
const TRIED_FOR: Duration = Duration::from_secs(60);

pub(crate) struct ClientEnd {
    state: watch::Sender<State>,
    /// The last receiver that is dropped wakes the sender, which is more work than all the rest.
    _never_the_last: watch::Receiver<State>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    InUse,
    /// The client has had no handle since then.
    Unused(Moment),
    Closed,
}

impl ClientEnd {
    pub(crate) fn new() -> Self {
        let (state, receiver) = watch::channel(State::InUse);
        Self { state, _never_the_last: receiver }
    }

    /// The last handle of the client was dropped.
    pub(crate) fn unused(&self, since: Moment) {
        self.state.send_modify(|state| {
            if *state == State::InUse {
                *state = State::Unused(since);
            }
        });
    }

    /// The backend is closed: the remaining work can no longer be done.
    pub(crate) fn closed(&self) {
        self.state.send_replace(State::Closed);
    }
}

impl ClientContext {
    /// Waits until the work that begins now is to be given up.
    pub(super) async fn gives_up(&self) {
        let mut changes = self.end.state.subscribe();
        let mut tried_until = self.clock.now().plus(TRIED_FOR);
        loop {
            let state = *changes.borrow_and_update();
            let until = match state {
                State::InUse => Moment::FOREVER,
                State::Unused(since) => tried_until.max(since.plus(TRIED_FOR)),
                State::Closed => return,
            };
            if within(&self.clock, until, changes.changed()).await.is_some() {
                continue;
            }
            if self.held.leases.count() == 0 {
                return;
            }
            // The client lives on as long as it holds a lock.
            tried_until = self.clock.now().plus(TRIED_FOR);
        }
    }
}
