//! Work that runs once for each slot, and locks that are kept for a while after their release.

use super::server::Server;
use crate::at_a_server::{cases, in_all};

cases!(in_all(Server::start), once: [
    a_slot_runs_once_and_a_failure_consumes_it,
    a_failed_run_is_repeated_for_its_slot_until_it_succeeds,
    a_slot_is_shown_and_forgotten,
    two_slots_do_not_run_at_the_same_time,
    a_slot_whose_lock_is_lost_ends_its_command_with_its_grace,
    a_lock_is_kept_after_its_release,
    a_slot_is_forgotten_after_its_time,
]);
