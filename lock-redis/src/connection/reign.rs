//! What tells the time of a server as the primary from all others.

use std::sync::Arc;

use lock_kit::Endpoint;

/// The time of a server as the primary. Without other servers that may become it, all are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reign {
    /// The run of the server, its replication id, which changes at each promotion, and the epoch.
    pub(super) name: Arc<str>,
    /// The server, and the epoch that the witnesses give the failover that has made it the primary: in one, it is the only one.
    office: Arc<str>,
}

/// What a reign is for a later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    Same,
    /// Of the same server, which has begun anew, and no other one was the primary in between.
    SameServer,
    Another,
}

impl Reign {
    pub(super) fn new(address: &Endpoint, run: &str, replication: &str, epoch: u64) -> Self {
        Self {
            name: format!("{run}/{replication}/{epoch}").into(),
            office: format!("{address}/{epoch}").into(),
        }
    }

    pub(crate) fn before(&self, later: &Self) -> Before {
        if self.name == later.name && self.office == later.office {
            Before::Same
        } else if self.office == later.office {
            Before::SameServer
        } else {
            Before::Another
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reign_is_that_of_one_server_in_one_epoch() {
        let at = |port| Endpoint::Tcp { host: "n".to_owned(), port };
        let reign = Reign::new(&at(1), "a", "r", 7);
        for (later, is) in [
            (Reign::new(&at(1), "a", "r", 7), Before::Same),
            (Reign::new(&at(1), "b", "s", 7), Before::SameServer),
            (Reign::new(&at(1), "a", "r", 8), Before::Another),
            (Reign::new(&at(2), "b", "s", 7), Before::Another),
        ] {
            assert_eq!(reign.before(&later), is, "{later:?}");
        }
        assert_eq!(Reign::default().before(&Reign::default()), Before::Same);
    }
}
