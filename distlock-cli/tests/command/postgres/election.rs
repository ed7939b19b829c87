//! Leaders of an election, and those who watch it.

use super::server::Server;
use crate::at_a_server::cases;

cases!(Server::with_table(), election: [
    a_leader_whose_server_is_silent_for_too_long_stops_and_leads_again,
    a_watch_shows_each_leader_and_a_killed_leader_is_followed_by_the_next,
    elections_and_locks_of_one_name_exclude_each_other,
]);
