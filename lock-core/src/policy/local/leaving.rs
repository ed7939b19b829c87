//! What leaves the local lock: requests whose callers have gone, with an heir for what they have got so far, and the entries of
//! owners.

use std::ops::Bound;

use super::claims::{ClaimState, Number, Seen};
use super::line::{At, Request, Ticket};
use super::owners::Tombstone;
use super::turn::Turn;
use super::{Exited, LocalLock, Settled};
use crate::policy::hold::Hold;
use crate::spi::Mode;
use crate::types::Owner;

impl LocalLock {
    /// The wait has no caller any more.
    pub(crate) fn leave(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        self.withdraw(turn, ticket);
        let Some(Request { owner, at, waker, .. }) = self.line.take(ticket) else { return };
        turn.effects.dropped.extend(waker);
        if let At::Over(Settled::Granted(hold)) = at {
            self.exit_unheard(turn, owner, &hold);
        }
    }

    /// What a request has got so far goes to its heir, or is undone.
    pub(super) fn withdraw(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        let number = match self.line.get(ticket).map(|request| &request.at) {
            Some(At::Sent(number) | At::Granted(number)) => *number,
            _ => return,
        };
        let heir = self.heir(Bound::Excluded(ticket), number);
        let Some(claim) = self.claims.get_mut(&number) else { return };
        match (&mut claim.state, heir) {
            (ClaimState::Attempt(attempt), Some(heir)) => {
                attempt.ticket = heir;
                self.line.set(heir, At::Sent(number));
            }
            (ClaimState::Attempt(_), None) => self.stop(turn, ticket, number),
            (ClaimState::Leased(lease), Some(heir)) => {
                lease.seen = Seen::NotYet(heir);
                if self.answers.are_before(number) {
                    self.line.set(heir, At::Sent(number));
                } else {
                    self.give(turn, heir, number);
                }
            }
            (ClaimState::Leased(_), None) => self.end_lease(turn, number),
            (ClaimState::Ending(_), _) => {}
        }
    }

    /// Returns the request that inherits what an exclusive one before it has, or has had: the next one, if it asks for the same.
    pub(super) fn heir(&self, before: Bound<Ticket>, number: Number) -> Option<Ticket> {
        let claim = self.claims.get(&number).filter(|claim| claim.mode() == Mode::Exclusive)?;
        let (heir, request) = self.line.after(before)?;
        let inherits = request.mode == Mode::Exclusive
            && matches!(request.at, At::Waits)
            && request.suits(claim.request.options());
        inherits.then_some(heir)
    }

    /// Ends one entry of `owner`. With `of`, only an entry into that hold: the owner may have lost it and have another one by
    /// now.
    pub(crate) fn exit(
        &mut self,
        turn: &mut Turn<'_>,
        (owner, mode): (Owner, Mode),
        of: Option<&Hold>,
    ) -> Exited {
        let Some(entered) = self.owners.entered_mut(owner, mode, of) else {
            let tombstone = self.owners.take_tombstone(owner, mode, of);
            return tombstone.map_or(Exited::NotOwner, |lost| Exited::Lost(lost.left(turn)));
        };
        entered.entries -= 1;
        if entered.entries > 0 {
            return Exited::StillHeld;
        }
        let Some(left) = self.owners.leave(owner, mode) else { return Exited::NotOwner };
        self.end_hold(turn, &left.hold);
        Exited::Ends(left.hold)
    }

    /// The owner learns of the loss of that hold, and the lease stays for its abort margin.
    pub(crate) fn take_tombstone(&mut self, owner: Owner, hold: &Hold) -> Option<Tombstone> {
        self.owners.take_tombstone(owner, hold.mode(), Some(hold))
    }

    /// Ends one entry of `owner` into that hold, without a caller that could learn of a loss: the other entries tell of it.
    pub(crate) fn exit_unheard(&mut self, turn: &mut Turn<'_>, owner: Owner, hold: &Hold) {
        let mode = hold.mode();
        if self.is_in(owner, mode, hold) {
            self.exit(turn, (owner, mode), Some(hold));
        } else {
            self.owners.leave_tombstone(turn, owner, mode, hold);
        }
    }
}
