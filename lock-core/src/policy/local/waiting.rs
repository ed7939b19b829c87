//! The rules that end waits: at the end of their time, and for tries, which wait only for what will be over by itself.

use super::claims::{Claim, ClaimState, Number, Word};
use super::line::{At, Request, Ticket};
use super::send_order::Obstacle;
use super::turn::Turn;
use super::{LocalLock, OVERDUE, Settled};
use crate::runtime::Moment;
use crate::spi::{Mode, Wait};
use crate::types::{ErrorKind, LockError, Operation};

/// What is known about a wait whose time is up.
enum Prospect {
    Over(Settled),
    /// What decides it may still arrive, at the latest by then.
    Open(Moment, LockError),
}

impl LocalLock {
    /// Ends the waits whose time is up, as far as it is known how. A wait that ends while it is not known whether another
    /// owner holds the lock has failed.
    pub(super) fn end_late_waits(&mut self, turn: &mut Turn<'_>) {
        if !std::mem::take(&mut self.has_news) {
            return;
        }
        for ticket in self.line.late(turn.now) {
            let settled = match self.prospect(turn, ticket) {
                None => continue,
                Some(Prospect::Over(settled)) => settled,
                Some(Prospect::Open(until, error)) => {
                    // However often the server begins anew.
                    let until = until.min(self.end_of(ticket).plus(2 * OVERDUE));
                    if turn.now < until {
                        self.look_by(until);
                        continue;
                    }
                    Settled::Failed(error)
                }
            };
            self.withdraw(turn, ticket);
            self.over(turn, ticket, settled);
        }
    }

    /// Returns when the time of a wait was up: at its beginning, if that was later.
    fn end_of(&self, ticket: Ticket) -> Moment {
        self.line.get(ticket).map_or(Moment::FOREVER, |request| request.wait.deadline().max(request.since))
    }

    /// Has the server asked once more before waits end.
    pub(super) fn ask_before_ends(&mut self, turn: &mut Turn<'_>) {
        let until = turn.now.plus(turn.ahead());
        for ticket in self.line.ending(std::mem::replace(&mut self.asked_until, until), until) {
            self.confirm(turn, ticket);
        }
    }

    /// Has the server asked whether it still has the attempt that decides a wait, if the wait ends soon and the last word is
    /// older than that: its silence would be taken for another holder, or the grant may have been lost on its way.
    pub(super) fn confirm(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        if turn.ahead().is_zero() {
            return;
        }
        let Some(&Request { wait: Wait::Until(end), since, ref at, .. }) = self.line.get(ticket) else {
            return;
        };
        let soon = end.minus(turn.ahead());
        let decides = match at {
            _ if soon > turn.now => None,
            At::Sent(number) => Some(Obstacle::Attempt(*number)),
            At::Waits => self.root(ticket),
            At::Granted(_) | At::Over(_) => None,
        };
        let Some(Obstacle::Attempt(number)) = decides else { return };
        let Some(Claim { request, state: ClaimState::Attempt(attempt) }) = self.claims.get_mut(&number)
        else {
            return;
        };
        let is_old = match attempt.word {
            // A server that could not be reached may answer again.
            Word::Busy | Word::Unreachable(_) => attempt.heard < soon,
            // Its own request asks for all that have begun to wait before.
            Word::None => attempt.heard < soon.max(since),
        };
        if is_old {
            attempt.heard = turn.now;
            // Until the server answers, the old word does not say that another client holds the lock.
            if matches!(attempt.word, Word::Busy) {
                attempt.word = Word::None;
            }
            turn.effects.asked.push(request.clone());
        }
    }

