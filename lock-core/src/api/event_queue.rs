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
        if self.waiting.iter().map(VecDeque::len).sum::<usize>() <= self.most {
            return None;
        }
        let least = self.waiting.iter_mut().find(|events| !events.is_empty())?;
        least.pop_front().map(|(_, event)| event)
    }

    /// Returns the next event. Where some were dropped, `missed` makes one of their number.
    pub(crate) fn pop(&mut self, missed: impl FnOnce(u64) -> T) -> Option<T> {
        let fronts = self.waiting.iter().enumerate();
        let first = fronts.filter_map(|(index, events)| Some((events.front()?.0, index))).min();
        let number = first.map_or(self.next_in, |(number, _)| number);
        let count = number - std::mem::replace(&mut self.next_out, number);
        if count > 0 {
            return Some(missed(count));
        }
        let (_, event) = self.waiting[first?.1].pop_front()?;
        self.next_out += 1;
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut EventQueue<Result<&'static str, u64>>) -> Vec<Result<&'static str, u64>> {
        std::iter::from_fn(|| queue.pop(Err)).collect()
    }

    #[test]
    fn the_least_important_events_are_dropped_and_missed_in_their_places() {
        let mut queue = EventQueue::new(3);
        assert_eq!(queue.push(Importance::Loss, Ok("lost a")), None);
        assert_eq!(queue.push(Importance::Change, Ok("acquired")), None);
        assert_eq!(queue.push(Importance::Doubt, Ok("suspect")), None);
        assert_eq!(queue.push(Importance::Loss, Ok("lost b")), Some(Ok("suspect")));
        assert_eq!(queue.push(Importance::Doubt, Ok("restored")), Some(Ok("restored")));
        assert_eq!(queue.push(Importance::Loss, Ok("lost c")), Some(Ok("acquired")));
        assert_eq!(queue.push(Importance::Loss, Ok("lost d")), Some(Ok("lost a")));
        let left = all(&mut queue);
        let expected = [Err(3), Ok("lost b"), Err(1), Ok("lost c"), Ok("lost d")];
        assert_eq!(left, expected);
        assert_eq!(queue.pop(Err), None);
    }

    #[test]
    fn what_was_missed_last_is_said_too() {
        let mut queue = EventQueue::new(1);
        queue.push(Importance::Loss, Ok("lost"));
        assert_eq!(queue.push(Importance::Doubt, Ok("suspect")), Some(Ok("suspect")));
        assert_eq!(queue.push(Importance::Change, Ok("released")), Some(Ok("released")));
        assert_eq!(all(&mut queue), [Ok("lost"), Err(2)]);
        queue.push(Importance::Change, Ok("acquired"));
        assert_eq!(all(&mut queue), [Ok("acquired")]);
    }
}
