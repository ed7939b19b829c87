//! What tells the time of a server as the primary from all others.

use std::fmt;

use lock_kit::Endpoint;

/// The time of a server as the primary.
#[derive(Debug, PartialEq)]
pub(crate) struct Reign {
    pub(super) address: Endpoint,
    /// Different after each start of the server.
    pub(super) run: String,
    /// The id of its replication, which changes at each promotion.
    pub(super) replication: String,
    /// That which the witnesses give the failover that has made it the primary: in one, it is the only one.
    pub(super) epoch: u64,
}

impl Reign {
    /// Whether the same server has begun anew at most, and no other one was the primary in between.
    pub(crate) fn is_of_the_same_server(&self, other: &Self) -> bool {
        (&self.address, self.epoch) == (&other.address, other.epoch)
    }
}

/// As the note at the server has it.
impl fmt::Display for Reign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}/{}", self.run, self.replication, self.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reign_is_that_of_one_server_in_one_epoch() {
        let reign = |port, run: &str, replication: &str, epoch| Reign {
            address: Endpoint::Tcp { host: "n".to_owned(), port },
            run: run.to_owned(),
            replication: replication.to_owned(),
            epoch,
        };
        let first = reign(1, "a", "r", 7);
        assert_eq!((first.to_string(), &first), ("a/r/7".to_owned(), &reign(1, "a", "r", 7)));
        for (later, is_of_the_same_server) in [
            (reign(1, "b", "s", 7), true),
            (reign(1, "a", "r", 8), false),
            (reign(2, "b", "s", 7), false),
            (reign(2, "a", "r", 7), false),
        ] {
            assert_ne!(first, later);
            assert_eq!(first.is_of_the_same_server(&later), is_of_the_same_server, "{later:?}");
        }
    }
}
