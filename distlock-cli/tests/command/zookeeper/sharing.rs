//! Holders, waiters, and users that inspect or break a lock.

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::cases;
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue, runs_and_has_name_and_token};

cases!(Server::start(), sharing: [
    loops_on_several_processes_lose_no_increment_and_tokens_rise,
    a_signal_while_waiting_leaves_the_queue_at_once,
    a_killed_holder_takes_its_command_along_and_the_next_has_the_lock,
    locks_elsewhere_and_of_other_names_are_other_locks,
]);

#[test]
fn without_any_option_the_command_runs() {
    let Some(server) = Server::start() else { return };
    runs_and_has_name_and_token(&server.place_with(&[]));
    // The command has ended its session, so the next client does not wait for it to expire.
    assert_eq!(server.nodes("job").len(), 0);
}

#[test]
fn status_tells_holder_queue_and_token() {
    let Some(server) = Server::start() else { return };
    let seen = holder_and_queue(&server);
    seen.assert_tells_token_and_since();
    // The number of the transaction that created the node.
    let (path, node) = server.nodes("job").remove(0);
    let held_by = &seen.status["holders"][0];
    assert_eq!(held_by["token"], node.created.to_string());
    assert!(path.ends_with(held_by["id"].as_str().unwrap()), "{path}: {}", seen.status);
}

#[test]
fn break_ends_the_command_of_the_holder_and_serves_the_next() {
    let Some(server) = Server::start() else { return };
    break_serves_the_next(&server, &server.sandbox("60s"), "broken");
}
