//! Work that runs once for each slot, and locks that are kept for a while after their release.

use std::time::{Duration, Instant};

use crate::support::{Sandbox, assert_code, last_event, said, until};

pub(crate) fn a_slot_runs_once_and_a_failure_consumes_it(sandbox: &Sandbox) {
    for (slot, code, runs) in [("monday", 3, 1), ("monday", 0, 1), ("tuesday", 3, 2)] {
        let script = "echo ran >> runs; echo $DISTLOCK_TOKEN; exit 3";
        let output = sandbox.run(["exec", "--json", "--once", slot, "job", "--", "sh", "-c", script]);
        assert_code(&output, code, slot);
        let said = said(&output);
        let skipped = format!("{{\"event\":\"skipped\",\"name\":\"job\",\"slot\":\"{slot}\"}}");
        assert_eq!(said.contains(&skipped), code == 0, "{said}");
        assert_eq!(said.contains(r#""event":"released""#), code == 3, "{said}");
        assert_eq!(std::fs::read_to_string(sandbox.file("runs")).unwrap().lines().count(), runs);
    }
    let metrics = format!("--metrics-file={}", sandbox.file("skip.prom").display());
    let output = sandbox.run(["exec", &metrics, "--once", "monday", "job", "--", "touch", "ran"]);
    assert_code(&output, 0, "without a terminal");
    assert!(
        said(&output).contains("slot \"monday\" of \"job\" was used by an earlier run"),
        "{}",
        said(&output)
    );
    let recorded = std::fs::read_to_string(sandbox.file("skip.prom")).unwrap();
    let skipped =
        |line: &str| line.starts_with("distlock_skipped_total{lock=\"job\",") && line.ends_with(" 1");
    assert!(recorded.lines().any(skipped), "{recorded}");
    let asked = ["exec", "--once", "monday", "--skipped-exit-code", "99", "job", "--", "touch", "ran"];
    assert_code(&sandbox.run(asked), 99, "the code that was asked for");
    assert!(!sandbox.file("ran").exists());
    assert_code(&sandbox.run(["exec", "--once", "monday", "other", "--", "true"]), 0, "of another name");
    assert_eq!(sandbox.status("job")["held"], false);
}

pub(crate) fn a_failed_run_is_repeated_for_its_slot_until_it_succeeds(sandbox: &Sandbox) {
    let run = |code: i32| {
        let script = format!("echo ran >> runs; exit {code}");
        let options = ["exec", "--once", "monday", "--retry-failed", "--skipped-exit-code", "99", "job"];
        sandbox.run([options.as_slice(), &["--", "sh", "-c", &script]].concat())
    };
    for (end, code, runs) in [(3, 3, 1), (3, 3, 2), (0, 0, 3), (0, 99, 3)] {
        let output = run(end);
        assert_code(&output, code, runs);
        assert_eq!(std::fs::read_to_string(sandbox.file("runs")).unwrap().lines().count(), runs);
    }
    let plain = ["exec", "--once", "monday", "job", "--", "touch", "ran"];
    assert_code(&sandbox.run(plain), 0, "another run takes it for done, too");
    assert!(!sandbox.file("ran").exists());
}

pub(crate) fn a_slot_is_shown_and_forgotten(sandbox: &Sandbox) {
    let run = || sandbox.run(["exec", "--once", "monday", "--skipped-exit-code", "99", "job", "--", "true"]);
    let output = |arguments: &[&str]| {
        let output = sandbox.run(arguments.iter().copied());
        assert_code(&output, 0, arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = || output(&["status", "job", "--once", "monday"]);
    assert_eq!(shown(), "lock \"job\" is free\nslot \"monday\" has not run\n");
    for _ in 0..2 {
        assert_code(&run(), 0, "it runs");
        assert_code(&run(), 99, "it has run");
        assert!(shown().contains("slot \"monday\" has run; it is remembered for 23h "), "{}", shown());
        let shown = output(&["status", "--json", "job", "--once", "monday"]);
        assert!(shown.contains(r#""slot":{"slot":"monday","has_run":true,"remembered_ms":86"#), "{shown}");
        assert_eq!(output(&["forget", "job", "monday"]), "slot \"monday\" of \"job\" is forgotten\n");
    }
    let forgotten = r#"{"event":"forgotten","name":"job","slot":"monday","was_remembered":false}"#;
    assert_eq!(output(&["forget", "--json", "job", "monday"]), format!("{forgotten}\n"));
    let kept = ["exec", "--at-least", "10h", "--no-wait", "job", "--", "true"];
    for code in [0, 75] {
        assert_code(&sandbox.run(kept), code, "the pause");
    }
    let shown = output(&["status", "job"]);
    assert!(shown.starts_with("lock \"job\" is free\nwith --at-least it is kept free for 9h "), "{shown}");
    let shown: serde_json::Value = serde_json::from_str(&output(&["status", "--json", "job"])).unwrap();
    assert!((1..=36_000_000).contains(&shown["pause_ms"].as_u64().unwrap()), "{shown}");
    assert_eq!(output(&["forget", "job"]), "the pause of \"job\" is forgotten\n");
    assert_eq!(output(&["status", "job"]), "lock \"job\" is free\n");
    assert_code(&sandbox.run(kept), 0, "after the pause");
}

pub(crate) fn two_slots_do_not_run_at_the_same_time(sandbox: &Sandbox) {
    let mut first = sandbox.exec(&["--once", "monday"], "echo ready; mkfifo pipe; read line < pipe");
    assert_eq!(first.output_line(), "ready");
    let output = sandbox.run(["exec", "--once", "tuesday", "--no-wait", "job", "--", "touch", "ran"]);
    assert_code(&output, 75, "no wait");
    let mut second = sandbox.exec(&["--once", "tuesday"], "exit 4");
    sandbox.until_waiting("job", 1);
    until("the command listens", || sandbox.file("pipe").exists());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!((first.code(), second.code()), (0, 4));
    assert!(!sandbox.file("ran").exists());
}

pub(crate) fn a_slot_whose_lock_is_lost_ends_its_command_with_its_grace(sandbox: &Sandbox) {
    let mut job = sandbox.exec(
        &["--once", "monday"],
        "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done",
    );
    assert_eq!(job.output_line(), "ready");
    sandbox.take_away();
    job.event("lost");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.output_line(), "told");
    assert_eq!(job.code(), 76);
    assert_code(&sandbox.run(["exec", "--once", "monday", "job", "--", "touch", "ran"]), 0, "it has run");
    assert!(!sandbox.file("ran").exists());
}

pub(crate) fn a_lock_is_kept_after_its_release(sandbox: &Sandbox) {
    let kept = ["exec", "--at-least", "10m", "--no-wait", "job", "--", "touch", "ran"];
    assert_code(&sandbox.run(kept), 0, "the first");
    std::fs::remove_file(sandbox.file("ran")).unwrap();
    let output = sandbox.run(kept);
    assert_code(&output, 75, "the second");
    let told = said(&output);
    assert!(told.contains("no one holds it, but it is kept free until 20"), "{told}");
    assert!(told.contains(" UTC, for ") && told.contains("--at-least"), "{told}");
    let output = sandbox.run([["--json"].as_slice(), &kept].concat());
    let event = last_event(&output);
    assert!((1..=600_000).contains(&event["pause_ms"].as_u64().unwrap()), "{event}");
    assert!(!sandbox.file("ran").exists());
}

pub(crate) fn a_slot_is_forgotten_after_its_time(sandbox: &Sandbox) {
    let begun = Instant::now();
    let run = |keep| {
        sandbox.run(["exec", "--once", "monday", "--keep", keep, "job", "--", "sh", "-c", "echo ran >> runs"])
    };
    let runs = || std::fs::read_to_string(sandbox.file("runs")).unwrap().lines().count();
    assert_code(&run("2s"), 0, "the first");
    until("it runs again", || {
        assert_code(&run("10m"), 0, "another");
        runs() == 2
    });
    assert!(begun.elapsed() >= Duration::from_secs(2), "forgotten after {:?}", begun.elapsed());
    assert_code(&run("10m"), 0, "kept for long");
    assert_eq!(runs(), 2);
    assert_code(&run("0s"), 64, "kept for no time");
}

macro_rules! with_files {
    ($($case:ident),+ $(,)?) => {
        mod with_files {
            $(
                #[test]
                fn $case() {
                    super::$case(&crate::support::Sandbox::new());
                }
            )+
        }
    };
}

with_files!(
    a_slot_runs_once_and_a_failure_consumes_it,
    a_failed_run_is_repeated_for_its_slot_until_it_succeeds,
    a_slot_is_shown_and_forgotten,
    two_slots_do_not_run_at_the_same_time,
    a_slot_whose_lock_is_lost_ends_its_command_with_its_grace,
    a_lock_is_kept_after_its_release,
    a_slot_is_forgotten_after_its_time,
);
