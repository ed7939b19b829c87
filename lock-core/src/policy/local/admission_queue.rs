//! The admission queue: the requests of one client that share a lock, among its exclusive waiters, in the order of
//! arrival.
//!
//! Such a request goes to the server beside others, so it does not wait in the queue for the lock. What it waits for is
//! its turn: that the server has confirmed each request before it that it must not overtake. For the same reason an
//! exclusive attempt starts only when the server has confirmed each request before it. A release, or a cancel, that the
//! server has not answered yet has a place in the queue, too: a later request must not wait behind it at the server.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::task::Waker;

use super::{Attempt, Patience, Ticket};

/// What a request must not overtake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Exclusive requests: neighbours that share may go together.
    BehindExclusive,
    /// All requests.
    BehindAll,
}

/// What becomes of a request that waits for its turn.
#[derive(Debug)]
pub(crate) enum Admission<F> {
    /// It goes to the server.
    Admitted,
    /// It tries once, and another one is before it.
    Refused,
    Failed(F),
}

/// Present from the first request on: most locks are not shared.
pub(super) struct AdmissionQueue<A: Attempt>(Option<Box<Lists<A>>>);

struct Lists<A: Attempt> {
    /// What those that come later wait for.
    members: BTreeMap<Ticket, Member<A>>,
    /// The requests that the server has confirmed, and that have no outcome yet.
    queued: BTreeSet<Ticket>,
    /// The members that wait for their turn and may go beside neighbours.
    sharing: BTreeSet<Ticket>,
    /// The members that wait for their turn and try once.
    trying: BTreeSet<Ticket>,
}

pub(super) enum Member<A: Attempt> {
    Request(Request<A>),
    /// A release or a cancel that the server has not answered yet.
    Clearing {
        /// Set when the answer is overdue.
        overdue: Option<A::Failure>,
    },
}

pub(super) struct Request<A> {
    pub(super) attempt: A,
    pub(super) patience: Patience,
    pub(super) order: Order,
    pub(super) state: RequestState,
    pub(super) waker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestState {
    Waiting,
    /// It has been sent, and the server has not confirmed it yet.
    Sent,
}

impl<A: Attempt> AdmissionQueue<A> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|lists| lists.members.is_empty() && lists.queued.is_empty())
    }

    /// Returns whether a member waits for what is ahead of it.
    pub(super) fn has_members(&self) -> bool {
        self.0.as_ref().is_some_and(|lists| !lists.members.is_empty())
    }

    pub(super) fn insert(&mut self, ticket: Ticket, member: Member<A>) {
        let lists = self.0.get_or_insert_default();
        lists.queued.remove(&ticket);
        lists.members.insert(ticket, member);
    }

    /// Also returns what stood there: its waker is dropped after the mutex is unlocked.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Member<A>> {
        let lists = self.0.as_mut()?;
        lists.queued.remove(&ticket);
        lists.waits_no_longer(ticket);
        lists.members.remove(&ticket)
    }

    /// A request waits for its turn. Leaves the waker of an earlier poll in place of this one.
    pub(super) fn wait(&mut self, ticket: Ticket, waker: &mut Option<Waker>) {
        let Some(lists) = &mut self.0 else { return };
        let Some(Member::Request(request)) = lists.members.get_mut(&ticket) else { return };
        std::mem::swap(&mut request.waker, waker);
        if request.order == Order::BehindExclusive {
            lists.sharing.insert(ticket);
        }
        if request.patience == Patience::Once {
            lists.trying.insert(ticket);
        }
    }

    /// The server has confirmed a request.
    pub(super) fn confirm(&mut self, ticket: Ticket) -> Option<Member<A>> {
        let lists = self.0.as_mut()?;
        lists.waits_no_longer(ticket);
        let confirmed = lists.members.remove(&ticket)?;
        lists.queued.insert(ticket);
        Some(confirmed)
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Member<A>> {
        self.0.as_mut()?.members.get_mut(&ticket)
    }

    /// Returns the first member, if it comes before `ticket`.
    pub(super) fn ahead_of(&self, ticket: Ticket) -> Option<&Member<A>> {
        let (first, member) = self.0.as_ref()?.members.first_key_value()?;
        (*first < ticket).then_some(member)
    }

    /// Returns whether a request that the server has confirmed came before `ticket`.
    pub(super) fn has_queued_before(&self, ticket: Ticket) -> bool {
        self.0.as_ref().and_then(|lists| lists.queued.first()).is_some_and(|first| *first < ticket)
    }

    /// Returns whether there is one between these two.
    pub(super) fn is_between(&self, one: Ticket, other: Ticket) -> bool {
        let Some(lists) = self.0.as_ref().filter(|_| one < other) else { return false };
        let between = (Bound::Excluded(one), Bound::Excluded(other));
        lists.members.range(between).next().is_some() || lists.queued.range(between).next().is_some()
    }

    /// Returns whether nothing in the admission queue is in the way of this member.
    pub(super) fn is_free_for(&self, ticket: Ticket, order: Order) -> bool {
        match order {
            Order::BehindExclusive => true,
            Order::BehindAll => self.ahead_of(ticket).is_none(),
        }
    }

    /// Returns the wakers of those that wait for their turn and come before `until`, and of those that try once. It looks
    /// at no others.
    pub(super) fn wakers_before(&mut self, until: Option<Ticket>) -> Vec<Waker> {
        let Some(lists) = &mut self.0 else { return Vec::new() };
        let until = until.unwrap_or(Ticket::MAX);
        let first = lists.members.first_key_value().map(|(first, _)| *first).filter(|first| *first < until);
        let mut woken = std::mem::take(&mut lists.trying);
        while lists.sharing.first().is_some_and(|next| *next < until) {
            woken.extend(lists.sharing.pop_first());
        }
        woken.extend(first);
        let woken = woken.into_iter().filter_map(|ticket| match lists.members.get_mut(&ticket)? {
            Member::Request(request) => request.waker.take(),
            Member::Clearing { .. } => None,
        });
        woken.collect()
    }
}

impl<A: Attempt> Lists<A> {
    fn waits_no_longer(&mut self, ticket: Ticket) {
        self.sharing.remove(&ticket);
        self.trying.remove(&ticket);
    }
}

impl<A: Attempt> Default for Lists<A> {
    fn default() -> Self {
        Self {
            members: BTreeMap::new(),
            queued: BTreeSet::new(),
            sharing: BTreeSet::new(),
            trying: BTreeSet::new(),
        }
    }
}
