//! Gives leases back: to the next request of this client, to the reader under a writer, or to the server. And what the server
//! answers to releases, cancels and downgrades: the first answer, whatever it is, lets the line go on.

use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::LocalLock;
use super::claims::{Claim, ClaimState, Ending, Lasting, Lease, Number, Sections, Seen, Successor};
use super::turn::{Release, Turn, Work};
use crate::policy::hold::{Hold, HoldGrant};
use crate::runtime::Moment;
use crate::spi::{AcquireRequest, Mode, Released};
use crate::types::{ErrorKind, FencingToken, LockError, LossReason, Operation};

/// How long an owner waits for a release at most, even if its lease is longer.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// How many renewal intervals of its lease a hold must have left to be handed on.
const INTERVALS_LEFT: u32 = 2;

/// What came of a release, a cancel or a downgrade.
pub(crate) enum Reply {
    /// Nothing is left at the server.
    Done,
    Released(Released),
    /// It is sent again, if that may help.
    Failed(LockError),
    /// There will be no answer.
    Never,
}

impl LocalLock {
    /// The owner of a hold has left it.
    pub(super) fn end_hold(&mut self, turn: &mut Turn<'_>, hold: &Hold) {
        let number = hold.grant().lease;
        let Some(claim) = self.claims.get_mut(&number) else { return };
        let of_a_reader = match &mut claim.state {
            ClaimState::Leased(lease) => lease.reader.take_if(|reader| *reader == *hold).is_some(),
            ClaimState::Ending(_) => self.take_successor(turn, number).is_some(),
            ClaimState::Attempt(_) => false,
        };
        if of_a_reader {
            hold.0.state.begin_release();
            return turn.finish(hold, None, None);
        }
        self.end_lease(turn, number);
    }

    /// Gives a lease back: to the next request of this client, to the reader under it, or to the server.
    pub(super) fn end_lease(&mut self, turn: &mut Turn<'_>, number: Number) {
        self.has_news = true;
        let Some(lease) = self.lease(number) else { return };
        lease.hold.0.state.begin_release();
        let (hold, reader, group) = (lease.hold.clone(), lease.reader.take(), lease.group);
        let lease_ends = match lease.lasting {
            Lasting::UntilReported => Moment::FOREVER,
            Lasting::Leased { .. } => hold.deadline(),
        };
        let due = lease_ends.min(turn.now.plus(RELEASE_TIMEOUT));
        match (reader, lease.seen) {
            (Some(reader), Seen::By(owner)) => {
                self.downgrade(turn, number, (hold, due), Successor { reader, owner, group });
            }
            _ if self.hand_on(turn, number) => {}
            _ => self.release(turn, number, (hold, due)),
        }
    }

    fn release(&mut self, turn: &mut Turn<'_>, number: Number, hold: (Hold, Moment)) {
        let counted = turn.counted();
        let ending = Ending { hold: Some(hold), ..Ending::sent_at(turn.now) };
        let Some((request, lease)) = self.end(turn, number, ending) else { return };
        turn.unregister(number, lease.group);
        if self.exclusive == Some(number) {
            self.exclusive = None;
        }
        // A lease with sections passes to the next request without the server, or not at all.
        if request.mode() == Mode::Exclusive && lease.sections.is_none() {
            self.answers.of_release = Some(number);
        }
        let gone_by = turn.gone_by(&lease);
        turn.effects.work.push(Work::Release(Release { request, lease: lease.kept, gone_by, counted }));
    }

    /// Something that the server may have is being undone from now on. Returns the lease, if it was one.
    pub(super) fn end(
        &mut self,
        turn: &mut Turn<'_>,
        number: Number,
        ending: Ending,
    ) -> Option<(AcquireRequest, Lease)> {
        let claim = self.claims.get_mut(&number)?;
        let before = std::mem::replace(&mut claim.state, ClaimState::Ending(ending));
        let (mode, request, due) = (claim.mode(), claim.request.clone(), claim.due());
        self.look_by(due);
        self.answers.of(mode).count += 1;
        match before {
            ClaimState::Leased(lease) => Some((request, lease)),
            ClaimState::Attempt(attempt) => {
                turn.effects.forget(attempt);
                None
            }
            ClaimState::Ending(_) => None,
        }
    }

