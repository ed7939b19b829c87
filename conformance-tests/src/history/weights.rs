//! Checks that those who share a lock or a semaphore never have more of it than there is.

use std::fmt;

/// An interval in which a client believed that it held a part of something: from the return of its acquisition to the
/// call of its release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The client.
    pub who: String,
    /// How much it held. What is exclusive holds all.
    pub weight: u64,
    /// When the acquisition had returned.
    pub from: u64,
    /// When the release was called.
    pub until: u64,
}

/// A moment at which more was held than there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excess {
    /// What was held then.
    pub held: u64,
    /// How much there is.
    pub of: u64,
    /// Who held it, the one that was too much last.
    pub by: Vec<Share>,
}

impl fmt::Display for Excess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} of {} were held", self.held, self.of)?;
        self.by.iter().try_for_each(|share| {
            write!(formatter, ", {} by {} from {} to {}", share.weight, share.who, share.from, share.until)
        })
    }
}

/// Finds the first moment at which more than `of` was held. What ends at the nanosecond at which another begins is not
/// held beside it.
pub fn excess(shares: &[Share], of: u64) -> Option<Excess> {
    let mut ordered: Vec<_> = shares.iter().collect();
    ordered.sort_by_key(|share| share.from);
    let mut held: Vec<&Share> = Vec::new();
    ordered.into_iter().find_map(|share| {
        held.retain(|other| other.until > share.from);
        held.push(share);
        let sum = held.iter().map(|share| share.weight).sum();
        let by = || held.iter().copied().cloned().collect();
        (sum > of).then(|| Excess { held: sum, of, by: by() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(weight: u64, from: u64, until: u64) -> Share {
        Share { who: format!("{from}"), weight, from, until }
    }

    #[test]
    fn weights_that_fit_and_weights_in_turn_are_no_excess() {
        assert_eq!(excess(&[share(2, 0, 9), share(1, 3, 5), share(1, 5, 7), share(3, 9, 10)], 3), None);
    }

    #[test]
    fn the_first_moment_of_too_much_is_found_whatever_the_order() {
        let found = excess(&[share(1, 6, 8), share(2, 5, 7), share(2, 0, 6)], 3).unwrap();
        assert_eq!((found.held, found.of, found.by.len()), (4, 3, 2));
        assert_eq!(found.by.last().unwrap().from, 5);
        assert!(found.to_string().starts_with("4 of 3 were held, 2 by 0 from 0 to 6"), "{found}");
    }
}
