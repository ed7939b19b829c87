//! The rule that sends: which request may go to the server now, and what stands in its way.

use super::LocalLock;
use super::claims::{Attempt, Claim, ClaimState, Number, Word};
use super::line::{At, Ticket};
use super::turn::{Turn, UnseenLosses, Work};
use crate::runtime::Moment;
use crate::spi::{Mode, Wait};

/// What stands in the way of a request that is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// An earlier request that is not sent, either.
    Earlier(Ticket),
    /// An attempt, of which the server has not said that it is in the queue, or which is exclusive like the request.
    Attempt(Number),
    /// An exclusive lease of this client.
    Lease,
    /// A release or a cancel that is not answered.
    Answer,
}

impl LocalLock {
    /// Does what has become possible. What an input has brought too late is over at once.
    pub(crate) fn advance(&mut self, turn: &mut Turn<'_>) {
        loop {
            self.pass_time(turn);
            if self.line.is_empty() {
                self.has_news = false;
                return;
            }
            self.end_late_waits(turn);
            self.answer_tries(turn);
            if !self.send_next(turn) && !self.has_news {
                return;
            }
        }
    }

    pub(super) fn obstacle(&mut self, ticket: Ticket) -> Option<Obstacle> {
        let mode = self.line.get(ticket)?.mode;
        if let Some(first) = self.line.first_unsent().filter(|first| *first < ticket) {
            return Some(Obstacle::Earlier(first));
        }
        let is_exclusive = mode == Mode::Exclusive;
        if let Some(number) =
            self.attempting.filter(|number| is_exclusive || self.is_unplaced_before(ticket, *number))
        {
            return Some(Obstacle::Attempt(number));
        }
        if let Some(number) = self.exclusive.filter(|_| is_exclusive) {
            let is_unanswered = self.claims.get(&number).is_some_and(Claim::is_unanswered);
            return Some(if is_unanswered { Obstacle::Answer } else { Obstacle::Lease });
        }
        let earlier = self.unplaced.first().filter(|first| mode != Mode::Shared && **first < ticket);
        if let Some(At::Sent(number)) =
            earlier.and_then(|first| self.line.get(*first)).map(|request| &request.at)
        {
            return Some(Obstacle::Attempt(*number));
        }
        (self.answers.count_before(mode) > 0).then_some(Obstacle::Answer)
    }

    fn is_unplaced_before(&self, ticket: Ticket, number: Number) -> bool {
        match self.claims.get(&number).map(|claim| &claim.state) {
            Some(ClaimState::Attempt(attempt)) => !attempt.is_placed && attempt.ticket < ticket,
            _ => false,
        }
    }

    /// Sends the first request that is not sent, if nothing stands in its way.
    fn send_next(&mut self, turn: &mut Turn<'_>) -> bool {
        let Some(ticket) = self.line.first_unsent() else { return false };
        let behind = match self.obstacle(ticket) {
            None => None,
            Some(Obstacle::Answer) => match self.may_follow(turn, ticket) {
                Some(release) => Some(release),
                None => return false,
            },
            Some(Obstacle::Attempt(number)) => {
                let is_shared = self.line.get(ticket).is_some_and(|request| request.mode != Mode::Exclusive);
                if let Some(Claim { request, state: ClaimState::Attempt(attempt) }) =
                    self.claims.get_mut(&number)
                    && is_shared
                    && request.mode() == Mode::Exclusive
                    && !std::mem::replace(&mut attempt.is_awaited, true)
                {
                    turn.effects.asked.push(request.clone());
                }
                return false;
            }
            Some(_) => return false,
        };
        self.send(turn, ticket, behind);
        true
    }

    /// Returns the release that a request may follow although it is not answered: where the server keeps the order of
    /// requests. A try does not follow: the answer that the lock is held would be wrong if the release failed.
    fn may_follow(&self, turn: &Turn<'_>, ticket: Ticket) -> Option<Number> {
        let request = self.line.get(ticket)?;
        let release = self.answers.of_release?;
        let may = turn.capabilities().pipelining
            && self.answers.count_before(Mode::Exclusive) == 1
            && request.mode == Mode::Exclusive
            && !request.tries_once();
        may.then_some(release)
    }

    fn send(&mut self, turn: &mut Turn<'_>, ticket: Ticket, behind: Option<Number>) {
        let number = turn.lock.client.new_number();
        let Some(request) = self.line.set(ticket, At::Sent(number)) else { return };
        self.last_holder = None;
        let wait = request.wait;
        let asked = turn.lock.request(number, request.mode, wait, &request.options);
        if let Some(place) = request.place.take().filter(|_| wait != Wait::Try) {
            asked.keep_place(place);
        }
        if request.mode == Mode::Exclusive {
            self.attempting = Some(number);
        } else {
            self.unplaced.insert(ticket);
        }
        let attempt = Attempt {
            ticket,
            since: turn.now,
            word: Word::None,
            heard: turn.now,
            is_placed: false,
            is_awaited: false,
            loss: None,
            driver: None,
        };
        if behind.is_some() {
            self.answers.follower = Some(number);
        }
        let losses = if wait == Wait::Try { None } else { self.take_unseen_losses() };
        turn.effects.work.push(Work::Attempt(asked.clone(), losses));
        self.claims.insert(number, Claim { request: asked, state: ClaimState::Attempt(attempt) });
    }

    /// Returns the grants that were lost unseen before the next attempt, which pauses first: it may fail in the same way.
    fn take_unseen_losses(&mut self) -> Option<UnseenLosses> {
        let reason = self.last_loss.take()?;
        (self.lost_in_a_row > 0).then_some(UnseenLosses { reason, in_a_row: self.lost_in_a_row })
    }

    /// Nothing happens by itself before the earliest of these moments.
    pub(super) fn look_by(&mut self, moment: Moment) {
        self.due = self.due.min(moment);
    }
}
