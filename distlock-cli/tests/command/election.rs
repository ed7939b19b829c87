//! `elect`: a command that runs wherever the leader is, and those who watch.

use nix::sys::signal::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};

use crate::support::{Running, Sandbox, assert_code, is_stopped, lives, said, until};

/// Says its process and its term, and ends soon after SIGTERM.
const LEADS: &str = "trap 'exit 0' TERM; echo $$; echo $DISTLOCK_TOKEN; while :; do sleep 0.1; done";

/// Waits until the leader's command says its term.
fn term_line(leader: &mut Running) -> u64 {
    leader.output_line().parse().unwrap()
}

#[test]
fn a_candidate_waits_until_the_command_of_the_leader_has_ended() {
    let sandbox = Sandbox::new();
    let mut first = sandbox
        .elect(&["--value", "10.0.0.7:80"], "echo $DISTLOCK_NAME; mkfifo pipe; read line < pipe; exit 3");
    assert_eq!(first.output_line(), "job");
    let mut second = sandbox.elect(&["--value", "10.0.0.8:80"], "echo $DISTLOCK_TOKEN");
    sandbox.until_waiting("job", 1);
    let status = sandbox.status("job");
    assert_eq!(status["holders"][0]["value"], "10.0.0.7:80");
    assert_eq!(status["waiters"][0]["value"], "10.0.0.8:80");
    let text = String::from_utf8(sandbox.run(["status", "job"]).stdout).unwrap();
    assert!(text.contains("\n  value \"10.0.0.7:80\"\n"), "{text}");

    until("the command listens", || sandbox.file("pipe").exists());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(first.code(), 3);
    let events: Vec<Value> =
        first.error_lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    // On a busy machine it may first have to wait.
    let events: Vec<_> = events.iter().filter(|event| event["event"] != "waiting").collect();
    let words: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(words, ["acquired", "started", "exited", "released"]);
    let term: u64 = events[0]["token"].as_str().unwrap().parse().unwrap();
    assert!(term_line(&mut second) > term);
    assert_eq!(second.code(), 0);
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn a_leader_that_has_lost_ends_its_command_and_stands_for_election_again() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.elect(&[], LEADS);
    let mut terms = Vec::new();
    for _ in 0..2 {
        let command = leader.pid_line();
        terms.push(term_line(&mut leader));
        sandbox.take_away();
        assert_eq!(leader.event("lost")["reason"], "broken");
        assert_eq!(leader.event("terminating")["signal"], "SIGTERM");
        assert_eq!(leader.event("exited")["code"], 0);
        leader.event("acquired");
        assert!(!lives(command));
    }
    let command = leader.pid_line();
    terms.push(term_line(&mut leader));
    assert!(terms.is_sorted_by(|earlier, later| earlier < later), "{terms:?}");
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.code(), 0);
    assert!(!lives(command));
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn nothing_of_the_last_term_runs_in_the_next() {
    let sandbox = Sandbox::new();
    let deaf = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let helper = format!("setsid sh -c \"{}\" & trap '' TERM; sleep 1000", deaf.replace('$', "\\$"));
    for script in [deaf, &helper] {
        let mut leader = sandbox.elect(&["--grace", "500ms"], script);
        let first = leader.pid_line();
        sandbox.take_away();
        assert_eq!(leader.event("terminating")["signal"], "SIGTERM");
        assert_eq!(leader.event("terminating")["signal"], "SIGKILL");
        leader.event("acquired");
        assert!(!lives(first), "{script}");
        leader.pid_line();
        leader.signal(Signal::SIGHUP);
        assert_eq!(leader.code(), 129);
    }
}

#[test]
fn elections_and_locks_of_one_name_exclude_each_other() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.elect(&[], LEADS);
    leader.pid_line();
    assert_code(&sandbox.run(["exec", "--no-wait", "job", "--", "touch", "ran"]), 75, "exec beside a leader");
    assert_code(&sandbox.run(["exec", "--no-wait", "other", "--", "true"]), 0, "exec of another name");
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.code(), 0);

    let mut job = sandbox.exec(&[], "echo ready; mkfifo pipe; read line < pipe");
    assert_eq!(job.output_line(), "ready");
    for (options, code) in [
        (["--no-wait"].as_slice(), 75),
        (&["--wait", "300ms"], 75),
        (&["--no-wait", "--conflict-exit-code", "9"], 9),
    ] {
        let arguments = [["elect"].as_slice(), options, &["job", "--", "touch", "ran"]].concat();
        let output = sandbox.run(arguments);
        assert_code(&output, code, options);
        assert!(said(&output).contains(&format!("held by pid {}", job.pid())), "{output:?}");
    }
    sandbox.until_waiting("job", 0);
    let mut candidate = sandbox.elect(&[], "echo leads");
    sandbox.until_waiting("job", 1);
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(candidate.output_line(), "leads");
    assert_eq!((job.code(), candidate.code()), (0, 0));
    assert_code(&sandbox.run(["elect", "--no-wait", "job", "--", "true"]), 0, "free");
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn a_signal_ends_a_campaign_and_leaves_the_queue() {
    let sandbox = Sandbox::new();
    let _holder = sandbox.hold("job");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut candidate = sandbox.elect(&[], "touch ran");
        sandbox.until_waiting("job", 1);
        candidate.signal(signal);
        assert_eq!(candidate.code(), code, "{signal}");
        assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
    }
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn a_campaign_after_a_loss_takes_signals_as_the_first_does() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.elect(&[], LEADS);
    first.pid_line();
    let mut second = sandbox.elect(&[], LEADS);
    sandbox.until_waiting("job", 1);
    sandbox.take_away();
    second.pid_line();
    sandbox.until_waiting("job", 1);
    first.signal(Signal::SIGTSTP);
    until("it stops", || is_stopped(first.pid()));
    first.signal(Signal::SIGCONT);
    until("it goes on", || !is_stopped(first.pid()));
    first.signal(Signal::SIGTERM);
    assert_eq!(first.code(), 143);
    assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
    assert!(second.runs());
}

