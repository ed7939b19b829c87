//! Holders, waiters, and users that inspect or break a lock.

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::cases;
use crate::at_a_server::sharing::{break_serves_the_next, holder_and_queue};

cases!(Server::start(), sharing: [
    loops_on_several_processes_lose_no_increment_and_tokens_rise,
    a_waiter_says_on_a_terminal_who_holds_the_lock,
    a_signal_while_waiting_leaves_the_queue_at_once,
    a_killed_holder_takes_its_command_along_and_the_next_has_the_lock,
    locks_elsewhere_and_of_other_names_are_other_locks,
]);

#[test]
fn status_tells_holder_queue_token_and_what_is_left_of_the_lease() {
    let Some(server) = Server::start() else { return };
    let seen = holder_and_queue(&server);
    seen.assert_tells_token_and_since();
    let remaining = seen.status["remaining_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&remaining), "{}", seen.status);
    assert!(seen.text.contains("its lease ends in"), "{}", seen.text);
}

#[test]
fn break_ends_the_command_of_the_holder_and_serves_the_next() {
    let Some(server) = Server::start() else { return };
    break_serves_the_next(&server, &server.sandbox("60s"), "broken");
}
