//! Work that runs once for each slot, and locks that are kept for a while after their release.

use super::server::Server;
use crate::at_a_server::{Server as _, cases};
use crate::support::{Sandbox, assert_code, said};

cases!(Server::mariadb_with_table(), once: [
    a_slot_runs_once_and_a_failure_consumes_it,
    a_failed_run_is_repeated_for_its_slot_until_it_succeeds,
    a_slot_is_shown_and_forgotten,
    two_slots_do_not_run_at_the_same_time,
    a_slot_whose_lock_is_lost_ends_its_command_with_its_grace,
    a_slot_is_forgotten_after_its_time,
    a_lock_is_kept_after_its_release,
]);

#[test]
fn without_a_database_it_is_64_and_the_command_does_not_run() {
    let Some(server) = Server::mariadb() else { return };
    let url = server.sandbox("60s").url().replace("/locks?", "/?");
    let sandbox = Sandbox::at(url);
    for option in ["--once=monday", "--at-least=50s"] {
        let output = sandbox.run(["exec", option, "job", "--", "touch", "ran"]);
        assert_code(&output, 64, option);
        assert!(said(&output).contains("name a database in the URL"), "{output:?}");
    }
    assert!(!sandbox.file("ran").exists());
}
