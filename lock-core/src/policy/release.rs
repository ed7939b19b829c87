//! Releases a lock: leaves the local mutex, and ends the hold at the server.

use std::future::poll_fn;
use std::sync::Arc;

use crate::policy::cleanup::unconfirmed;
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
            Exited::Lost(reason) => Err(self.lost(Operation::Release, reason)),
            Exited::Release(hold) => self.release_remotely(&hold).await,
        }
    }

    async fn release_remotely(self: &Arc<Self>, hold: &Arc<HoldCore>) -> Result<(), LockError> {
        let outcome = self.give_back(hold);
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
        if let Exited::Release(hold) = exited {
            drop(self.give_back(&hold));
        }
    }
}
