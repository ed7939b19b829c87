//! Which requests of the admission queue may go to the server now, and which are refused.

use std::task::{Context, Poll};

use super::admission_queue::{Member, Request, RequestState};
use super::state::{Confirmed, Occupancy, State};
use super::{Admission, Attempt, EntryOwner, LocalMutex, Occupant, Order, Patience, Settled, Ticket};
use crate::runtime::waker::{Wakers, with_waker};

/// Requests that share the lock.
impl<O: EntryOwner, H: Occupant, A: Attempt> LocalMutex<O, H, A> {
    /// Gives a request its place among the others.
    pub(crate) fn request_admission(&self, attempt: A, patience: Patience, order: Order) -> Ticket {
        let request = Request { attempt, patience, order, state: RequestState::Waiting, waker: None };
        self.enqueue_member(None, Member::Request(request))
    }

    /// A release or a cancel is on its way, in the place of the request that it undoes.
    pub(crate) fn enqueue_clearing(&self, place: Option<Ticket>) -> Ticket {
        self.enqueue_member(place, Member::Clearing { overdue: None })
    }

    fn enqueue_member(&self, place: Option<Ticket>, member: Member<A>) -> Ticket {
        let mut state = self.state.lock();
        let ticket = place.unwrap_or(state.next_ticket);
        state.next_ticket = state.next_ticket.max(ticket + 1);
        let former = state.enqueue_member(ticket, member);
        drop(state);
        drop(former);
        ticket
    }

    /// Waits for the turn of a request. It goes to the server as soon as this says so.
    pub(crate) fn poll_admission(
        &self,
        ticket: Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Admission<A::Failure>> {
        with_waker(context, |waker| {
            let mut state = self.state.lock();
            if let Some(admission) = state.admit(ticket) {
                return Poll::Ready(admission);
            }
            state.admissions.wait(ticket, waker);
            Poll::Pending
        })
    }

    /// The server has confirmed that a request is queued. Returns the attempt that follows.
    #[must_use = "no other caller makes this attempt"]
    pub(crate) fn request_confirmed(
        &self,
        ticket: Ticket,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> Option<A> {
        self.change_admissions(make, |state| state.admissions.confirm(ticket))
    }

    /// A request has its outcome, or what it left at the server is undone. Returns the attempt that follows.
    #[must_use = "no other caller makes this attempt"]
    pub(crate) fn leave_admissions(
        &self,
        ticket: Ticket,
        make: impl FnOnce(Patience, &H::Options) -> A,
    ) -> Option<A> {
        self.change_admissions(make, |state| state.admissions.remove(ticket))
    }

    fn change_admissions(
        &self,
        make: impl FnOnce(Patience, &H::Options) -> A,
        change: impl FnOnce(&mut State<O, H, A>) -> Option<Member<A>>,
    ) -> Option<A> {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        let former = change(&mut state);
        let start = state.start_next(make, &mut wakers);
        drop(state);
        drop(former);
        wakers.wake();
        start
    }

    /// The answer to a release or a cancel in the admission queue is overdue: a wait behind it that ends now ends with
    /// `failure`.
    pub(crate) fn clearing_overdue(&self, ticket: Ticket, failure: &A::Failure) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        if let Some(Member::Clearing { overdue }) = state.admissions.get_mut(ticket) {
            *overdue = Some(failure.clone());
            if matches!(state.occupancy, Occupancy::Free) {
                state.settle_those_who_try_once(&Settled::Failed(failure.clone()), &mut wakers);
                wakers.extend(state.queue.wakers_when_time_is_up());
            }
            state.wake_admitted(&mut wakers);
        }
        drop(state);
        wakers.wake();
    }

    /// The server has confirmed that an attempt is queued: those behind it may go.
    pub(crate) fn attempt_confirmed(&self, is_it: impl FnOnce(&A) -> bool) {
        let mut wakers = Wakers::default();
        let mut state = self.state.lock();
        if let Occupancy::Attempting { attempt, confirmed, .. } = &mut state.occupancy
            && is_it(attempt)
        {
            *confirmed = Confirmed::Yes;
            state.wake_admitted(&mut wakers);
        }
        drop(state);
        wakers.wake();
    }

    /// Returns whether this attempt is under way.
    pub(crate) fn attempts(&self, is_it: impl FnOnce(&A) -> bool) -> bool {
        match &self.state.lock().occupancy {
            Occupancy::Attempting { attempt, .. } => is_it(attempt),
            _ => false,
        }
    }
}

impl<O: EntryOwner, H: Occupant, A: Attempt> State<O, H, A> {
    /// Puts a member into the admission queue; returns what stood there.
    pub(super) fn enqueue_member(&mut self, ticket: Ticket, member: Member<A>) -> Option<Member<A>> {
        if let (Occupancy::Attempting { attempt, confirmed: Confirmed::NotYet, .. }, Member::Request(_)) =
            (&self.occupancy, &member)
        {
            attempt.awaited();
        }
        let former = self.admissions.remove(ticket);
        self.admissions.insert(ticket, member);
        former
    }

