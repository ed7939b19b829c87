//! Releases a lock: leaves the local mutex, and ends the hold at the server.

use std::future::poll_fn;
use std::sync::Arc;

use crate::policy::cleanup::{Outcome, unconfirmed};
use crate::policy::entry::Entry;
use crate::policy::hold::HoldCore;
use crate::policy::local::Exited;
use crate::runtime::race::within;
use crate::types::error::{LockError, Operation};
use crate::types::owner::Owner;

impl Entry {
    /// Ends one entry of `owner`; with `of`, only an entry into that hold. The first poll ends the entry; the rest
    /// continues even if the future is dropped.
    pub(crate) async fn release(
        self: &Arc<Self>,
        owner: Owner,
        of: Option<&Arc<HoldCore>>,
    ) -> Result<(), LockError> {
        let (exited, start) = self.local.exit(owner, of, |patience, terms| self.new_attempt(patience, terms));
        self.start_there(start);
        match exited {
            Exited::StillHeld => Ok(()),
            Exited::NotOwner => Err(self.not_owner(owner)),
            Exited::Lost(reason) => {
                self.retire();
                Err(self.lost(Operation::Release, reason))
            }
            Exited::Release(hold) => self.outcome_of(&hold, self.give_back(&hold)).await,
            Exited::Downgrade { hold, reader } => {
                self.outcome_of(&hold, self.downgrade(&hold, &reader)).await
            }
        }
    }

    async fn outcome_of(&self, hold: &Arc<HoldCore>, outcome: Arc<Outcome>) -> Result<(), LockError> {
        let answer = poll_fn(|context| outcome.poll(context));
        if let Some(result) = within(self.clock(), outcome.due, answer).await {
            return result;
        }
        hold.finish_release(None);
        Err(self.about(unconfirmed()))
    }

    /// Ends one entry of `owner` into `hold` without waiting: at the end of a scope, or when a guard is dropped.
    pub(crate) fn leave_in_background(self: &Arc<Self>, owner: Owner, hold: &Arc<HoldCore>) {
        let (exited, start) =
            self.local.exit_in_silence(owner, hold, |patience, terms| self.new_attempt(patience, terms));
        self.start_there(start);
        match exited {
            Exited::Release(hold) => drop(self.give_back(&hold)),
            Exited::Downgrade { hold, reader } => drop(self.downgrade(&hold, &reader)),
            Exited::Lost(_) => self.retire(),
            Exited::StillHeld | Exited::NotOwner => {}
        }
    }
}
