//! The exit codes of failures at the server.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Server, with_option};
use crate::support::{Running, Sandbox, assert_code, bare, said, with_few_descriptors_it_is_70};

pub(crate) fn a_server_that_is_away_is_69<S: Server>(server: &S) {
    server.kill();
    let sandbox = patient(server, "2s");
    for arguments in [["exec", "job", "touch", "ran"].as_slice(), &["status", "job"], &["hold", "job"]] {
        let output = sandbox.run(arguments.iter().copied());
        assert_code(&output, 69, arguments);
        assert!(said(&output).contains(S::AWAY), "{output:?}");
        assert!(said(&output).contains(": tried for 2s: "), "{output:?}");
        assert_names_the_server_and_each_cause_once(&said(&output), &sandbox.url());
    }
    assert!(!sandbox.file("ran").exists());
}

/// On each kind of server; one that is away is a fault.
pub(crate) fn the_doctor_finds_what_there_is_to_find<S: Server>(server: &S) {
    // A break is noticed while it waits for that.
    let sandbox = server.sandbox("30s");
    let (level, findings) = doctor(&sandbox);
    assert!(level.is_some_and(|code| code <= 1), "{findings:?}");
    let checks: Vec<_> = findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
    let tried =
        ["connect", "round trip", "lock", "status", "list", "sharing", "slots", "election", "failover"];
    for check in tried.iter().chain(&["exclusion", "break"]) {
        assert!(checks.contains(check), "{check}: {findings:?}");
    }
    let list = finding(&findings, "list")["message"].as_str().unwrap();
    let known = ["its own lock is listed", "fencing=table in all URLs", "takes longer than it may"];
    assert!(known.iter().any(|part| list.contains(part)), "{list}");
    assert!(findings.iter().all(|finding| finding["level"] != "fault"), "{findings:?}");
    let round_trip = finding(&findings, "round trip");
    assert!(round_trip["message"].as_str().unwrap().contains("a lease is"), "{round_trip}");
    let warnings = findings.iter().filter(|finding| finding["level"] == "warning").count();
    assert_eq!(level, Some(i32::from(warnings > 0)), "{findings:?}");
    // What it does itself is no finding.
    let is_its_own = |finding: &&Value| finding["message"].as_str().unwrap().contains("connection has ended");
    assert_eq!(findings.iter().find(is_its_own), None, "{findings:?}");

    server.kill();
    let (level, findings) = doctor(&patient(server, "5s"));
    assert_eq!((level, findings.len()), (Some(69), 1), "{findings:?}");
    assert_eq!((&findings[0]["check"], &findings[0]["level"]), (&json!("connect"), &json!("fault")));
    let message = findings[0]["message"].as_str().unwrap();
    assert!(message.contains(S::AWAY) && !message.contains("if the server runs"), "{message}");
}

pub(crate) fn a_watch_says_when_it_cannot_look_and_when_it_can_again<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let start = |more: &[&str]| {
        Running::start(&mut sandbox.distlock([&["watch", "--interval", "100ms"], more].concat()))
    };
    let (mut watch, mut text) = (start(&["--json"]), start(&[]));
    let _holder = sandbox.hold("job");
    // A machine that stands still makes it say before that it cannot look.
    while watch.output_event()["event"] != "granted" {}
    text.output_line();
    server.kill();
    let mut until = |event: &str| loop {
        let told = watch.output_event();
        // At first, only a lock may be the one that cannot be looked at.
        if told["event"] == event && told.get("name").is_none() {
            return told;
        }
    };
    let told = until("unreachable");
    assert!(told["message"].as_str().unwrap().contains("cannot be reached"), "{told}");
    let mut until_text = |part: &str| while !text.output_line().contains(part) {};
    until_text(" UTC cannot look: ");
    server.restart();
    assert_eq!(until("reachable")["message"], Value::Null);
    until_text(" UTC all can be looked at again");
}

/// The exit code, and the findings.
pub(crate) fn doctor(sandbox: &Sandbox) -> (Option<i32>, Vec<Value>) {
    doctor_with(sandbox, &[])
}

