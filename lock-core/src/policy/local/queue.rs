//! The waiters of a lock, in the order of arrival, with an index so that a hand-off finds the ones that it needs
//! without visiting all of them.

use std::collections::btree_map::OccupiedEntry;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::task::Waker;

use super::{EntryOwner, Patience, Ticket};
use crate::runtime::number_map::NumberMap;

pub(super) struct Waiter<O, T> {
    pub(super) owner: O,
    pub(super) patience: Patience,
    pub(super) options: T,
    pub(super) time: Time,
    pub(super) waker: Option<Waker>,
}

/// Waiters of one owner that the lock was granted to, in the order of their tickets.
pub(super) struct Unclaimed<O, T>(VecDeque<(Ticket, Waiter<O, T>)>);

/// Whether a waiter still has time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    Left,
    /// The time is up, and the waiter waits only for an answer from the server.
    Up,
}

/// Whether another waiter stops waiting at the same moment as a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    New,
    Known,
}

pub(super) struct Queue<O, T> {
    /// By ticket: the lowest is the head.
    waiters: BTreeMap<Ticket, Waiter<O, T>>,
    /// Present from the second waiter on: most locks have only one at a time.
    index: Option<Box<Index<O>>>,
}

struct Index<O> {
    by_owner: NumberMap<O, Tickets>,
    /// The waiters that try once.
    trying: BTreeSet<Ticket>,
    /// The waiters whose time is up.
    late: BTreeSet<Ticket>,
    /// When the other waiters stop waiting, and how many stop at each moment.
    ends: BTreeMap<u64, usize>,
}

/// The tickets of one owner. Nearly every owner has only one.
struct Tickets {
    first: Ticket,
    others: BTreeSet<Ticket>,
}

impl<O: EntryOwner, T> Queue<O, T> {
    /// Returns whether `owner` waits.
    pub(super) fn has(&self, owner: &O) -> bool {
        match &self.index {
            Some(index) => index.by_owner.contains_key(owner),
            None => self.waiters.values().any(|waiter| waiter.owner == *owner),
        }
    }
}

impl<O: EntryOwner> Index<O> {
    fn new() -> Self {
        Self {
            by_owner: NumberMap::default(),
            trying: BTreeSet::new(),
            late: BTreeSet::new(),
            ends: BTreeMap::new(),
        }
    }

    fn add<T>(&mut self, ticket: Ticket, waiter: &Waiter<O, T>) -> End {
        match self.by_owner.entry(waiter.owner) {
            Entry::Occupied(mut tickets) => tickets.get_mut().insert(ticket),
            Entry::Vacant(none) => {
                none.insert(Tickets::one(ticket));
            }
        }
        if waiter.time == Time::Up {
            self.late.insert(ticket);
        }
        match waiter.patience {
            Patience::Once => {
                self.trying.insert(ticket);
                End::Known
            }
            Patience::Until(until) => {
                let count = self.ends.entry(until).or_default();
                *count += 1;
                if *count == 1 { End::New } else { End::Known }
            }
        }
    }

    fn remove<T>(&mut self, ticket: Ticket, waiter: &Waiter<O, T>) {
        self.late.remove(&ticket);
        if let Entry::Occupied(mut tickets) = self.by_owner.entry(waiter.owner)
            && tickets.get_mut().remove(ticket) == Left::None
        {
            tickets.remove();
        }
        match waiter.patience {
            Patience::Once => {
                self.trying.remove(&ticket);
            }
            Patience::Until(until) => {
                if let Some(count) = self.ends.get_mut(&until) {
                    *count -= 1;
                    if *count == 0 {
                        self.ends.remove(&until);
                    }
                }
            }
        }
    }
}

impl Tickets {
    fn one(ticket: Ticket) -> Self {
        Self { first: ticket, others: BTreeSet::new() }
    }

    fn insert(&mut self, ticket: Ticket) {
        self.others.insert(self.first.max(ticket));
        self.first = self.first.min(ticket);
    }

    fn remove(&mut self, ticket: Ticket) -> Left {
        if ticket != self.first {
            self.others.remove(&ticket);
            return Left::Some;
        }
        let Some(next) = self.others.pop_first() else { return Left::None };
        self.first = next;
        Left::Some
    }
}

/// Whether an owner has a ticket left.
#[derive(PartialEq, Eq)]
enum Left {
    Some,
    None,
}

impl<O: EntryOwner, T> Queue<O, T> {
    pub(super) const fn new() -> Self {
        Self { waiters: BTreeMap::new(), index: None }
    }

