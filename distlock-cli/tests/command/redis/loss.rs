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
    ctrl_z_for_longer_than_the_lease_loses_the_lock,
    with_ignore_the_loss_is_reported_and_the_command_runs_on,
]);

#[test]
fn a_deleted_or_stolen_key_ends_the_command() {
    let Some(server) = Server::start() else { return };
    let (sandbox, key) = (server.sandbox("20s"), server.key("job"));
    for (words, reason) in
        [(["DEL", &key].as_slice(), "deleted"), (&["SET", &key, "another-holder", "PX", "60000"], "taken")]
    {
        the_command_ends(&sandbox, &[reason], || drop(server.command(words)));
        server.command(&["DEL", &key]);
    }
}
