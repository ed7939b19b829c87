//! Checks that fencing tokens rise from one holder to the next, and that none is given twice.

use std::collections::HashMap;
use std::fmt;

/// One acquisition that got a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acquisition {
    /// The client.
    pub who: String,
    /// The lock.
    pub lock: String,
    /// The token.
    pub token: u64,
    /// When the acquisition was called.
    pub invoked: u64,
    /// When it had returned.
    pub returned: u64,
}

/// Two acquisitions whose tokens are not in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disorder {
    /// Both have the same token.
    Repeated(Acquisition, Acquisition),
    /// The first had returned before the second was called, and the second has the lower token.
    Fell(Acquisition, Acquisition),
}

impl fmt::Display for Disorder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second, what) = match self {
            Self::Repeated(first, second) => (first, second, "was given again"),
            Self::Fell(first, second) => (first, second, "was followed by a lower one"),
        };
        write!(
            formatter,
            "lock {:?}: the token {} of {} {what}: {} to {}",
            first.lock, first.token, first.who, second.token, second.who
        )
    }
}

/// Finds tokens of one lock that were given twice, and tokens that did not rise although one acquisition had returned
/// before the other was called. The tokens of acquisitions that overlap may be in any order.
pub fn disorders(acquisitions: &[Acquisition]) -> Vec<Disorder> {
    let mut by_lock: HashMap<&str, Vec<&Acquisition>> = HashMap::new();
    for acquisition in acquisitions {
        by_lock.entry(&acquisition.lock).or_default().push(acquisition);
    }
    by_lock.into_values().flat_map(|of_lock| disorders_of_lock(&of_lock)).collect()
}

fn disorders_of_lock(acquisitions: &[&Acquisition]) -> Vec<Disorder> {
    let mut found = Vec::new();
    let mut seen: HashMap<u64, &Acquisition> = HashMap::new();
    for acquisition in acquisitions {
        if let Some(earlier) = seen.insert(acquisition.token, acquisition) {
            found.push(Disorder::Repeated(earlier.clone(), (*acquisition).clone()));
        }
    }
    let mut by_return = acquisitions.to_vec();
    by_return.sort_by_key(|acquisition| acquisition.returned);
    let mut by_call = acquisitions.to_vec();
    by_call.sort_by_key(|acquisition| acquisition.invoked);
    let mut returned = by_return.into_iter().peekable();
    let mut highest: Option<&Acquisition> = None;
    for acquisition in by_call {
        while let Some(earlier) = returned.next_if(|earlier| earlier.returned < acquisition.invoked) {
            if highest.is_none_or(|highest| earlier.token > highest.token) {
                highest = Some(earlier);
            }
        }
        if let Some(highest) = highest.filter(|highest| highest.token > acquisition.token) {
            found.push(Disorder::Fell(highest.clone(), acquisition.clone()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquisition(lock: &str, token: u64, invoked: u64, returned: u64) -> Acquisition {
        Acquisition { who: format!("{lock}{token}"), lock: lock.to_owned(), token, invoked, returned }
    }

    #[test]
    fn rising_tokens_are_fine_with_gaps_and_in_any_order_of_record() {
        assert!(disorders(&[]).is_empty());
        let good = [acquisition("x", 9, 30, 31), acquisition("x", 1, 0, 10), acquisition("x", 4, 11, 20)];
        assert_eq!(disorders(&good), []);
    }

    #[test]
    fn tokens_of_different_locks_are_not_compared() {
        assert_eq!(disorders(&[acquisition("x", 5, 0, 1), acquisition("y", 5, 2, 3)]), []);
    }

    #[test]
    fn acquisitions_under_way_together_may_be_in_any_order() {
        // The first was called before the second had returned.
        assert_eq!(disorders(&[acquisition("x", 7, 0, 10), acquisition("x", 6, 10, 12)]), []);
    }

    #[test]
    fn a_token_that_falls_is_found_also_behind_others() {
        let bad = [acquisition("x", 5, 0, 1), acquisition("x", 2, 2, 3), acquisition("x", 4, 4, 5)];
        assert!(matches!(&disorders(&bad)[..], [Disorder::Fell(a, b), Disorder::Fell(c, d)]
            if (a.token, b.token, c.token, d.token) == (5, 2, 5, 4)));
    }

    #[test]
    fn a_token_given_twice_is_found_even_if_both_were_under_way_together() {
        let bad = [acquisition("x", 5, 0, 10), acquisition("x", 5, 1, 9)];
        assert!(matches!(&disorders(&bad)[..], [Disorder::Repeated(..)]));
        let text = disorders(&bad)[0].to_string();
        assert!(text.contains("given again"), "{text}");
    }
}
