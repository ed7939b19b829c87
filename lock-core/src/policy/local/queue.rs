//! The waiters of a lock, in the order of arrival, with an index so that a hand-off finds the ones that it needs
//! without visiting all of them.

use std::collections::btree_map::OccupiedEntry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::task::Waker;

use super::{EntryOwner, Patience, Ticket};

pub(super) struct Waiter<O, T> {
    pub(super) owner: O,
    pub(super) patience: Patience,
    pub(super) options: T,
    pub(super) time: Time,
    pub(super) waker: Option<Waker>,
}

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
    by_owner: HashMap<O, BTreeSet<Ticket>>,
    /// The waiters that try once.
    trying: BTreeSet<Ticket>,
    /// The waiters whose time is up.
    late: BTreeSet<Ticket>,
    /// When the other waiters stop waiting, and how many stop at each moment.
    ends: BTreeMap<u64, usize>,
}

impl<O: EntryOwner> Index<O> {
    fn new() -> Self {
        Self {
            by_owner: HashMap::new(),
            trying: BTreeSet::new(),
            late: BTreeSet::new(),
            ends: BTreeMap::new(),
        }
    }

    fn add<T>(&mut self, ticket: Ticket, waiter: &Waiter<O, T>) -> End {
        self.by_owner.entry(waiter.owner).or_default().insert(ticket);
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
        if let Some(tickets) = self.by_owner.get_mut(&waiter.owner) {
            tickets.remove(&ticket);
            if tickets.is_empty() {
                self.by_owner.remove(&waiter.owner);
            }
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

    pub(super) fn tickets_of(&self, owner: O) -> Vec<Ticket> {
        match &self.index {
            Some(index) => index.by_owner.get(&owner).into_iter().flatten().copied().collect(),
            None => self.only(|waiter| waiter.owner == owner),
        }
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

impl<O, T> Waiter<O, T> {
    pub(super) fn waker_when_time_is_up(&mut self) -> Option<Waker> {
        (self.time == Time::Up).then(|| self.waker.take()).flatten()
    }
}