    /// Passes a lock on without the server, if the client does that. Returns whether it has.
    fn hand_on(&mut self, turn: &mut Turn<'_>, number: Number) -> bool {
        let Some(ticket) = self.heir(Bound::Unbounded, number) else { return false };
        let Some(lease) = self.lease(number) else { return false };
        if !lease.may_be_handed_on(turn.now) {
            return false;
        }
        let Some(sections) = &mut lease.sections else { return false };
        sections.left -= 1;
        if let Some(passes) = &sections.passes {
            passes.fetch_add(1, Ordering::AcqRel);
        }
        let former = lease.hold.grant();
        let token = former.token.map(|token| FencingToken::new(token.get() + 1));
        let granted = HoldGrant { token, ..former.clone() };
        let hold = turn.hold(granted, lease.lasting.deadline());
        let deadline = hold.deadline();
        let former = std::mem::replace(&mut lease.hold, hold);
        lease.seen = Seen::NotYet(ticket);
        // Its listeners learn of the end before the next one begins.
        turn.finish(&former, None, None);
        self.look_by(deadline);
        self.give(turn, ticket, number);
        true
    }

    /// A reply to a release, a cancel or a downgrade has come. The first, whatever it is, lets the line go on.
    pub(crate) fn answered(&mut self, turn: &mut Turn<'_>, number: Number, reply: &Reply) {
        let Some(Claim { request, state: ClaimState::Ending(ending) }) = self.claims.get_mut(&number) else {
            return;
        };
        let is_first = !std::mem::replace(&mut ending.is_answered, true);
        let mode = request.mode();
        let was_overdue = is_first && ending.is_overdue;
        // "Not yours" in answer to a repeated request means that an earlier one arrived.
        let loss = match reply {
            Reply::Released(Released::WasLost(reason)) if is_first => Some(*reason),
            _ => None,
        };
        let failure = match reply {
            Reply::Never => Some(unconfirmed()),
            Reply::Failed(error) if !error.is_retryable() => Some(error.clone().during(Operation::Release)),
            _ => None,
        };
        let is_certain = !matches!(reply, Reply::Failed(_));
        if is_certain || failure.is_some() {
            if let Some((hold, _)) = ending.hold.take() {
                turn.finish(&hold, loss, failure);
            }
            let reason = match reply {
                Reply::Released(Released::WasLost(reason)) => *reason,
                _ => LossReason::Expired,
            };
            self.lose_reader(turn, number, reason);
        }
        if is_first {
            let due = self.answers.of(mode);
            due.count -= 1;
            due.overdue -= u32::from(was_overdue);
            self.first_answer(turn, number, matches!(reply, Reply::Never));
        }
        if is_certain {
            self.claims.remove(&number);
            if self.exclusive == Some(number) {
                self.exclusive = None;
            }
        }
    }

    /// What was sent behind a release may be given; not if that will never be answered, because then it cannot be renewed, either.
    fn first_answer(&mut self, turn: &mut Turn<'_>, number: Number, will_never_come: bool) {
        self.has_news = true;
        if self.answers.of_release != Some(number) {
            return;
        }
        self.answers.of_release = None;
        let Some(follower) = self.answers.follower.take() else { return };
        let Some(Lease { seen: Seen::NotYet(ticket), .. }) = self.lease(follower) else {
            return;
        };
        let ticket = *ticket;
        if will_never_come {
            self.lose(turn, follower, LossReason::ConnectionLost);
        } else {
            self.give(turn, ticket, follower);
        }
    }
}

impl Lease {
    fn may_be_handed_on(&self, now: Moment) -> bool {
        let Some(Sections { left, until, .. }) = self.sections.as_deref() else { return false };
        // Of suspect contact the next owner would not learn.
        if *left == 0 || now >= *until || self.hold.0.state.is_suspect() || self.hold.is_inherited() {
            return false;
        }
        match self.lasting {
            Lasting::UntilReported => true,
            Lasting::Leased { anchor, validity } => {
                validity.deadline(anchor).since(now) >= validity.interval() * INTERVALS_LEFT
            }
        }
    }
}

/// The error of a release whose outcome is not known.
pub(super) fn unconfirmed() -> LockError {
    LockError::new(ErrorKind::Unconfirmed, Operation::Release)
        .because("the server has not answered in time")
        .remedy("the release is repeated in the background; the lease ends the hold at the latest")
}
