//! What happens to the command when contact with the server is lost, or the lock is.

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::cases;
use crate::at_a_server::loss::the_command_ends;

cases!(Server::start(), loss: [
    a_server_that_returns_in_time_is_suspect_and_then_restored,
    a_server_that_is_silent_for_too_long_ends_command_and_hold,
    the_lock_is_not_granted_again_before_the_command_is_killed,
    distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next,
]);

#[test]
fn a_deleted_node_ends_the_command() {
    let Some(server) = Server::start() else { return };
    the_command_ends(&server.sandbox("60s"), &["deleted"], || {
        let (path, _) = server.nodes("job").remove(0);
        server.delete(&path);
    });
}

#[test]
fn a_session_that_an_operator_ends_ends_the_command() {
    let Some(server) = Server::start() else { return };
    // The node disappears with the session: the reason is the one that is noticed first.
    the_command_ends(&server.sandbox("60s"), &["session_closed", "deleted"], || {
        let (_, node) = server.nodes("job").remove(0);
        server.close_session(node.session.unwrap());
    });
}
