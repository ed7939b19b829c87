//! What becomes of the command when contact with the server is lost, or the lock is.

use std::process::Stdio;
use std::time::{Duration, Instant};

use conformance_tests::servers::Direction;
use nix::sys::signal::Signal;

use super::server::Server;
use crate::steady::on_a_machine_that_runs;
use crate::support::{Running, is_stopped, lives, until};

#[test]
fn a_deleted_node_ends_the_command() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let mut job = place.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let (path, _) = server.nodes("job").remove(0);
    server.delete(&path);
    assert_eq!(job.event("lost")["reason"], "deleted");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
}

#[test]
fn a_session_that_somebody_ends_ends_the_command() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let mut job = place.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let (_, node) = server.nodes("job").remove(0);
    server.close_session(node.session.unwrap());
    // The node goes with the session: whichever is heard of first.
    let reason = job.event("lost")["reason"].as_str().unwrap().to_owned();
    assert!(["session_closed", "deleted"].contains(&reason.as_str()), "{reason}");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
}

#[test]
fn a_server_that_returns_in_time_is_suspect_and_then_restored() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let mut job = place.exec(&[], "echo ready; mkfifo pipe; read line < pipe; exit 4");
    let mut holder = Running::start(place.distlock(["hold", "--json", "other"]).stdin(Stdio::piped()));
    assert_eq!(job.output_line(), "ready");
    assert_eq!(holder.output_event()["event"], "acquired");
    server.stop();
    // A hold relies on 40 s of the session, without 2 % for the clocks and 100 ms for timers. The grace is 10 s.
    let remaining = job.event("suspect")["remaining_ms"].as_u64().unwrap();
    assert!((1..=29_100).contains(&remaining), "{remaining}");
    let suspect = holder.output_event();
    let remaining = suspect["remaining_ms"].as_u64().unwrap();
    assert!(suspect["event"] == "suspect" && (1..=39_100).contains(&remaining), "{suspect}");
    server.resume();
    assert_eq!(job.event("restored")["name"], "job");
    assert_eq!(holder.output_line(), r#"{"event":"restored","name":"other"}"#);
    holder.close_input();
    assert_eq!(holder.output_line(), r#"{"event":"released","name":"other"}"#);
    assert_eq!(holder.code(), 0);
    until("the command listens", || place.file("pipe").exists());
    std::fs::write(place.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 4);
}

#[test]
fn a_server_that_dies_ends_command_and_hold() {
    let Some(server) = Server::start() else { return };
    let place = server.place("9s");
    let mut job = place.exec(&[], "trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let mut holder = Running::start(place.distlock(["hold", "--json", "other"]).stdin(Stdio::piped()));
    let child = job.pid_line();
    assert_eq!(holder.output_event()["event"], "acquired");
    server.kill();
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

/// The command ignores SIGTERM, and the rival is next: it has the lock the moment the session ends.
#[test]
fn nobody_else_has_the_lock_before_the_command_is_killed() {
    let Some(server) = Server::start() else { return };
    on_a_machine_that_runs(|| {
        let proxy = server.proxy();
        let cut_off = server.place_behind(&proxy, "15s");
        let mut job = cut_off.exec(&[], "trap '' TERM; echo $$; while :; do sleep 0.01; done");
        let child = job.pid_line();
        let place = server.place("60s");
        let mut rival = place.exec(&[], &format!("kill -0 {child} && echo beside || echo alone"));
        place.until_waiting("job", 1);
        proxy.blackhole(Direction::ToServer);
        proxy.blackhole(Direction::ToClient);
        assert_eq!(job.event("lost")["reason"], "expired");
        assert_eq!(job.event("terminating")["signal"], "SIGTERM");
        let told = Instant::now();
        assert_eq!(job.event("terminating")["signal"], "SIGKILL");
        // A third of the ten seconds that a hold relies on, but for what passes until this hears of it.
        assert!(told.elapsed() >= Duration::from_millis(2_800), "{:?}", told.elapsed());
        assert_eq!(job.code(), 76);
        let company = rival.output_line();
        assert_eq!(rival.code(), 0);
        company == "alone"
    });
}

#[test]
fn distlock_that_was_stopped_for_too_long_ends_its_command_and_takes_nothing_from_the_next() {
    let Some(server) = Server::start() else { return };
    let place = server.place("6s");
    let mut job = place.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let first = job.event("acquired")["token"].as_str().unwrap().parse::<u64>().unwrap();
    job.signal(Signal::SIGSTOP);
    until("it stops", || is_stopped(job.pid()));
    // Somebody else has the lock once the session is over, with a session of its own that no stall ends.
    let patient = server.place("60s");
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
    assert_eq!(patient.status("job")["holders"][0]["pid"], next.pid().as_raw());
    next.close_input();
    assert_eq!(next.output_event()["event"], "released");
    assert_eq!(next.code(), 0);
}
