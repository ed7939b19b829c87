//! Whose turn it is in the line, and which requests are refused there.

use std::task::Waker;

use super::line::{Member, Order, Stage, Turn};
use super::state::{Confirmed, Occupancy, State};
use super::{Attempt, EntryOwner, Occupant, Patience, Ticket};

impl<O: EntryOwner, H: Occupant, A: Attempt> State<O, H, A> {
    /// Puts a member into the line; returns what stood there.
    pub(super) fn stand(&mut self, ticket: Ticket, member: Member<A>) -> Option<Member<A>> {
        if let (Occupancy::Attempting { attempt, confirmed: Confirmed::NotYet, .. }, Member::Request(_)) =
            (&self.occupancy, &member)
        {
            attempt.awaited();
        }
        let former = self.line.remove(ticket);
        self.line.insert(ticket, member);
        former
    }

    /// Wakes those whose turn has come, and those that try once.
    pub(super) fn wake_line(&mut self, wakers: &mut Vec<Waker>) {
        if self.line.is_empty() {
            return;
        }
        let until = match self.occupancy {
            Occupancy::Clearing { .. } => Some(0),
            _ => self.first_unconfirmed(),
        };
        wakers.extend(self.line.wakers_before(until));
    }

    /// Returns the first exclusive waiter that has no attempt which the server has confirmed.
    fn first_unconfirmed(&self) -> Option<Ticket> {
        match self.occupancy {
            Occupancy::Attempting { confirmed: Confirmed::Yes, .. } => self.queue.second(),
            _ => self.queue.head(),
        }
    }

    /// Returns what becomes of a request in the line now; `None` while it waits for its turn.
    pub(super) fn take_turn(&mut self, ticket: Ticket) -> Option<Turn<A::Failure>> {
        let (patience, order) = match self.line.get_mut(ticket) {
            Some(Member::Request(request)) => (request.patience, request.order),
            _ => return Some(Turn::Come),
        };
        if patience == Patience::Once
            && let Some(turn) = self.turn_of_one_try(ticket, order)
        {
            return Some(turn);
        }
        let is_before = |exclusive: Ticket| exclusive < ticket;
        if matches!(self.occupancy, Occupancy::Clearing { .. })
            || self.first_unconfirmed().is_some_and(is_before)
            || !self.line.is_free_for(ticket, order)
        {
            return None;
        }
        if let Some(Member::Request(request)) = self.line.get_mut(ticket) {
            request.stage = Stage::Sent;
        }
        Some(Turn::Come)
    }

    /// Refuses a request that tries once and would have to wait behind a holder, a waiter or another request of this
    /// client. Behind a release or another try that is on its way, it waits for the answer.
    fn turn_of_one_try(&self, ticket: Ticket, order: Order) -> Option<Turn<A::Failure>> {
        let refused = |obstacle: Option<A::Failure>| Some(obstacle.map_or(Turn::Refused, Turn::Failed));
        match &self.occupancy {
            Occupancy::Held(_) => return refused(None),
            Occupancy::Clearing { overdue: None }
            | Occupancy::Attempting { patience: Patience::Once, .. } => {
                return None;
            }
            Occupancy::Clearing { overdue } => return refused(overdue.clone()),
            Occupancy::Attempting { attempt, .. } if self.head().is_some_and(|head| head < ticket) => {
                return refused(attempt.outage());
            }
            _ if self.head_waits_before(ticket) => return refused(None),
            _ => {}
        }
        if order == Order::BehindExclusive {
            return None;
        }
        match self.line.ahead_of(ticket) {
            Some(Member::Clearing { overdue: Some(failure) }) => refused(Some(failure.clone())),
            Some(Member::Request(request)) if request.patience != Patience::Once => {
                refused(request.attempt.outage())
            }
            None if self.line.has_queued_before(ticket) => refused(None),
            _ => None,
        }
    }

    /// Returns why a wait for the head of the queue, which is behind the line, cannot be reported as refused.
    pub(super) fn obstacle_in_line(
        &self,
        ticket: Ticket,
        no_answer: impl FnOnce() -> A::Failure,
    ) -> Option<A::Failure> {
        match self.line.ahead_of(ticket)? {
            Member::Clearing { overdue: None } => (self.head() == Some(ticket)).then(no_answer),
            Member::Clearing { overdue } => overdue.clone(),
            Member::Request(request) => request.attempt.obstacle(),
        }
    }
}