    fn prospect(&mut self, turn: &Turn<'_>, ticket: Ticket) -> Option<Prospect> {
        let request = self.line.get(ticket)?;
        let (since, mode) = (request.since, request.mode);
        match request.at {
            At::Granted(_) | At::Over(_) => None,
            At::Sent(number) => Some(self.prospect_of(number, since)),
            At::Waits => Some(match self.root(ticket) {
                Some(Obstacle::Attempt(number)) => self.prospect_of(number, since),
                Some(Obstacle::Answer) => self.prospect_of_answers(mode),
                Some(Obstacle::Lease | Obstacle::Earlier(_)) => Prospect::Over(Settled::Refused),
                // It is about to be sent.
                None => Prospect::Open(turn.now.plus(OVERDUE), unanswered()),
            }),
        }
    }

    fn prospect_of(&self, number: Number, since: Moment) -> Prospect {
        match self.claims.get(&number).map(|claim| &claim.state) {
            Some(ClaimState::Attempt(attempt)) => match &attempt.word {
                Word::Busy => Prospect::Over(Settled::Refused),
                Word::Unreachable(error) => Prospect::Over(Settled::Failed(error.clone())),
                Word::None if self.answers.are_before(number) => self.prospect_of_answers(Mode::Exclusive),
                Word::None => Prospect::Open(attempt.since.max(since).plus(OVERDUE), unanswered()),
            },
            // A lease that waits for the answer to the release before it.
            _ => self.prospect_of_answers(Mode::Exclusive),
        }
    }

    /// A wait behind releases, cancels or downgrades that are not answered.
    fn prospect_of_answers(&self, mode: Mode) -> Prospect {
        if self.answers.any_is_late_before(mode) {
            return Prospect::Over(Settled::Failed(no_answer()));
        }
        Prospect::Open(Moment::FOREVER, no_answer())
    }

    /// Returns what a request that is not sent waits for in the end.
    fn root(&mut self, ticket: Ticket) -> Option<Obstacle> {
        match self.obstacle(ticket)? {
            Obstacle::Earlier(first) => self.obstacle(first),
            obstacle => Some(obstacle),
        }
    }

    /// Answers those that try once, the earliest first, as long as that is possible. When one has to wait, those behind it
    /// do, too.
    pub(super) fn answer_tries(&mut self, turn: &mut Turn<'_>) {
        while let Some(ticket) = self.line.first_try() {
            if !self.review_try(turn, ticket) {
                return;
            }
        }
    }

    /// Answers one that tries once and would have to wait for an owner or a waiter of this client. Behind a release or another
    /// try it waits for the answer. Returns whether it is answered.
    pub(super) fn review_try(&mut self, turn: &mut Turn<'_>, ticket: Ticket) -> bool {
        let Some(Request { at: At::Waits, mode, .. }) = self.line.get(ticket) else { return false };
        let is_late = self.answers.any_is_late_before(*mode);
        let will_be_answered = match self.obstacle(ticket) {
            None => true,
            Some(Obstacle::Earlier(first)) => self.line.get(first).is_none_or(Request::tries_once),
            Some(Obstacle::Attempt(number)) => self.is_of_a_try(number),
            Some(Obstacle::Answer) => !is_late,
            Some(Obstacle::Lease) => false,
        };
        if will_be_answered {
            return false;
        }
        let settled = match self.prospect(turn, ticket) {
            Some(Prospect::Over(settled)) => settled,
            _ => Settled::Refused,
        };
        self.over(turn, ticket, settled);
        true
    }

    fn is_of_a_try(&mut self, number: Number) -> bool {
        let ticket = self.attempt(number).map(|attempt| attempt.ticket);
        ticket.and_then(|ticket| self.line.get(ticket)).is_some_and(Request::tries_once)
    }
}

/// The error of a wait that ended before the server has said anything.
fn unanswered() -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Acquire)
        .because("the server had not answered when the wait ended")
        .remedy("check the server, or wait longer")
        .retryable()
}

/// The error of a wait behind a release or a cancel that has not been answered.
fn no_answer() -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Acquire)
        .because("the server has not answered the previous release")
        .remedy("check the server, or wait longer")
        .retryable()
}
