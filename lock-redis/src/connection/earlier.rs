//! Remembers connections that the client has given up and that may still be open at the server.

use std::collections::VecDeque;

/// How many runs of servers to remember: more than an address leads to before it returns to the first one.
const MOST: usize = 100;

/// How a server identifies a connection.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// The run of the server: different after each start.
    pub(crate) run: String,
    /// The connection's number in it.
    pub(crate) number: i64,
}

/// The latest earlier connections, one for each run of a server: the client uses no new connection before the same run has
/// closed the previous one.
#[derive(Debug, Default)]
pub(crate) struct Earlier(VecDeque<Identity>);

impl Earlier {
    /// Remembers a connection that the client gave up.
    pub(crate) fn remember(&mut self, identity: Identity) {
        self.0.push_back(identity);
        if self.0.len() > MOST {
            self.0.pop_front();
        }
    }

    /// The numbers of the connections that belong to this run of a server.
    pub(crate) fn of_run(&self, run: &str) -> impl Iterator<Item = i64> {
        self.0.iter().filter(move |earlier| earlier.run == run).map(|earlier| earlier.number)
    }

    /// Forgets these connections of the run, which are now closed.
    pub(crate) fn forget(&mut self, run: &str, closed: &[i64]) {
        self.0.retain(|earlier| earlier.run != run || !closed.contains(&earlier.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remembering(runs: i64) -> Earlier {
        let mut earlier = Earlier::default();
        (0..runs).for_each(|number| earlier.remember(Identity { run: number.to_string(), number }));
        earlier
    }

    #[test]
    fn they_are_remembered_until_the_address_leads_there_again() {
        let mut earlier = remembering(3);
        for _ in 0..2 {
            assert_eq!(earlier.of_run("1").collect::<Vec<_>>(), [1]);
        }
        earlier.forget("1", &[1]);
        assert_eq!(earlier.of_run("1").count(), 0);
        assert_eq!(earlier.of_run("2").collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_server_that_starts_again_and_again_costs_no_memory() {
        let earlier = remembering(1000);
        assert_eq!(earlier.0.len(), MOST);
        assert_eq!(earlier.of_run("999").count(), 1);
    }
}
