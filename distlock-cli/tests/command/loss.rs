//! A lock that is lost while the command runs.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::{Running, Sandbox, assert_code, lives, until};

fn take_away(sandbox: &Sandbox) {
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
}

#[test]
fn the_whole_process_group_gets_the_signal_to_end() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(
        &[],
        "sh -c 'trap \"touch helper-told; exit\" TERM; echo $$; while :; do sleep 0.1; done' & wait",
    );
    let helper = job.pid_line();
    take_away(&sandbox);
    assert_eq!(job.event("lost")["reason"], "broken");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.code(), 76);
    assert!(!lives(helper));
    assert!(sandbox.file("helper-told").exists());
}

#[test]
fn one_that_does_not_listen_is_killed_after_the_grace() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&["--grace", "1s"], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let child = job.pid_line();
    let begun = Instant::now();
    take_away(&sandbox);
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.event("terminating")["signal"], "SIGKILL");
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(job.event("exited")["signal"], "SIGKILL");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
}

/// Other clients have the lock when the grace is over, whether or not distlock has run meanwhile.
#[test]
fn the_grace_begins_with_the_loss_and_not_when_that_is_noticed() {
    // Both are long enough for a machine that hangs for a while.
    const HOLD: Duration = Duration::from_secs(10);
    const GRACE: Duration = Duration::from_secs(10);
    let sandbox = Sandbox::with("&max_hold=10s");
    let mut job = sandbox.exec(&["--grace", "10s"], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let child = job.pid_line();
    job.signal(Signal::SIGSTOP);
    thread::sleep(HOLD + GRACE);
    assert!(lives(child));
    job.signal(Signal::SIGCONT);
    let continued = Instant::now();
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.event("terminating")["signal"], "SIGKILL");
    assert!(continued.elapsed() < GRACE, "{:?}", continued.elapsed());
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
}

/// A tracer can keep a process from ending.
#[test]
#[cfg(target_os = "linux")]
fn what_does_not_end_at_sigkill_is_named() {
    use nix::sys::ptrace::{Options, cont, seize};
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

    let sandbox = Sandbox::new();
    let start = |script| {
        let mut job = sandbox.exec(&["--grace", "200ms"], script);
        let deaf = job.pid_line();
        seize(deaf, Options::PTRACE_O_TRACEEXIT).unwrap();
        take_away(&sandbox);
        assert_eq!(job.event("survived")["pids"], serde_json::json!([deaf.as_raw()]));
        assert!(lives(deaf));
        (job, deaf)
    };
    let let_go = |deaf| {
        until("it ends", || {
            let _ = cont(deaf, None);
            matches!(waitpid(deaf, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::Signaled(..)))
        });
    };
    // distlock waits only for the command itself.
    let (mut job, child) = start("trap '' TERM; echo $$; exec sleep 1000");
    let_go(child);
    assert_eq!(job.code(), 76);
    let (mut job, helper) = start(r#"setsid sh -c 'trap "" TERM; echo $$; exec sleep 1000' & wait"#);
    assert_eq!(job.code(), 76);
    let_go(helper);
}

/// Here distlock is the superuser, but may signal only its own processes, so it cannot reach the command.
#[test]
#[cfg(target_os = "linux")]
fn one_that_runs_as_another_user_is_named_and_waited_for() {
    if let Some(reason) = test_servers::left_out("root") {
        return eprintln!("a command that runs as another user: {reason}");
    }
    let superuser = "run it as root, or leave it out with DISTLOCK_SKIP=root";
    assert!(nix::unistd::geteuid().is_root(), "this test needs two users: {superuser}");
    let sandbox = Sandbox::new();
    let distlock = sandbox.distlock(
        [
            ["exec", "--json", "--grace", "200ms", "job", "--"].as_slice(),
            &["setpriv", "--reuid=65534", "--clear-groups", "--", "sh", "-c", "echo $$; exec cat"],
        ]
        .concat(),
    );
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-kill", "--"]).arg(distlock.get_program()).args(distlock.get_args());
    command.env_remove("DISTLOCK_URL").process_group(0).stdin(Stdio::piped());
    let mut job = Running::start(&mut command);
    let child = job.pid_line();
    take_away(&sandbox);
    for signal in ["SIGTERM", "SIGKILL"] {
        let refused = job.event("refused");
        assert_eq!(
            (refused["signal"].as_str(), refused["pids"][0].as_i64()),
            (Some(signal), Some(child.as_raw().into()))
        );
    }
    assert!(lives(child) && job.runs());
    job.close_input();
    assert_eq!(job.code(), 76);
    let rest = job.error_lines();
    assert!(rest.iter().any(|line| line.contains(r#""exited""#)), "{rest:?}");
    assert!(!rest.iter().any(|line| line.contains("survived")), "{rest:?}");
}

#[test]
fn helpers_that_do_not_listen_are_killed_after_the_grace_although_the_command_has_ended() {
    let sandbox = Sandbox::new();
    let mut job = sandbox
        .exec(&["--grace", "5s"], "sh -c 'trap \"\" TERM; echo $$; while :; do sleep 0.1; done' & wait");
    let helper = job.pid_line();
    take_away(&sandbox);
    assert_eq!(job.event("exited")["signal"], "SIGTERM");
    assert_eq!(job.code(), 76);
    until("the helper ends", || !lives(helper));
}

#[test]
fn a_stopped_command_is_ended_as_well() {
    let sandbox = Sandbox::new();
    let mut job = sandbox
        .exec(&["--grace", "60s"], "trap 'exit 0' TERM; echo $$; kill -STOP $$; while :; do sleep 0.1; done");
    let child = job.pid_line();
    until("the command stops", || crate::support::is_stopped(child));
    take_away(&sandbox);
    assert_eq!(job.event("exited")["code"], 0);
    assert_eq!(job.code(), 76);
}

#[test]
fn a_grace_without_an_end_is_no_reason_to_fail() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(
        &["--grace", "500000000000y"],
        "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done",
    );
    assert_eq!(job.output_line(), "ready");
    take_away(&sandbox);
    assert_eq!(job.output_line(), "told");
    assert_eq!(job.code(), 76);
}

#[test]
fn it_can_be_ignored() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&["--on-lost", "ignore"], "mkfifo pipe; echo ready; read line < pipe; exit 4");
    assert_eq!(job.output_line(), "ready");
    take_away(&sandbox);
    job.event("lost");
    assert!(job.runs());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 4);
}

#[test]
fn the_next_one_has_the_lock_while_the_former_holder_is_still_ending() {
    let sandbox = Sandbox::new();
    let mut job =
        sandbox.exec(&["--grace", "60s"], "trap '' TERM; echo ready; mkfifo pipe; read line < pipe; exit 0");
    assert_eq!(job.output_line(), "ready");
    let first = job.event("acquired")["token"].as_str().unwrap().parse::<u64>().unwrap();
    take_away(&sandbox);
    job.event("lost");
    let mut next = sandbox.exec(&["--wait", "30s"], "exit 0");
    let second = next.event("acquired")["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(second > first, "{second} after {first}");
    assert_eq!(next.code(), 0);
    until("the command listens", || sandbox.file("pipe").exists());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 76);
}
