//! What ends by itself: leases at their deadlines or by the report of the backend, and what waits for answers.

use std::sync::Arc;

use super::claims::{Claim, ClaimState, Lasting, Lease, Number, Seen};
use super::line::{At, Request, Ticket};
use super::releasing::unconfirmed;
use super::turn::{LostLease, Release, Turn, Work};
use super::{LocalLock, OVERDUE, Settled};
use crate::policy::hold::Hold;
use crate::runtime::Moment;
use crate::spi::{AcquireRequest, Mode};
use crate::types::LossReason;

impl LocalLock {
    /// Ends what is over by now.
    pub(crate) fn pass_time(&mut self, turn: &mut Turn<'_>) {
        if turn.now < self.due {
            return;
        }
        self.has_news = true;
        self.ask_before_ends(turn);
        let due: Vec<_> = self
            .claims
            .iter()
            .filter(|(_, claim)| claim.due() <= turn.now)
            .map(|(number, _)| *number)
            .collect();
        for number in due {
            self.pass_time_of(turn, number);
        }
        let next_question = self.line.next_end_after(self.asked_until).map(|end| end.minus(turn.ahead()));
        let next_end = self.line.next_end_after(turn.now).into_iter().chain(next_question);
        let next = self.claims.iter().map(|(_, claim)| claim.due()).chain(next_end).min();
        self.due = next.unwrap_or(Moment::FOREVER);
    }

    fn pass_time_of(&mut self, turn: &mut Turn<'_>, number: Number) {
        let Some(claim) = self.claims.get_mut(&number) else { return };
        let mode = claim.mode();
        let ending = match &mut claim.state {
            ClaimState::Attempt(_) => return,
            ClaimState::Leased(_) => return self.lose(turn, number, LossReason::Expired),
            ClaimState::Ending(ending) => ending,
        };
        if !ending.is_answered && !ending.is_overdue && turn.now >= ending.sent.plus(OVERDUE) {
            ending.is_overdue = true;
            self.answers.of(mode).overdue += 1;
        }
        if let Some((hold, _)) = ending.hold.take_if(|(_, due)| turn.now >= *due) {
            turn.finish(&hold, None, Some(unconfirmed()));
        }
        if ending.successor.as_ref().is_some_and(|successor| turn.now >= successor.reader.deadline()) {
            self.lose_reader(turn, number, LossReason::Expired);
        }
    }

    /// The server has acknowledged a renewal that was sent at `anchor`. Returns the holds of which contact had been suspect.
    pub(crate) fn renewed(&mut self, number: Number, sent: Moment) -> Vec<Hold> {
        let Some(lease) = self.lease(number) else { return Vec::new() };
        if let Lasting::Leased { anchor, .. } = &mut lease.lasting {
            *anchor = sent.max(*anchor);
        }
        let deadline = lease.lasting.deadline();
        lease.holds().filter(|hold| hold.renew(deadline)).cloned().collect()
    }

    /// Contact with the server is lost for this lease. Returns the holds for which that is new.
    pub(crate) fn suspect(&mut self, number: Number) -> Vec<Hold> {
        let Some(lease) = self.lease(number) else { return Vec::new() };
        lease.holds().filter(|hold| hold.suspect()).cloned().collect()
    }

    /// A lease is lost, and with it what its owner holds by it.
    pub(crate) fn lose(&mut self, turn: &mut Turn<'_>, number: Number, reason: LossReason) {
        let number = self.downgraded_to(number).unwrap_or(number);
        let Some(claim) = self.claims.get_mut(&number) else { return };
        match &mut claim.state {
            ClaimState::Attempt(attempt) => {
                attempt.loss.get_or_insert(reason);
                return;
            }
            ClaimState::Ending(_) => return self.lose_reader(turn, number, reason),
            ClaimState::Leased(_) => {}
        }
        let Some(Claim { request, state: ClaimState::Leased(lease) }) = self.claims.remove(&number) else {
            return;
        };
        if self.exclusive == Some(number) {
            self.exclusive = None;
        }
        self.has_news = true;
        turn.unregister(number, lease.group);
        let gone_by = turn.gone_by(&lease);
        let counted = turn.counted();
        let stopping = Arc::default();
        let holds = lease.holds().filter_map(|hold| hold.lose(reason, &mut turn.effects.wake)).collect();
        match lease.seen {
            Seen::By(owner) => {
                self.owners.lose(owner, request.mode(), reason, &stopping);
                if lease.reader.is_some() {
                    self.owners.lose(owner, Mode::Shared, reason, &stopping);
                }
            }
            Seen::NotYet(ticket) => self.lost_unseen(turn, ticket, &request, reason),
        }
        let release = Release { request, lease: lease.kept, gone_by, counted };
        turn.effects.work.push(Work::Clear(LostLease { release, holds, reason, stopping }));
    }

    /// No code has used the lease: its request waits again, in its place.
    fn lost_unseen(
        &mut self,
        turn: &mut Turn<'_>,
        ticket: Ticket,
        asked: &AcquireRequest,
        reason: LossReason,
    ) {
        let settled = match (self.line.get(ticket).map(Request::tries_once), &self.closed) {
            (None, _) => return,
            (Some(true), _) => Settled::Lost(reason),
            (Some(false), Some(error)) => Settled::Failed(error.clone()),
            (Some(false), None) => {
                self.lost_in_a_row = self.lost_in_a_row.saturating_add(1);
                self.last_loss = Some(reason);
                if let Some(request) = self.line.set(ticket, At::Waits) {
                    request.place = asked.place();
                }
                return;
            }
        };
        self.over(turn, ticket, settled);
    }
}

impl Lease {
    fn holds(&self) -> impl Iterator<Item = &Hold> {
        std::iter::once(&self.hold).chain(&self.reader)
    }
}
