//! A bounded queue of events, which drops the least important ones and knows where some are missing.

use std::collections::VecDeque;

/// How important it is that an event arrives; the least important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Importance {
    /// A suspect or restored event.
    Doubt,
    Change,
    Loss,
}

/// What leaves a queue next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped<T> {
    Event(T),
    /// This many events were dropped here.
    Missed(u64),
}

/// Each event has a number, so a gap between two numbers shows how many events are missing there.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    most: usize,
    /// The waiting events, by importance.
    waiting: [VecDeque<(u64, T)>; 3],
    next_in: u64,
    next_out: u64,
}

impl<T> EventQueue<T> {
    /// Creates a queue in which at most `most` events wait.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, waiting: Default::default(), next_in: 0, next_out: 0 }
    }

    /// Adds an event, and returns the event that was dropped instead: the oldest of the least important ones.
    pub(crate) fn push(&mut self, importance: Importance, event: T) -> Option<T> {
        self.waiting[importance as usize].push_back((self.next_in, event));
        self.next_in += 1;
        if self.len() <= self.most {
            return None;
        }
        let least = self.waiting.iter_mut().find(|events| !events.is_empty())?;
        least.pop_front().map(|(_, event)| event)
    }

    /// Notes that `count` events were dropped before they could be added.
    pub(crate) fn miss(&mut self, count: u64) {
        self.next_in += count;
    }

    pub(crate) fn pop(&mut self) -> Option<Popped<T>> {
        let fronts = self.waiting.iter().enumerate();
        let first = fronts.filter_map(|(index, events)| Some((events.front()?.0, index))).min();
        let number = first.map_or(self.next_in, |(number, _)| number);
        let missed = number - self.next_out;
        self.next_out = number;
        if missed > 0 {
            return Some(Popped::Missed(missed));
        }
        let (_, event) = self.waiting[first?.1].pop_front()?;
        self.next_out += 1;
        Some(Popped::Event(event))
    }

    /// Returns how many events wait.
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// Returns whether nothing is left to pop.
    pub(crate) fn is_empty(&self) -> bool {
        self.next_in == self.next_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut EventQueue<&'static str>) -> Vec<Popped<&'static str>> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn the_least_important_events_are_dropped_and_missed_in_their_places() {
        let mut queue = EventQueue::new(3);
        assert_eq!(queue.push(Importance::Loss, "lost a"), None);
        assert_eq!(queue.push(Importance::Change, "acquired"), None);
        assert_eq!(queue.push(Importance::Doubt, "suspect"), None);
        assert_eq!(queue.push(Importance::Loss, "lost b"), Some("suspect"));
        assert_eq!(queue.push(Importance::Doubt, "restored"), Some("restored"));
        assert_eq!(queue.push(Importance::Loss, "lost c"), Some("acquired"));
        assert_eq!(queue.push(Importance::Loss, "lost d"), Some("lost a"));
        let left = all(&mut queue);
        let expected = [
            Popped::Missed(3),
            Popped::Event("lost b"),
            Popped::Missed(1),
            Popped::Event("lost c"),
            Popped::Event("lost d"),
        ];
        assert_eq!(left, expected);
        assert_eq!((queue.is_empty(), queue.len()), (true, 0));
    }

    #[test]
    fn what_was_missed_last_is_said_too() {
        let mut queue = EventQueue::new(3);
        queue.push(Importance::Change, "acquired");
        queue.miss(2);
        assert_eq!(all(&mut queue), [Popped::Event("acquired"), Popped::Missed(2)]);
        assert!(queue.is_empty());
        queue.push(Importance::Change, "released");
        assert_eq!(all(&mut queue), [Popped::Event("released")]);
    }
}
