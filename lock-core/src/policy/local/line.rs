//! The requests of a client for one lock, of all modes, in the order of their arrival.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::num::NonZeroU64;
use std::ops::Bound;
use std::sync::Arc;
use std::task::Waker;

use super::{Number, Settled};
use crate::policy::acquire::Acquisition;
use crate::runtime::{FewByKey, Moment};
use crate::spi::{HoldOptions, Mode, Wait};
use crate::types::Owner;

pub(crate) type Ticket = u64;

/// One who wants the lock, until it has seen what became of that.
pub(crate) struct Request {
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) options: Arc<HoldOptions>,
    pub(super) wait: Wait,
    pub(super) since: Moment,
    /// The place in the server's queue that an attempt for it has lost.
    pub(super) place: Option<NonZeroU64>,
    pub(super) at: At,
    pub(super) waker: Option<Waker>,
}

/// How far a request has got.
pub(super) enum At {
    /// It is not sent.
    Waits,
    /// This attempt is for it.
    Sent(Number),
    /// This lease is for it, and it has not seen it yet.
    Granted(Number),
    /// It has not seen yet how its wait has ended.
    Over(Settled),
}

impl Request {
    pub(super) fn new(owner: Owner, wait: Wait, acquisition: &Acquisition, since: Moment) -> Self {
        Self {
            owner,
            mode: acquisition.mode,
            options: Arc::clone(&acquisition.options),
            wait,
            since,
            place: None,
            at: At::Waits,
            waker: None,
        }
    }

    pub(super) fn tries_once(&self) -> bool {
        self.wait == Wait::Try
    }

    /// Returns whether it asks for the same as `other`.
    pub(super) fn suits(&self, other: &Arc<HoldOptions>) -> bool {
        Arc::ptr_eq(&self.options, other) || self.options == *other
    }
}

/// The line, with what is looked for in it: the first request that is not sent, those that try once, and the ends of waits.
#[derive(Default)]
pub(super) struct Line {
    requests: BTreeMap<Ticket, Request>,
    next: Ticket,
    /// No request before this one waits to be sent.
    unsent_from: Ticket,
    /// The requests that try once and are not sent.
    tries: BTreeSet<Ticket>,
    /// When the waits end that are not over.
    ends: BTreeSet<(Moment, Ticket)>,
    /// How many requests each owner has.
    counts: FewByKey<(Owner, Mode), usize, RandomState>,
}

impl Line {
    pub(super) fn push(&mut self, request: Request) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        if request.tries_once() {
            self.tries.insert(ticket);
        }
        if let Wait::Until(end) = request.wait {
            self.ends.insert((end, ticket));
        }
        let key = (request.owner, request.mode);
        match self.counts.get_mut(&key) {
            Some(count) => *count += 1,
            None => self.counts.insert(key, 1),
        }
        self.requests.insert(ticket, request);
        ticket
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(super) fn get(&self, ticket: Ticket) -> Option<&Request> {
        looked();
        self.requests.get(&ticket)
    }

    pub(super) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Request> {
        looked();
        self.requests.get_mut(&ticket)
    }

    /// Moves a request on, or back.
    pub(super) fn set(&mut self, ticket: Ticket, at: At) -> Option<&mut Request> {
        let request = self.requests.get_mut(&ticket)?;
        match &at {
            At::Waits => {
                self.unsent_from = self.unsent_from.min(ticket);
                if request.tries_once() {
                    self.tries.insert(ticket);
                }
            }
            At::Sent(_) => {
                self.tries.remove(&ticket);
            }
            At::Granted(_) => {}
            At::Over(_) => {
                self.tries.remove(&ticket);
                self.ends.remove(&(request.wait.deadline(), ticket));
            }
        }
        request.at = at;
        Some(request)
    }