#[test]
fn a_signal_after_a_loss_ends_it_when_the_command_has_ended() {
    let sandbox = Sandbox::new();
    let mut leader = sandbox.elect(
        &["--grace", "60s"],
        "trap 'echo stopping; read line < pipe; exit 0' TERM; mkfifo pipe; echo ready; while :; do sleep 0.1; done",
    );
    assert_eq!(leader.output_line(), "ready");
    sandbox.take_away();
    assert_eq!(leader.output_line(), "stopping");
    leader.event("terminating");
    leader.signal(Signal::SIGHUP);
    assert_eq!(leader.code(), 76);
    let rest = leader.error_lines();
    assert!(!rest.iter().any(|line| line.contains(r#""acquired""#)), "{rest:?}");
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn a_command_that_cannot_run_is_the_end() {
    let sandbox = Sandbox::new();
    for (program, code) in [("no-such-command", 127), ("/", 126)] {
        let output = sandbox.run(["elect", "job", "--", program]);
        assert_code(&output, code, program);
        assert_eq!(sandbox.status("job")["held"], false);
    }
}

#[test]
fn every_change_of_the_leader_is_a_line() {
    let sandbox = Sandbox::new();
    let mut watch = Running::start(&mut sandbox.distlock(["elect", "--watch", "--json", "job"]));
    assert_eq!(watch.output_line(), r#"{"event":"leader","name":"job","leader":null}"#);
    let mut leader = sandbox.elect(&["--value", "10.0.0.7:80"], LEADS);
    leader.pid_line();
    let term = term_line(&mut leader);
    let event = watch.output_event();
    assert_eq!(event["leader"]["value"], "10.0.0.7:80");
    assert_eq!(event["leader"]["token"], term.to_string());
    assert_eq!(event["leader"]["pid"], leader.pid().as_raw());
    assert!(humantime::parse_rfc3339(event["leader"]["since"].as_str().unwrap()).is_ok(), "{event}");
    leader.signal(Signal::SIGTERM);
    assert_eq!(watch.output_event()["leader"], Value::Null);
    // A holder of the lock leads nothing, and shows no value.
    let holder = sandbox.hold("job");
    let event = watch.output_event();
    assert_eq!(event["leader"]["pid"], holder.pid().as_raw());
    assert_eq!(event["leader"].get("value"), None);
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.code(), 0);
    assert_eq!(watch.rest(), "");

    let mut watch = Running::start(&mut sandbox.distlock(["elect", "--watch", "job"]));
    let line = watch.output_line();
    assert!(line.starts_with(&format!("election \"job\" is led by pid {} on ", holder.pid())), "{line}");
    assert!(line.contains(", term "), "{line}");
    watch.signal(Signal::SIGTERM);
    assert_eq!(watch.code(), 0);
}

#[test]
fn a_watch_ends_when_its_reader_has_gone() {
    let sandbox = Sandbox::new();
    let mut shell = Command::new("sh");
    let distlock = env!("CARGO_BIN_EXE_distlock");
    let script = format!("'{distlock}' elect --watch job | {{ head -1; touch gone; }}");
    shell.args(["-c", &script]).current_dir(sandbox.file("")).stdin(Stdio::null());
    let mut watch = Running::start(shell.env("DISTLOCK_URL", sandbox.url()));
    assert_eq!(watch.output_line(), "election \"job\" has no leader");
    until("the reader has gone", || sandbox.file("gone").exists());
    // Without a change that it would print.
    assert_eq!(watch.code(), 0);
}

#[test]
fn a_reader_of_the_lock_is_no_leader() {
    let sandbox = Sandbox::new();
    let mut reader =
        Running::start(sandbox.distlock(["hold", "--shared", "--json", "job"]).stdin(Stdio::piped()));
    reader.says_acquired();
    let mut watch = Running::start(&mut sandbox.distlock(["elect", "--watch", "job"]));
    assert_eq!(watch.output_line(), "election \"job\" has no leader");
}