pub(crate) fn doctor_with(sandbox: &Sandbox, options: &[&str]) -> (Option<i32>, Vec<Value>) {
    let output = sandbox.run(["doctor", "--json"].iter().chain(options).copied());
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    (output.status.code(), lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The first finding of a check.
pub(crate) fn finding<'a>(findings: &'a [Value], check: &str) -> &'a Value {
    let found = findings.iter().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("no {check}: {findings:?}"))
}

/// A sandbox for clients that try so long to connect.
fn patient<S: Server>(server: &S, time: &str) -> Sandbox {
    let url = server.place_at(server.way().address(), S::BRIEF).url();
    Sandbox::at(with_option(&url, &format!("connect_timeout={time}")))
}

/// Starts the command while there is no server, and returns once it has tried to connect.
fn tried_in_vain(sandbox: &Sandbox, options: &[&str]) -> Running {
    let arguments = [["exec", "-vv"].as_slice(), options, &["job", "--", "true"]].concat();
    let job = Running::start(&mut sandbox.distlock(arguments));
    while !job.error_line().contains("not connected yet") {}
    job
}

pub(crate) fn a_server_that_starts_late_is_waited_for<S: Server>(server: &S) {
    // The longer time is the one that counts.
    for (options, time) in [(["--wait", "10m"].as_slice(), "1ms"), (&["--no-wait"], "10m"), (&[], "10m")] {
        server.kill();
        let mut job = tried_in_vain(&patient(server, time), options);
        server.restart();
        assert_eq!(job.code_at_last(), 0, "{options:?}: {:?}", job.error_lines());
    }
}

pub(crate) fn the_wait_for_a_server_is_reported<S: Server>(server: &S) {
    server.kill();
    let sandbox = patient(server, "10m");
    let mut job = Running::start(&mut sandbox.distlock(["exec", "job", "--", "true"]));
    assert_eq!(job.error_line(), "distlock: no contact with the server yet; trying again");
    server.restart();
    assert_eq!(job.code_at_last(), 0, "{:?}", job.error_lines());
}

pub(crate) fn a_wait_that_ends_before_the_server_starts_is_69_and_says_so<S: Server>(server: &S) {
    server.kill();
    let output = patient(server, "10m").run(["exec", "--wait", "2500ms", "job", "--", "true"]);
    assert_code(&output, 69, "--wait");
    assert!(said(&output).contains(": tried for 2s 500ms: "), "{output:?}");
}

pub(crate) fn a_signal_ends_the_wait_for_a_server<S: Server>(server: &S) {
    server.kill();
    let mut job = tried_in_vain(&patient(server, "10m"), &[]);
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code_at_last(), 143);
}

fn assert_names_the_server_and_each_cause_once(said: &str, url: &str) {
    let (_, rest) = url.split_once("://").unwrap();
    let hosts = rest.split(['/', '?']).next().unwrap();
    let hosts = hosts.split_once('@').map_or(hosts, |(_, hosts)| hosts);
    assert!(said.contains(&format!("{hosts}/")) || said.contains(&format!("{hosts}: ")), "{said}");
    let mut parts: Vec<_> = said.trim_end().split(": ").collect();
    let count = parts.len();
    parts.sort_unstable();
    parts.dedup();
    assert_eq!(parts.len(), count, "{said}");
    assert!(said.matches("refused").count() <= 1, "{said}");
}

pub(crate) fn a_server_that_does_not_answer_is_69<S: Server>(server: &S) {
    server.stop();
    let hasty = server.place_at(server.way().address(), S::BRIEF);
    let output = hasty.run(["exec", "--no-wait", "job", "--", "true"]);
    assert_code(&output, 69, "stopped");
    assert!(said(&output).contains(S::SILENT), "{output:?}");
    server.resume();
    assert_code(&server.sandbox("60s").run(["exec", "job", "--", "true"]), 0, "resumed");
}

