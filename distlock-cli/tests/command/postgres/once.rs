//! Work that runs once for each slot, and locks that are kept for a while after their release.

use super::server::Server;
use crate::at_a_server::{Server as _, cases, in_all};
use crate::support::{assert_code, said};

cases!(in_all(Server::with_table), once: [
    a_slot_runs_once_and_a_failure_consumes_it,
    a_failed_run_is_repeated_for_its_slot_until_it_succeeds,
    a_slot_is_shown_and_forgotten,
    two_slots_do_not_run_at_the_same_time,
    a_slot_whose_lock_is_lost_ends_its_command_with_its_grace,
    a_slot_is_forgotten_after_its_time,
    a_lock_is_kept_after_its_release,
]);

#[test]
fn without_the_right_to_make_a_table_it_is_77_and_the_command_does_not_run() {
    let Some(server) = Server::start() else { return };
    let sandbox = server.sandbox("60s");
    for option in ["--once=monday", "--at-least=50s"] {
        let output = sandbox.run(["exec", option, "job", "--", "touch", "ran"]);
        assert_code(&output, 77, option);
        assert!(said(&output).contains("GRANT CREATE ON SCHEMA"), "{output:?}");
    }
    assert!(!sandbox.file("ran").exists());
}
