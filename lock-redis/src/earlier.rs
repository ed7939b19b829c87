//! Remembers connections that the client has given up and that may still be open at the server.

use std::collections::VecDeque;

/// How many runs of servers to remember: more than an address leads to before it returns to the first one.
const MOST: usize = 100;

/// How a server identifies a connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity {
    /// The connection's number in one run of the server, if the server reports it.
    pub(crate) number: Option<i64>,
    /// The run of the server, if the server reports it.
    pub(crate) run: Option<String>,
}

/// The latest earlier connections, one for each run of a server: the client uses no new connection before the same run has
/// closed the previous one.
#[derive(Debug, Default)]
pub(crate) struct Earlier(VecDeque<(String, i64)>);

impl Earlier {
    /// Remembers a connection that the client gave up, if it can ask a server to close it.
    pub(crate) fn remember(&mut self, identity: &Identity) {
        if let (Some(run), Some(number)) = (&identity.run, identity.number) {
            self.0.push_back((run.clone(), number));
            if self.0.len() > MOST {
                self.0.pop_front();
            }
        }
    }

    /// The numbers of the connections that belong to this run of a server.
    pub(crate) fn of_the_run_of(&self, identity: &Identity) -> impl Iterator<Item = i64> {
        let is_of_it =
            |(run, number): &(String, i64)| (identity.run.as_ref() == Some(run)).then_some(*number);
        self.0.iter().filter_map(is_of_it)
    }

    /// Forgets the connections of this run, which are now closed.
    pub(crate) fn forget_those_of_the_run_of(&mut self, identity: &Identity) {
        self.0.retain(|(run, _)| identity.run.as_ref() != Some(run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(run: usize) -> Identity {
        Identity { number: i64::try_from(run).ok(), run: Some(run.to_string()) }
    }

    #[test]
    fn they_are_remembered_until_the_address_leads_there_again() {
        let mut earlier = Earlier::default();
        (0..3).for_each(|run| earlier.remember(&identity(run)));
        for _ in 0..2 {
            assert_eq!(earlier.of_the_run_of(&identity(1)).collect::<Vec<_>>(), [1]);
        }
        earlier.forget_those_of_the_run_of(&identity(1));
        assert_eq!(earlier.of_the_run_of(&identity(1)).count(), 0);
        assert_eq!(earlier.of_the_run_of(&identity(2)).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_no_server_can_be_asked_to_close_is_not_remembered() {
        let mut earlier = Earlier::default();
        earlier.remember(&Identity { number: Some(1), run: None });
        earlier.remember(&Identity { number: None, run: Some("a".to_owned()) });
        assert!(earlier.0.is_empty(), "{earlier:?}");
        assert_eq!(earlier.of_the_run_of(&Identity::default()).count(), 0);
    }

    #[test]
    fn a_server_that_starts_again_and_again_costs_no_memory() {
        let mut earlier = Earlier::default();
        for run in 0..10 * MOST {
            earlier.remember(&identity(run));
        }
        assert_eq!(earlier.0.len(), MOST);
        assert_eq!(earlier.of_the_run_of(&identity(10 * MOST - 1)).count(), 1);
    }
}
