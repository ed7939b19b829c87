//! Work that runs once for each slot, and locks that are kept for a while after their release: as with files.

use super::{Server, with_option};
use crate::once;
use crate::support::Sandbox;

macro_rules! at_a_server {
    ($($case:ident),+ $(,)?) => {
        $(
            pub(crate) fn $case<S: Server>(server: &S) {
                once::$case(&patient(server));
            }
        )+
    };
}

/// A busy server may take long for an answer. ZooKeeper's client has a session instead.
fn patient<S: Server>(server: &S) -> Sandbox {
    let url = server.sandbox("60s").url();
    Sandbox::at(if S::NAME == "zookeeper" { url } else { with_option(&url, "timeout=10s") })
}

at_a_server!(
    a_slot_runs_once_and_a_failure_consumes_it,
    a_failed_run_is_repeated_for_its_slot_until_it_succeeds,
    a_slot_is_shown_and_forgotten,
    two_slots_do_not_run_at_the_same_time,
    a_slot_whose_lock_is_lost_ends_its_command_with_its_grace,
    a_lock_is_kept_after_its_release,
    a_slot_is_forgotten_after_its_time,
);

pub(crate) fn a_slot_whose_release_is_not_confirmed_says_so<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let mut job =
        sandbox.exec(&["--once", "monday"], "echo ready; while [ ! -e go ]; do sleep 0.1; done; exit 3");
    assert_eq!(job.output_line(), "ready");
    server.stop();
    std::fs::write(sandbox.file("go"), "").unwrap();
    assert_eq!(job.event("exited")["code"], 3);
    assert!(job.event("unconfirmed")["message"].as_str().unwrap().contains("cannot release"));
    assert_eq!(job.code(), 3);
    let rest = job.error_lines();
    assert!(!rest.iter().any(|line| line.contains(r#""released""#)), "{rest:?}");
}
