//! When a client comes to its end, and what is not answered yet is given up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::policy::groups::HeldGroups;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::race::within;

/// How long something is tried for at least, from the end of the last handle of its client on.
const TRIED_FOR: Duration = Duration::from_secs(60);

pub(crate) struct ClientEnd {
    clock: Clock,
    held: Arc<HeldGroups>,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    InUse,
    /// No handle of the client is left since then.
    Unused(Moment),
    Closed,
}

impl ClientEnd {
    pub(crate) fn new(clock: Clock, held: Arc<HeldGroups>) -> Self {
        Self { clock, held, state: watch::Sender::new(State::InUse) }
    }

    pub(crate) fn unused(&self) {
        let since = self.clock.now();
        self.state.send_if_modified(|state| {
            let was_in_use = *state == State::InUse;
            if was_in_use {
                *state = State::Unused(since);
            }
            was_in_use
        });
    }

    pub(crate) fn closed(&self) {
        self.state.send_replace(State::Closed);
    }

    /// Waits until what has been begun now is to be given up.
    pub(crate) async fn comes(&self) {
        let mut changes = self.state.subscribe();
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
            if !self.held.holds_something() {
                return;
            }
            // As long as something is held, the client lives on.
            tried_until = self.clock.now().plus(TRIED_FOR);
        }
    }
}
