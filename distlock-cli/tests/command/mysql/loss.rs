//! What happens to the command when contact with the server is lost, or the lock is.

use test_servers::MySqlFlavour;

use super::server::Server;
use crate::at_a_server::Server as _;
use crate::at_a_server::loss::the_command_ends;

mod mariadb {
    use super::Server;
    use crate::at_a_server::cases;

    cases!(Server::mariadb(), loss: [
        a_server_that_returns_in_time_is_suspect_and_then_restored,
        a_server_that_is_silent_for_too_long_ends_command_and_hold,
        the_lock_is_not_granted_again_before_the_command_is_killed,
        distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next,
        ctrl_z_for_longer_than_the_lease_loses_the_lock,
        with_ignore_the_loss_is_reported_and_the_command_runs_on,
    ]);
}

mod mysql57_with_table {
    use super::Server;
    use crate::at_a_server::cases;

    cases!(Server::mysql57_with_table(), loss: [
        a_server_that_returns_in_time_is_suspect_and_then_restored,
        a_server_that_is_silent_for_too_long_ends_command_and_hold,
        the_lock_is_not_granted_again_before_the_command_is_killed,
        distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next,
    ]);
}

/// A lease that outlasts a stall of the machine, and at whose end the server has also noticed what it had missed.
const LEASE: &str = "20s";

fn on_both(check: impl Fn(&Server)) {
    for server in MySqlFlavour::ALL.into_iter().filter_map(Server::alone) {
        check(&server);
    }
}

#[test]
fn a_killed_connection_ends_the_command() {
    on_both(|server| {
        let sandbox = server.sandbox(LEASE);
        the_command_ends(&sandbox, &["connection_lost"], || server.kill_holder_of("job"));
    });
}

#[test]
fn a_server_that_is_started_anew_ends_the_command() {
    on_both(|server| {
        let sandbox = server.sandbox(LEASE);
        the_command_ends(&sandbox, &["connection_lost"], || server.start_anew());
    });
}

#[test]
fn a_primary_that_becomes_a_replica_ends_the_command() {
    on_both(|server| {
        let sandbox = server.sandbox(LEASE);
        the_command_ends(&sandbox, &["session_closed"], || server.execute("SET GLOBAL read_only = 1"));
    });
}
