//! Releases a lock: leaves the local lock, and waits until the hold has ended at the server.

use std::pin::pin;
use std::sync::Arc;

use crate::policy::client_lock::{ClientLock, Where};
use crate::policy::hold::Hold;
use crate::policy::local::Exited;
use crate::spi::Mode;
use crate::types::{HoldEnd, LockError, Operation, Owner};

impl ClientLock {
    /// Ends one entry of `owner`; with `of`, only an entry into that hold. The first poll ends the entry; the rest
    /// continues even if the future is dropped.
    pub(crate) async fn release(
        self: &Arc<Self>,
        owner: Owner,
        mode: Mode,
        of: Option<&Hold>,
    ) -> Result<(), LockError> {
        match self.turn(Where::Here, |local, turn| local.exit(turn, (owner, mode), of)) {
            Exited::StillHeld => Ok(()),
            Exited::NotOwner => Err(self.about(LockError::not_owner(self.name(), owner))),
            Exited::Lost(reason) => Err(self.lost(Operation::Release, reason)),
            Exited::Ends(hold) => {
                let span = hold.release_span();
                span.around(pin!(self.end_of(hold))).await
            }
        }
    }

    async fn end_of(&self, hold: Hold) -> Result<(), LockError> {
        match (hold.ended().await, hold.0.failure.get()) {
            (_, Some(error)) => Err(self.about(error.clone())),
            (HoldEnd::Lost(reason), None) => Err(self.lost(Operation::Release, reason)),
            (HoldEnd::Released, None) => Ok(()),
        }
    }

    /// The entries of `owner` into `hold`, which is lost, do not say when it has stopped.
    pub(crate) fn keep_margin(self: &Arc<Self>, owner: Owner, hold: &Hold) {
        drop(self.turn(Where::Here, |local, _| local.take_tombstone(owner, hold)));
    }

    /// Ends one entry of `owner` into `hold` without waiting: at the end of a scope, or when a guard is dropped.
    pub(crate) fn leave_in_background(self: &Arc<Self>, owner: Owner, hold: &Hold) {
        self.turn(Where::Here, |local, turn| local.exit_unheard(turn, owner, hold));
    }
}
