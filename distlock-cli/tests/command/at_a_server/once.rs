//! Work that runs once for each slot, and locks that are kept for a while after their release.

use super::Server;
use crate::support::assert_code;

pub(crate) fn a_slot_runs_once_and_a_failure_consumes_it<S: Server>(server: &S) {
    let place = server.place("60s");
    for (slot, code, runs) in [("monday", 3, 1), ("monday", 0, 1), ("tuesday", 3, 2)] {
        let script = "echo ran >> runs; echo $DISTLOCK_TOKEN; exit 3";
        let output = place.run(["exec", "--json", "--once", slot, "job", "--", "sh", "-c", script]);
        assert_code(&output, code, slot);
        let said = String::from_utf8(output.stderr).unwrap();
        let skipped = format!("{{\"event\":\"skipped\",\"name\":\"job\",\"slot\":\"{slot}\"}}");
        assert_eq!(said.contains(&skipped), code == 0, "{said}");
        assert_eq!(said.contains(r#""event":"released""#), code == 3, "{said}");
        assert_eq!(std::fs::read_to_string(place.file("runs")).unwrap().lines().count(), runs);
    }
    assert_code(&place.run(["exec", "--once", "monday", "other", "--", "true"]), 0, "of another name");
    assert_eq!(place.status("job")["held"], false);
}

pub(crate) fn two_slots_do_not_run_at_the_same_time<S: Server>(server: &S) {
    let place = server.place("60s");
    let mut first = place.exec(&["--once", "monday"], "echo ready; mkfifo pipe; read line < pipe");
    assert_eq!(first.output_line(), "ready");
    let output = place.run(["exec", "--once", "tuesday", "--no-wait", "job", "--", "touch", "ran"]);
    assert_code(&output, 75, "no wait");
    let mut second = place.exec(&["--once", "tuesday"], "exit 4");
    place.until_waiting("job", 1);
    crate::support::until("the command listens", || place.file("pipe").exists());
    std::fs::write(place.file("pipe"), "go\n").unwrap();
    assert_eq!((first.code(), second.code()), (0, 4));
    assert!(!place.file("ran").exists());
}

pub(crate) fn a_slot_whose_lock_is_lost_ends_its_command_with_its_grace<S: Server>(server: &S) {
    let place = server.place("60s");
    let mut job = place.exec(
        &["--once", "monday"],
        "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
    );
    assert_eq!(job.output_line(), "ready");
    place.take_away();
    job.event("lost");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.output_line(), "told");
    assert_eq!(job.code(), 76);
    assert_code(&place.run(["exec", "--once", "monday", "job", "--", "touch", "ran"]), 0, "it has run");
    assert!(!place.file("ran").exists());
}

pub(crate) fn a_lock_is_kept_after_its_release<S: Server>(server: &S) {
    let place = server.place("60s");
    let kept = ["exec", "--at-least", "10m", "--no-wait", "job", "--", "touch", "ran"];
    assert_code(&place.run(kept), 0, "the first");
    std::fs::remove_file(place.file("ran")).unwrap();
    assert_code(&place.run(kept), 75, "the second");
    assert!(!place.file("ran").exists());
}