/// The server refuses a command with this URL, and the message contains these words; the doctor says the same.
pub(crate) fn is_77(url: String, words: &str) {
    let sandbox = Sandbox::at(url);
    let output = sandbox.run(["exec", "job", "--", "touch", "ran"]);
    assert_code(&output, 77, sandbox.url());
    assert!(said(&output).contains(words), "{output:?}");
    assert!(!sandbox.file("ran").exists());
    let (code, findings) = doctor(&sandbox);
    assert_eq!(code, Some(77), "{findings:?}");
    let fault = findings.iter().find(|finding| finding["level"] == "fault").unwrap();
    assert!(fault["message"].as_str().unwrap().contains(words), "{findings:?}");
}

/// An invalid URL, and a part of the message about it.
pub(crate) fn is_64(url: &str, part: &str) {
    let output = Sandbox::at(url.to_owned()).run(["exec", "job", "--", "true"]);
    assert_code(&output, 64, url);
    assert!(said(&output).contains(part) && said(&output).contains("--url"), "{url}: {output:?}");
    let output = bare().env("DISTLOCK_URL", url).args(["status", "job"]).output().unwrap();
    assert_code(&output, 64, url);
    assert!(said(&output).contains("DISTLOCK_URL"), "{url}: {output:?}");
}

/// A grace of five seconds does not fit into the first length, and the default grace fits into all others. A command with a
/// length that fits ends with `code`, because it need not reach a server.
pub(crate) fn lengths_and_graces(
    sandbox: impl Fn(&str) -> Sandbox,
    too_short: &str,
    words: &str,
    others: &[&str],
    code: i32,
) {
    let output = sandbox(too_short).run(["exec", "--grace", "5s", "job", "--", "true"]);
    assert_code(&output, 64, too_short);
    assert!(said(&output).contains(words) && said(&output).contains("--grace"), "{output:?}");
    for other in others {
        assert_code(&sandbox(other).run(["exec", "job", "--", "true"]), code, other);
    }
    // A grace that is not used needs no time.
    let output = sandbox(too_short).run(["exec", "--grace", "5s", "--on-lost", "ignore", "job", "true"]);
    assert_code(&output, code, "ignore");
}

pub(crate) fn a_held_lock_exits_with_75_and_names_the_holder<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let holder = sandbox.hold("job");
    let held_by = format!("held by {}", server.people_read(holder.pid()));
    for wait in ["--no-wait", "--wait=10s"] {
        let output = sandbox.run(["exec", wait, "job", "--", "touch", "ran"]);
        assert_code(&output, 75, wait);
        assert!(said(&output).contains(&held_by), "{output:?}");
    }
    assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
    assert!(!sandbox.file("ran").exists());
}

/// How long leaving a silent server may take on any machine, and a grace that the command does not wait for because it holds
/// nothing.
const SOON: Duration = Duration::from_secs(60);
const LONG_GRACE: [&str; 2] = ["--grace", "2m"];

pub(crate) fn a_signal_ends_a_wait_although_the_server_is_silent<S: Server>(server: &S) {
    let sandbox = server.sandbox("10m");
    let _holder = sandbox.hold("job");
    let mut waiter = sandbox.exec(&LONG_GRACE, "touch ran");
    sandbox.until_waiting("job", 1);
    server.stop();
    let begun = Instant::now();
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code_at_last(), 143);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

pub(crate) fn a_wait_that_ends_while_the_server_is_silent_is_69_and_says_so<S: Server>(server: &S) {
    const WAIT: Duration = Duration::from_secs(15);
    let sandbox = server.sandbox("10m");
    let _holder = sandbox.hold("job");
    let options = [LONG_GRACE.as_slice(), &["--wait", "15s"]].concat();
    let begun = Instant::now();
    let mut waiter = sandbox.exec(&options, "touch ran");
    sandbox.until_waiting("job", 1);
    server.stop();
    let message = waiter.event("error")["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot be reached"), "{message}");
    assert_eq!(waiter.code_at_last(), 69);
    assert!(begun.elapsed() < WAIT + SOON, "{:?}", begun.elapsed());
}

pub(crate) fn too_few_descriptors_are_70_with_the_remedy_and_never_a_panic<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    with_few_descriptors_it_is_70(&sandbox, 8..36);
}