    /// Removes a request.
    pub(super) fn take(&mut self, ticket: Ticket) -> Option<Request> {
        let request = self.requests.remove(&ticket)?;
        if !matches!(request.at, At::Over(_)) {
            self.tries.remove(&ticket);
            self.ends.remove(&(request.wait.deadline(), ticket));
        }
        let key = (request.owner, request.mode);
        match self.counts.get_mut(&key) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(self.counts.remove(&key)),
        }
        if self.requests.is_empty() {
            // Frees the memory: there is one line for each lock that is held.
            *self = Self { next: self.next, unsent_from: self.next, ..Self::default() };
        }
        Some(request)
    }

    /// Returns the first request that is not sent: it alone may be the next.
    pub(super) fn first_unsent(&mut self) -> Option<Ticket> {
        let mut unsent = self.requests.range(self.unsent_from..).inspect(|_| looked());
        let first = unsent.find(|(_, request)| matches!(request.at, At::Waits)).map(|(ticket, _)| *ticket);
        self.unsent_from = first.unwrap_or(self.next);
        first
    }

    /// Returns the next live request after `ticket`.
    pub(super) fn after(&self, ticket: Bound<Ticket>) -> Option<(Ticket, &Request)> {
        let mut after = self.requests.range((ticket, Bound::Unbounded)).inspect(|_| looked());
        after
            .find(|(_, request)| !matches!(request.at, At::Over(_)))
            .map(|(ticket, request)| (*ticket, request))
    }

    pub(super) fn first_try(&self) -> Option<Ticket> {
        self.tries.first().copied()
    }

    /// Returns those whose time is up, in the order of their arrival.
    pub(super) fn late(&self, now: Moment) -> Vec<Ticket> {
        let late = self.ends.range(..=(now, Ticket::MAX)).inspect(|_| looked());
        let mut late: Vec<_> = late.map(|(_, ticket)| *ticket).collect();
        late.sort_unstable();
        late
    }

    /// Returns the next moment after `moment` at which a wait ends.
    pub(super) fn next_end_after(&self, moment: Moment) -> Option<Moment> {
        let after = (Bound::Excluded((moment, Ticket::MAX)), Bound::Unbounded);
        self.ends.range(after).next().map(|(end, _)| *end)
    }

    /// Returns the waits that end after `from`, and not after `until`.
    pub(super) fn ending(&self, from: Moment, until: Moment) -> Vec<Ticket> {
        if from >= until {
            return Vec::new();
        }
        let range = (Bound::Excluded((from, Ticket::MAX)), Bound::Included((until, Ticket::MAX)));
        self.ends.range(range).inspect(|_| looked()).map(|(_, ticket)| *ticket).collect()
    }

    pub(super) fn tickets(&self) -> Vec<Ticket> {
        self.requests.keys().inspect(|_| looked()).copied().collect()
    }

    /// Returns how many requests of an owner are in the line.
    pub(super) fn count_of(&self, owner: Owner, mode: Mode) -> usize {
        self.counts.get(&(owner, mode)).copied().unwrap_or_default()
    }

    /// Returns the requests of an owner.
    pub(super) fn of(&self, owner: Owner, mode: Mode) -> impl Iterator<Item = (Ticket, &Request)> {
        let requests = self.requests.iter().inspect(|_| looked()).map(|(ticket, request)| (*ticket, request));
        requests.filter(move |(_, request)| request.owner == owner && request.mode == mode)
    }

    /// Returns the wakers of all requests of an owner.
    pub(super) fn wakers_of(&mut self, owner: Owner, mode: Mode) -> impl Iterator<Item = Waker> {
        let requests = self.requests.values_mut().inspect(|_| looked());
        let own = requests.filter(move |request| request.owner == owner && request.mode == mode);
        own.filter_map(|request| request.waker.take())
    }
}

/// A request is looked at: tests count that.
fn looked() {
    #[cfg(test)]
    crate::runtime::counts::request();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::HolderInfo;

    fn at(nanoseconds: u64) -> Moment {
        Moment::from_nanoseconds(nanoseconds)
    }

    fn waits(line: &mut Line, wait: Wait) -> Ticket {
        let options = Arc::new(HoldOptions::of(Arc::new(HolderInfo::of_this_process())));
        let (mode, events) = (Mode::Exclusive, None);
        let acquisition = Acquisition { mode, options, events, around: |_, _| None };
        line.push(Request::new(Owner::new(), wait, &acquisition, at(0)))
    }

    #[test]
    fn the_ends_of_waits_go_with_those_who_wait() {
        let mut line = Line::default();
        let patient = waits(&mut line, Wait::Forever);
        for end in 1..100_000 {
            let ticket = waits(&mut line, Wait::Until(at(end)));
            assert_eq!(line.next_end_after(at(0)), Some(at(end)));
            assert_eq!((line.late(at(end - 1)), line.late(at(end))), (vec![], vec![ticket]));
            if end % 2 == 0 {
                line.set(ticket, At::Over(Settled::Refused));
            }
            drop(line.take(ticket));
        }
        assert_eq!((line.ends.len(), line.requests.len()), (0, 1));
        assert_eq!(line.next_end_after(at(0)), None);
        let (early, late) = (waits(&mut line, Wait::Until(at(7))), waits(&mut line, Wait::Until(at(9))));
        let same = waits(&mut line, Wait::Until(at(7)));
        drop(line.take(early));
        let ends = |line: &Line| [0, 7, 9].map(|moment| line.next_end_after(at(moment)));
        assert_eq!(ends(&line), [Some(at(7)), Some(at(9)), None]);
        drop((line.take(same), line.take(patient)));
        assert_eq!(ends(&line), [Some(at(9)), Some(at(9)), None]);
        drop(line.take(late));
        assert_eq!(line.next_end_after(at(0)), None);
    }

    #[test]
    fn nothing_is_left_of_very_many_that_tried_or_waited() {
        let mut line = Line::default();
        let tickets: Vec<_> = (0..10_000)
            .map(|number| match number % 3 {
                0 => waits(&mut line, Wait::Try),
                1 => waits(&mut line, Wait::Until(at(number))),
                _ => waits(&mut line, Wait::Forever),
            })
            .collect();
        for ticket in &tickets {
            if ticket % 2 == 0 {
                line.set(*ticket, At::Sent(0));
            }
        }
        for ticket in tickets.iter().rev() {
            assert!(line.take(*ticket).is_some());
        }
        let Line { requests, next, unsent_from, tries, ends, counts } = &line;
        assert!(requests.is_empty() && tries.is_empty() && ends.is_empty() && counts.iter().next().is_none());
        assert_eq!((*next, *unsent_from), (10_000, 10_000));
        // A later one is found all the same.
        let next = waits(&mut line, Wait::Try);
        assert_eq!((line.first_unsent(), line.first_try()), (Some(next), Some(next)));
    }
}
