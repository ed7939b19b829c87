//! Releases a lock: leaves the local mutex, and ends the hold at the server.

use std::future::poll_fn;
use std::sync::Arc;

use crate::policy::cleanup::{Outcome, unconfirmed};
use crate::policy::entry::Entry;
use crate::policy::hold::HoldCore;
use crate::policy::local::Exited;
use crate::runtime::race::within;
use crate::spi::AcquireRequest;
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
        let (exited, start) =
            self.local.exit(owner, of, |patience, options| self.new_attempt(patience, options));
        let behind = self.start_unless_behind(&exited, start);
        match exited {
            Exited::StillHeld => Ok(()),
            Exited::NotOwner => Err(self.not_owner(owner)),
            Exited::Lost(reason) => {
                self.retire();
                Err(self.lost(Operation::Release, reason))
            }
            Exited::Release(hold) if self.hand_on(&hold) => Ok(()),
            Exited::Release(hold) => {
                let released = self.give_back_before(&hold, behind);
                self.outcome_of(&hold, released).await
            }
            Exited::Downgrade { hold, reader } => {
                self.outcome_of(&hold, self.downgrade(&hold, &reader)).await
            }
        }
    }

    /// Makes the attempt that follows the end of an entry; returns it instead if it leaves right behind the release.
    fn start_unless_behind(
        self: &Arc<Self>,
        exited: &Exited<Arc<HoldCore>>,
        start: Option<Arc<AcquireRequest>>,
    ) -> Option<Arc<AcquireRequest>> {
        if matches!(exited, Exited::Release(_)) {
            return start;
        }
        self.start_there(start);
        None
    }

    /// Passes the lock to the next task without the server, if the client does that. Returns whether it has.
    fn hand_on(self: &Arc<Self>, hold: &Arc<HoldCore>) -> bool {
        if hold.grant().series.is_none() {
            return false;
        }
        let next = self.local.next_options().and_then(|options| hold.next_in_series(&options));
        let Some(next) = next else { return false };
        let renewer = &self.client.renewer;
        // Registered first: a group that is lost or without contact meanwhile is so for one of them.
        let group_end = renewer.register(&next);
        renewer.unregister(hold);
        let lost_before = next.take_reports().or(group_end);
        if hold.is_suspect() {
            next.declare_suspect();
        }
        // Its listeners learn of the end before the next one begins.
        hold.finish_release(None);
        if let Some(reason) = lost_before {
            next.declare_lost(reason);
        }
        if !next.is_standing() {
            renewer.unregister(&next);
        }
        let counted = self.client.cleanup.expect();
        let (undo, start) =
            self.local.hand_off(next, |patience, options| self.new_attempt(patience, options));
        self.undo(undo, counted);
        self.start_there(start);
        true
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
            self.local.exit_in_silence(owner, hold, |patience, options| self.new_attempt(patience, options));
        let behind = self.start_unless_behind(&exited, start);
        match exited {
            Exited::Release(hold) if self.hand_on(&hold) => {}
            Exited::Release(hold) => drop(self.give_back_before(&hold, behind)),
            Exited::Downgrade { hold, reader } => drop(self.downgrade(&hold, &reader)),
            Exited::Lost(_) => self.retire(),
            Exited::StillHeld | Exited::NotOwner => {}
        }
    }
}
