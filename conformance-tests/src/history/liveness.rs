//! Checks that a free lock with a waiter does not stay free.

use std::fmt;

use super::HoldInterval;

/// One wait for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// The client.
    pub who: String,
    /// The lock.
    pub lock: String,
    /// When the acquisition was called.
    pub from: u64,
    /// When it had returned, granted or not; `None` when it never did.
    pub until: Option<u64>,
}

/// A period in which a lock was free although a client waited for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idling {
    /// The wait.
    pub wait: Wait,
    /// The moment from which the lock had no holder and this client waited.
    pub from: u64,
    /// The end of the period; `None` when it never ended.
    pub until: Option<u64>,
}

impl fmt::Display for Idling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = self.until.map_or_else(|| "the end".to_owned(), |until| until.to_string());
        write!(
            formatter,
            "lock {:?}: it was free from {} to {until}, and {} waited",
            self.wait.lock, self.from, self.wait.who
        )
    }
}

/// Finds the periods longer than `bound` in which a client waited for a lock that no client believed to hold.
pub fn idlings(waits: &[Wait], intervals: &[HoldInterval], bound: u64) -> Vec<Idling> {
    waits.iter().flat_map(|wait| idlings_of(wait, intervals, bound)).collect()
}

fn idlings_of(wait: &Wait, intervals: &[HoldInterval], bound: u64) -> Vec<Idling> {
    let mut held: Vec<_> = intervals
        .iter()
        .filter(|interval| interval.lock == wait.lock)
        .map(|interval| (interval.from, interval.until.unwrap_or(u64::MAX)))
        .collect();
    held.sort_unstable();
    let end = wait.until.unwrap_or(u64::MAX);
    held.push((end, u64::MAX));
    let mut found = Vec::new();
    let mut free_since = wait.from;
    for (from, until) in held {
        let free_until = from.min(end);
        if free_until.saturating_sub(free_since) > bound {
            found.push(Idling {
                wait: wait.clone(),
                from: free_since,
                until: (free_until != u64::MAX).then_some(free_until),
            });
        }
        free_since = free_since.max(until);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(from: u64, until: impl Into<Option<u64>>) -> Wait {
        Wait { who: "waiter".to_owned(), lock: "x".to_owned(), from, until: until.into() }
    }

    fn held(lock: &str, from: u64, until: impl Into<Option<u64>>) -> HoldInterval {
        HoldInterval { who: "holder".to_owned(), lock: lock.to_owned(), from, until: until.into() }
    }

    fn free_times(waits: &[Wait], intervals: &[HoldInterval]) -> Vec<(u64, Option<u64>)> {
        let found = idlings(waits, intervals, 10);
        found.into_iter().map(|idling| (idling.from, idling.until)).collect()
    }

    #[test]
    fn waiting_while_it_is_held_is_fine() {
        assert_eq!(free_times(&[wait(5, 105)], &[held("x", 0, 100)]), []);
        assert_eq!(free_times(&[wait(5, None)], &[held("x", 0, 50), held("x", 55, None)]), []);
    }

    #[test]
    fn a_lost_wake_up_is_found() {
        assert_eq!(free_times(&[wait(5, None)], &[held("x", 0, 100)]), [(100, None)]);
        assert_eq!(free_times(&[wait(5, 400)], &[held("x", 0, 100)]), [(100, Some(400))]);
    }

    #[test]
    fn a_free_lock_between_two_holders_is_found() {
        let intervals = [held("x", 200, 300), held("x", 0, 100)];
        assert_eq!(free_times(&[wait(50, 305)], &intervals), [(100, Some(200))]);
    }

    #[test]
    fn a_holder_of_another_lock_does_not_count() {
        assert_eq!(free_times(&[wait(0, None)], &[held("y", 0, None)]), [(0, None)]);
        let text = idlings(&[wait(0, None)], &[], 10)[0].to_string();
        assert!(text.contains("the end"), "{text}");
    }
}
