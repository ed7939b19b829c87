//! What happens to the command when contact with the server is lost, or the lock is.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use test_servers::Direction;

use super::Server;
use crate::steady::on_a_machine_that_runs;
use crate::support::{Running, Sandbox, assert_code, is_stopped, lives, until};
use crate::terminal::{CTRL_Z, PROMPT, Screen};

/// When `harm` takes the lock away, distlock ends the command and gives one of these reasons.
pub(crate) fn the_command_ends(sandbox: &Sandbox, reasons: &[&str], harm: impl FnOnce()) {
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    harm();
    let lost = job.event("lost");
    assert!(reasons.contains(&lost["reason"].as_str().unwrap()), "{lost}");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
}

/// The longest time that a hold lasts without contact: the lease without 2 % for the clocks, 100 ms for timers, and the grace.
fn longest<S: Server>(silence: u64, grace: u64) -> u128 {
    S::lease_in(Duration::from_secs(silence)).as_millis() * 98 / 100 - 100 - u128::from(grace) * 1_000
}

pub(crate) fn a_server_that_returns_in_time_is_suspect_and_then_restored<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let mut job = sandbox.exec(&[], "echo ready; mkfifo pipe; read line < pipe; exit 4");
    let mut holder = Running::start(sandbox.distlock(["hold", "--json", "other"]).stdin(Stdio::piped()));
    assert_eq!(job.output_line(), "ready");
    holder.says_acquired();
    server.stop();
    let remaining = u128::from(job.event("suspect")["remaining_ms"].as_u64().unwrap());
    assert!((1..=longest::<S>(60, 10)).contains(&remaining), "{remaining}");
    let suspect = holder.output_event();
    let remaining = u128::from(suspect["remaining_ms"].as_u64().unwrap());
    assert!(suspect["event"] == "suspect" && (1..=longest::<S>(60, 0)).contains(&remaining), "{suspect}");
    server.resume();
    assert_eq!(job.event("restored")["name"], "job");
    assert_eq!(holder.output_line(), r#"{"event":"restored","name":"other"}"#);
    holder.close_input();
    assert_eq!(holder.output_line(), r#"{"event":"released","name":"other"}"#);
    assert_eq!(holder.code(), 0);
    until("the command listens", || sandbox.file("pipe").exists());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 4);
}

pub(crate) fn a_server_that_is_silent_for_too_long_ends_command_and_hold<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut job = sandbox.exec(&[], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let mut holder = Running::start(sandbox.distlock(["hold", "--json", "other"]).stdin(Stdio::piped()));
    let child = job.pid_line();
    holder.says_acquired();
    server.stop();
    job.event("suspect");
    assert_eq!(job.event("lost")["reason"], "expired");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.event("terminating")["signal"], "SIGKILL");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
    assert_eq!(holder.output_event()["event"], "suspect");
    assert_eq!(holder.output_line(), r#"{"event":"lost","name":"other","reason":"expired"}"#);
    assert_eq!(holder.code(), 76);
}

/// The command ignores SIGTERM, and the rival is next: it has the lock as soon as the server gives up on the command's client.
pub(crate) fn the_lock_is_not_granted_again_before_the_command_is_killed<S: Server>(server: &S) {
    on_a_machine_that_runs(|| {
        let proxy = server.proxy();
        let cut_off = server.place_behind(&proxy, "15s");
        let mut job = cut_off.exec(&[], "trap '' TERM; echo $$; while :; do sleep 0.1; done");
        let child = job.pid_line();
        let sandbox = server.sandbox("60s");
        let mut rival = sandbox.exec(&[], &format!("kill -0 {child} && echo beside || echo alone"));
        sandbox.until_waiting("job", 1);
        proxy.blackhole(Direction::ToServer);
        proxy.blackhole(Direction::ToClient);
        assert_eq!(job.event("lost")["reason"], "expired");
        assert_eq!(job.event("terminating")["signal"], "SIGTERM");
        let told = Instant::now();
        assert_eq!(job.event("terminating")["signal"], "SIGKILL");
        // A third of what a hold relies on, without the time until this test hears of it.
        let grace = S::lease_in(Duration::from_secs(15)) / 3;
        let had = told.elapsed() + Duration::from_secs(1);
        assert_eq!(job.code(), 76);
        let company = rival.output_line();
        assert_eq!(rival.code(), 0);
        eprintln!("it was {company}, and had {had:?} of {grace:?}");
        company == "alone" && had >= grace
    });
}

pub(crate) fn distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next<S>(
    server: &S,
) where
    S: Server,
{
    let sandbox = server.sandbox(S::BRIEF);
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let first = job.event("acquired")["token"].as_str().unwrap().parse::<u64>().unwrap();
    job.signal(Signal::SIGSTOP);
    until("it stops", || is_stopped(job.pid()));
    // Another client has the lock once the server has given up on the first one, with a lease of its own that no stall ends.
    let patient = server.sandbox("60s");
    let mut next = Running::start(patient.distlock(["hold", "--json", "job"]).stdin(Stdio::piped()));
    assert_eq!(next.output_event()["event"], "waiting");
    let second = next.output_event()["token"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(second > first, "{second} after {first}");
    assert!(lives(child));
    job.signal(Signal::SIGCONT);
    job.event("lost");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
    assert!(!job.error_lines().iter().any(|line| line.contains("restored") || line.contains("released")));
    server.assert_is(&patient.status("job")["holders"][0], next.pid());
    next.close_input();
    assert_eq!(next.output_event()["event"], "released");
    assert_eq!(next.code(), 0);
}

pub(crate) fn ctrl_z_for_longer_than_the_lease_loses_the_lock<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec job -- sh -c 'echo start""ed $$; exec sleep 1000'"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_Z);
    screen.expect("Stopped");
    screen.expect(PROMPT);
    assert_code(&sandbox.run(["exec", "--wait", "5m", "job", "--", "true"]), 0, "the next one");
    screen.enter("fg");
    screen.expect("was lost");
    screen.expect_prompt_after(76);
    assert!(!lives(child));
}

pub(crate) fn with_ignore_the_loss_is_reported_and_the_command_runs_on<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut job = sandbox.exec(&["--on-lost", "ignore"], "echo ready; mkfifo pipe; read line < pipe; exit 4");
    assert_eq!(job.output_line(), "ready");
    server.stop();
    assert_eq!(job.event("lost")["reason"], "expired");
    assert!(job.runs());
    server.resume();
    until("the command listens", || sandbox.file("pipe").exists());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 4);
}
