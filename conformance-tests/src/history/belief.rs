//! Checks that no two clients believe to hold a lock at the same time.

use std::fmt;

/// An interval in which a client believed that it held a lock: from the return of its acquisition to the first line of
/// its listener's `on_abort` or the call of `unlock`, whichever came first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belief {
    /// The client.
    pub who: String,
    /// The lock.
    pub lock: String,
    /// When the acquisition had returned.
    pub from: u64,
    /// When the belief ended; `None` when it never did.
    pub until: Option<u64>,
}

impl Belief {
    fn end(&self) -> u64 {
        self.until.unwrap_or(u64::MAX)
    }
}

/// Two clients that believed to hold one lock at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlap {
    /// The one that held it first.
    pub first: Belief,
    /// The one that should have waited.
    pub second: Belief,
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

/// Finds overlapping beliefs in the same lock. Each belief is reported against the one before it that lasts longest. A
/// belief that begins at the nanosecond at which another ends does not overlap with it.
pub fn overlaps(beliefs: &[Belief]) -> Vec<Overlap> {
    let mut ordered: Vec<_> = beliefs.iter().collect();
    ordered
        .sort_by(|one, other| (&one.lock, one.from, one.end()).cmp(&(&other.lock, other.from, other.end())));
    let mut found = Vec::new();
    let mut farthest: Option<&Belief> = None;
    for belief in ordered {
        match farthest {
            Some(earlier) if earlier.lock == belief.lock => {
                if belief.from < earlier.end() {
                    found.push(Overlap { first: earlier.clone(), second: belief.clone() });
                }
                if belief.end() > earlier.end() {
                    farthest = Some(belief);
                }
            }
            _ => farthest = Some(belief),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(who: &str, lock: &str, from: u64, until: impl Into<Option<u64>>) -> Belief {
        Belief { who: who.to_owned(), lock: lock.to_owned(), from, until: until.into() }
    }

    fn pairs(beliefs: &[Belief]) -> Vec<(String, String)> {
        let found = overlaps(beliefs);
        found.into_iter().map(|overlap| (overlap.first.who, overlap.second.who)).collect()
    }

    fn pair(first: &str, second: &str) -> (String, String) {
        (first.to_owned(), second.to_owned())
    }

    #[test]
    fn holders_one_after_the_other_are_fine() {
        assert!(overlaps(&[]).is_empty());
        let good = [belief("b", "x", 20, 30), belief("a", "x", 10, 20), belief("c", "x", 31, None)];
        assert_eq!(pairs(&good), []);
    }

    #[test]
    fn different_locks_do_not_conflict() {
        assert_eq!(pairs(&[belief("a", "x", 10, 20), belief("b", "y", 10, 20)]), []);
    }

    #[test]
    fn two_holders_at_once_are_found() {
        assert_eq!(pairs(&[belief("a", "x", 10, 20), belief("b", "x", 19, 30)]), [pair("a", "b")]);
    }

    #[test]
    fn one_within_another_is_found_also_behind_a_shorter_one() {
        let bad = [belief("long", "x", 0, 100), belief("short", "x", 10, 20), belief("late", "x", 50, 60)];
        assert_eq!(pairs(&bad), [pair("long", "short"), pair("long", "late")]);
    }

    #[test]
    fn one_who_never_stops_believing_conflicts_with_all_who_follow() {
        let bad = [belief("stuck", "x", 5, None), belief("next", "x", 6, 7)];
        assert_eq!(pairs(&bad), [pair("stuck", "next")]);
        let text = overlaps(&bad)[0].to_string();
        assert!(text.contains("stuck") && text.contains("the end"), "{text}");
    }

    #[test]
    fn two_who_begin_at_once_are_found() {
        assert_eq!(pairs(&[belief("a", "x", 10, 11), belief("b", "x", 10, 11)]).len(), 1);
    }
}
