//! The end of a client: when it begins, and when unanswered requests are given up.

use std::time::Duration;

use tokio::sync::watch;

use crate::policy::context::ClientContext;
use crate::runtime::{Moment, within};

/// The minimum time for which a request is repeated after the last handle of its client was dropped.
const TRIED_FOR: Duration = Duration::from_secs(60);

pub(crate) struct ClientEnd {
    state: watch::Sender<Stage>,
    /// The last receiver that is dropped wakes the sender, which is more work than all the rest.
    _never_the_last: watch::Receiver<Stage>,
}

/// What a client has reached; it never goes back.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Stage {
    InUse,
    /// `close` has begun.
    Closing,
    /// The last handle of the client was dropped then.
    Unused(Moment),
    /// The backend is closed: the remaining work can no longer be done.
    Closed,
}

impl ClientEnd {
    pub(crate) fn new() -> Self {
        let (state, receiver) = watch::channel(Stage::InUse);
        Self { state, _never_the_last: receiver }
    }

    pub(crate) fn reach(&self, reached: Stage) {
        self.state.send_if_modified(|state| {
            let is_later = reached > *state;
            *state = if is_later { reached } else { *state };
            is_later
        });
    }

    pub(crate) fn has_begun(&self) -> bool {
        *self.state.borrow() >= Stage::Closing
    }

    /// Waits until `close` begins.
    pub(crate) async fn beginning(&self) {
        // The sender lives as long as this client.
        let _ = self.state.subscribe().wait_for(|state| *state >= Stage::Closing).await;
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
                Stage::InUse | Stage::Closing => Moment::FOREVER,
                Stage::Unused(since) => tried_until.max(since.plus(TRIED_FOR)),
                Stage::Closed => return,
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
