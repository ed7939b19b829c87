//! Checks mutual exclusion: no two clients believe that they hold a lock at the same time.

use std::fmt;

/// An interval in which a client believed that it held a lock: from the return of its acquisition to the first line of
/// its listener's `on_abort` or the call of `unlock`, whichever came first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HoldInterval {
    /// The client.
    pub who: String,
    /// The lock.
    pub lock: String,
    /// When the acquisition had returned.
    pub from: u64,
    /// When the interval ended; `None` when it never did.
    pub until: Option<u64>,
}

impl HoldInterval {
    fn end(&self) -> u64 {
        self.until.unwrap_or(u64::MAX)
    }
}

/// Two clients that believed to hold one lock at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The one that held it first.
    pub first: HoldInterval,
    /// The one that should have waited.
    pub second: HoldInterval,
}

impl fmt::Display for Overlap {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, second } = self;
        write!(
            formatter,
            "lock {:?}: {} believed to hold it from {} to {}, and {} did from {}",
            first.lock,
            first.who,
            first.from,
            first.until.map_or_else(|| "the end".to_owned(), |until| until.to_string()),
            second.who,
            second.from
        )
    }
}

/// Finds overlapping intervals in the same lock. Each interval is reported against the one before it that lasts longest. A
/// interval that begins at the nanosecond at which another ends does not overlap with it.
pub fn overlaps(intervals: &[HoldInterval]) -> Vec<Overlap> {
    let mut ordered: Vec<_> = intervals.iter().collect();
    ordered
        .sort_by(|one, other| (&one.lock, one.from, one.end()).cmp(&(&other.lock, other.from, other.end())));
    let mut found = Vec::new();
    let mut farthest: Option<&HoldInterval> = None;
    for interval in ordered {
        match farthest {
            Some(earlier) if earlier.lock == interval.lock => {
                if interval.from < earlier.end() {
                    found.push(Overlap { first: earlier.clone(), second: interval.clone() });
                }
                if interval.end() > earlier.end() {
                    farthest = Some(interval);
                }
            }
            _ => farthest = Some(interval),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(who: &str, lock: &str, from: u64, until: impl Into<Option<u64>>) -> HoldInterval {
        HoldInterval { who: who.to_owned(), lock: lock.to_owned(), from, until: until.into() }
    }

    fn pairs(intervals: &[HoldInterval]) -> Vec<(String, String)> {
        let found = overlaps(intervals);
        found.into_iter().map(|overlap| (overlap.first.who, overlap.second.who)).collect()
    }

    fn pair(first: &str, second: &str) -> (String, String) {
        (first.to_owned(), second.to_owned())
    }

    #[test]
    fn holders_one_after_the_other_are_fine() {
        assert!(overlaps(&[]).is_empty());
        let good = [interval("b", "x", 20, 30), interval("a", "x", 10, 20), interval("c", "x", 31, None)];
        assert_eq!(pairs(&good), []);
    }

    #[test]
    fn different_locks_do_not_conflict() {
        assert_eq!(pairs(&[interval("a", "x", 10, 20), interval("b", "y", 10, 20)]), []);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        assert_eq!(pairs(&[interval("a", "x", 10, 20), interval("b", "x", 19, 30)]), [pair("a", "b")]);
    }

    #[test]
    fn one_within_another_is_found_also_behind_a_shorter_one() {
        let bad =
            [interval("long", "x", 0, 100), interval("short", "x", 10, 20), interval("late", "x", 50, 60)];
        assert_eq!(pairs(&bad), [pair("long", "short"), pair("long", "late")]);
    }

    #[test]
    fn one_who_never_stops_believing_conflicts_with_all_who_follow() {
        let bad = [interval("stuck", "x", 5, None), interval("next", "x", 6, 7)];
        assert_eq!(pairs(&bad), [pair("stuck", "next")]);
        let text = overlaps(&bad)[0].to_string();
        assert!(text.contains("stuck") && text.contains("the end"), "{text}");
    }

    #[test]
    fn two_who_begin_at_once_are_found() {
        assert_eq!(pairs(&[interval("a", "x", 10, 11), interval("b", "x", 10, 11)]).len(), 1);
    }
}