    pub(super) fn insert(&mut self, ticket: Ticket, waiter: Waiter<O, T>) -> End {
        if self.index.is_none() && !self.waiters.is_empty() {
            let mut index = Box::new(Index::new());
            for (ticket, waiter) in &self.waiters {
                index.add(*ticket, waiter);
            }
            self.index = Some(index);
        }
        let end = self.index.as_mut().map_or(End::New, |index| index.add(ticket, &waiter));
        self.waiters.insert(ticket, waiter);
        end
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waiter<O, T>> {
        let waiter = self.waiters.remove(&ticket)?;
        if self.waiters.is_empty() {
            // Frees the memory: there is one queue for each lock that is held.
            *self = Self::new();
        } else if let Some(index) = &mut self.index {
            index.remove(ticket, &waiter);
        }
        Some(waiter)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn head(&self) -> Option<Ticket> {
        self.waiters.first_key_value().map(|(ticket, _)| *ticket)
    }

    pub(super) fn second(&self) -> Option<Ticket> {
        self.waiters.keys().nth(1).copied()
    }

    pub(super) fn head_mut(&mut self) -> Option<&mut Waiter<O, T>> {
        self.waiters.first_entry().map(OccupiedEntry::into_mut)
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Waiter<O, T>> {
        self.waiters.get(&ticket)
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter<O, T>> {
        self.waiters.get_mut(&ticket)
    }

    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.waiters.keys().copied().collect()
    }

    /// Removes all waiters of an owner.
    pub(super) fn take_all_of(&mut self, owner: O) -> Unclaimed<O, T> {
        let tickets = match &mut self.index {
            Some(index) => index.by_owner.remove(&owner),
            None => self.head().filter(|_| self.only_owner() == Some(owner)).map(Tickets::one),
        };
        let tickets =
            tickets.into_iter().flat_map(|tickets| std::iter::once(tickets.first).chain(tickets.others));
        Unclaimed(tickets.filter_map(|ticket| Some((ticket, self.take(ticket)?))).collect())
    }

    fn only_owner(&self) -> Option<O> {
        self.waiters.first_key_value().map(|(_, waiter)| waiter.owner)
    }

    pub(super) fn tickets_of_those_who_try_once(&self) -> Vec<Ticket> {
        match &self.index {
            Some(index) => index.trying.iter().copied().collect(),
            None => self.only(|waiter| waiter.patience == Patience::Once),
        }
    }

    /// Returns the only waiter, if it meets the condition.
    fn only(&self, is_meant: impl Fn(&Waiter<O, T>) -> bool) -> Vec<Ticket> {
        self.waiters.iter().filter_map(|(ticket, waiter)| is_meant(waiter).then_some(*ticket)).collect()
    }

    /// Records that the time of a waiter is up.
    pub(super) fn time_is_up(&mut self, ticket: Ticket) {
        let Some(waiter) = self.waiters.get_mut(&ticket) else { return };
        waiter.time = Time::Up;
        if let Some(index) = &mut self.index {
            index.late.insert(ticket);
        }
    }

    /// Returns the wakers of the waiters whose time is up.
    pub(super) fn wakers_when_time_is_up(&mut self) -> Vec<Waker> {
        let late = match &self.index {
            Some(index) => index.late.iter().copied().collect(),
            None => self.only(|waiter| waiter.time == Time::Up),
        };
        late.into_iter().filter_map(|ticket| self.waiters.get_mut(&ticket)?.waker.take()).collect()
    }

    /// Returns the next moment after `moment` at which a waiter stops waiting.
    pub(super) fn next_end(&self, moment: u64) -> Option<u64> {
        match &self.index {
            Some(index) => {
                index.ends.range((Bound::Excluded(moment), Bound::Unbounded)).next().map(|(end, _)| *end)
            }
            None => self.only_end().filter(|end| *end > moment),
        }
    }

    pub(super) fn latest_end(&self) -> Option<u64> {
        match &self.index {
            Some(index) => index.ends.last_key_value().map(|(end, _)| *end),
            None => self.only_end(),
        }
    }

    fn only_end(&self) -> Option<u64> {
        match self.waiters.first_key_value()?.1.patience {
            Patience::Once => None,
            Patience::Until(until) => Some(until),
        }
    }
}

impl<O, T> Default for Unclaimed<O, T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<O, T> Unclaimed<O, T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Waiter<O, T>> {
        let place = self.place_of(ticket)?;
        self.0.get_mut(place).map(|(_, waiter)| waiter)
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Waiter<O, T>> {
        let (_, waiter) = self.0.remove(self.place_of(ticket)?)?;
        if self.0.is_empty() {
            // Frees the memory: there is one of these for each lock that is held.
            *self = Self::default();
        }
        Some(waiter)
    }

    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        self.0.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    pub(super) fn wakers(&mut self) -> impl Iterator<Item = Waker> {
        self.0.iter_mut().filter_map(|(_, waiter)| waiter.waker.take())
    }
}

impl<O, T> IntoIterator for Unclaimed<O, T> {
    type Item = (Ticket, Waiter<O, T>);
    type IntoIter = std::collections::vec_deque::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<O, T> Waiter<O, T> {
    pub(super) fn waker_when_time_is_up(&mut self) -> Option<Waker> {
        (self.time == Time::Up).then(|| self.waker.take()).flatten()
    }
}