    /// Wakes those whose turn has come, and those that try once.
    pub(super) fn wake_admitted(&mut self, wakers: &mut Wakers) {
        if self.admissions.is_empty() {
            return;
        }
        let until = match self.occupancy {
            Occupancy::Clearing { .. } => Some(0),
            _ => self.first_unconfirmed(),
        };
        wakers.extend(self.admissions.wakers_before(until));
    }

    /// Returns the first exclusive waiter that has no attempt which the server has confirmed.
    fn first_unconfirmed(&self) -> Option<Ticket> {
        match self.occupancy {
            Occupancy::Attempting { confirmed: Confirmed::Yes, .. } => self.queue.second(),
            _ => self.queue.head(),
        }
    }

    /// Returns what becomes of a request in the admission queue now; `None` while it waits for its turn.
    pub(super) fn admit(&mut self, ticket: Ticket) -> Option<Admission<A::Failure>> {
        let (patience, order) = match self.admissions.get_mut(ticket) {
            Some(Member::Request(request)) => (request.patience, request.order),
            _ => return Some(Admission::Admitted),
        };
        if patience == Patience::Once
            && let Some(admission) = self.admission_of_one_try(ticket, order)
        {
            return Some(admission);
        }
        let is_before = |exclusive: Ticket| exclusive < ticket;
        if matches!(self.occupancy, Occupancy::Clearing { .. })
            || self.first_unconfirmed().is_some_and(is_before)
            || !self.admissions.is_free_for(ticket, order)
        {
            return None;
        }
        if let Some(Member::Request(request)) = self.admissions.get_mut(ticket) {
            request.state = RequestState::Sent;
        }
        Some(Admission::Admitted)
    }

    /// Refuses a request that tries once and would have to wait behind a holder, a waiter or another request of this
    /// client. Behind a release or another try that is on its way, it waits for the answer.
    fn admission_of_one_try(&self, ticket: Ticket, order: Order) -> Option<Admission<A::Failure>> {
        let refused =
            |failure: Option<A::Failure>| Some(failure.map_or(Admission::Refused, Admission::Failed));
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
        match self.admissions.ahead_of(ticket) {
            Some(Member::Clearing { overdue: Some(failure) }) => refused(Some(failure.clone())),
            Some(Member::Request(request)) if request.patience != Patience::Once => {
                refused(request.attempt.outage())
            }
            None if self.admissions.has_queued_before(ticket) => refused(None),
            _ => None,
        }
    }

    /// Returns why a wait for the head of the queue, which is behind the admission queue, cannot be reported as refused.
    pub(super) fn why_unknown_in_admission(
        &self,
        ticket: Ticket,
        no_answer: impl FnOnce() -> A::Failure,
    ) -> Option<A::Failure> {
        match self.admissions.ahead_of(ticket)? {
            Member::Clearing { overdue: None } => (self.head() == Some(ticket)).then(no_answer),
            Member::Clearing { overdue } => overdue.clone(),
            Member::Request(request) => request.attempt.why_unknown(),
        }
    }
}
