//! Leaders of an election, and those who watch it.

use nix::sys::signal::Signal;
use std::process::Stdio;

use super::Server;
use crate::support::{Running, assert_code, lives};

/// Says its process and its term, and ends soon after SIGTERM.
const LEADS: &str = "trap 'exit 0' TERM; echo $$; echo $DISTLOCK_TOKEN; while :; do sleep 0.1; done";

pub(crate) fn a_leader_whose_server_is_silent_for_too_long_stops_and_leads_again<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut leader = sandbox.elect(&[], LEADS);
    let command = leader.pid_line();
    let first: u64 = leader.output_line().parse().unwrap();
    server.stop();
    assert_eq!(leader.event("lost")["reason"], "expired");
    assert_eq!(leader.event("exited")["code"], 0);
    assert!(!lives(command));
    server.resume();
    leader.event("acquired");
    leader.pid_line();
    let second: u64 = leader.output_line().parse().unwrap();
    assert!(second > first, "{second} after {first}");
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.code(), 0);
    assert_code(&server.sandbox("60s").run(["exec", "--no-wait", "job", "--", "true"]), 0, "resigned");
}

pub(crate) fn a_watch_shows_each_leader_and_a_killed_leader_is_followed_by_the_next<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut watch = Running::start(&mut sandbox.distlock(["elect", "--watch", "--json", "job"]));
    assert_eq!(watch.output_line(), r#"{"event":"leader","name":"job","leader":null}"#);
    let mut leader = sandbox.elect(&["--value", "10.0.0.7:80"], LEADS);
    let command = leader.pid_line();
    assert_eq!(watch.output_event()["leader"]["value"], "10.0.0.7:80");
    let mut next = sandbox.elect(&["--value", "10.0.0.8:80"], LEADS);
    sandbox.until_waiting("job", 1);
    leader.signal(Signal::SIGKILL);
    next.pid_line();
    let term = next.output_line();
    assert!(!lives(command));
    // In between there may be none for a moment.
    let event = std::iter::repeat_with(|| watch.output_event()).find(|event| !event["leader"].is_null());
    let event = event.unwrap();
    assert_eq!((&event["leader"]["value"], &event["leader"]["token"]), (&"10.0.0.8:80".into(), &term.into()));
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.code(), 0);
}

pub(crate) fn elections_and_locks_of_one_name_exclude_each_other<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let mut leader = sandbox.elect(&[], LEADS);
    leader.pid_line();
    assert_code(&sandbox.run(["exec", "--no-wait", "job", "--", "touch", "ran"]), 75, "exec beside a leader");
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.code(), 0);
    let mut holder = Running::start(sandbox.distlock(["hold", "--json", "job"]).stdin(Stdio::piped()));
    holder.says_acquired();
    for wait in ["--no-wait", "--wait=10s"] {
        assert_code(&sandbox.run(["elect", wait, "job", "--", "touch", "ran"]), 75, "elect beside a holder");
    }
    assert!(!sandbox.file("ran").exists());
    holder.close_input();
    assert_eq!(holder.code(), 0);
}

pub(crate) fn a_wait_that_ends_while_the_server_is_silent_is_69<S: Server>(server: &S) {
    let sandbox = server.sandbox("10m");
    let _holder = sandbox.hold("job");
    let mut candidate = sandbox.elect(&["--grace", "2m", "--wait", "15s"], "touch ran");
    sandbox.until_waiting("job", 1);
    server.stop();
    let message = candidate.event("error")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("within 15s, and its server cannot be reached"), "{message}");
    assert_eq!(candidate.code_at_last(), 69);
    assert!(!sandbox.file("ran").exists());
}
