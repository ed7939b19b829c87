//! Holders, waiters, and those who look at them or take the lock away.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use super::server::Server;
use crate::support::{Running, assert_code, lives, said, until};

#[test]
fn loops_on_several_processes_lose_no_increment_and_tokens_rise() {
    const LOOPS: usize = 4;
    const ROUNDS: usize = 8;
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    std::fs::write(place.file("c"), "0\n").unwrap();
    let script = format!(
        "i=0; while [ $i -lt {ROUNDS} ]; do '{}' exec counter -- \
         sh -c 'n=$(cat c); echo $((n+1)) > c; echo $DISTLOCK_TOKEN >> tokens' || exit 1; i=$((i+1)); done",
        env!("CARGO_BIN_EXE_distlock"),
    );
    let mut loops: Vec<_> = (0..LOOPS)
        .map(|_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).current_dir(place.file("")).stdin(Stdio::null());
            Running::start(shell.env("DISTLOCK_URL", place.url()))
        })
        .collect();
    for running in &mut loops {
        assert_eq!(running.code_at_last(), 0);
    }
    assert_eq!(std::fs::read_to_string(place.file("c")).unwrap(), format!("{}\n", LOOPS * ROUNDS));
    let tokens: Vec<u64> = std::fs::read_to_string(place.file("tokens"))
        .unwrap()
        .lines()
        .map(|token| token.parse().unwrap())
        .collect();
    assert_eq!(tokens.len(), LOOPS * ROUNDS);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// With the session that it has by default, and the grace that fits into it.
#[test]
fn without_any_option_the_command_runs() {
    let Some(server) = Server::start() else { return };
    let place = server.place_with(&[]);
    let output = place.run(["exec", "job", "--", "sh", "-c", "echo $DISTLOCK_NAME $DISTLOCK_TOKEN; exit 3"]);
    assert_code(&output, 3, "the command's own");
    let told = String::from_utf8(output.stdout).unwrap();
    let token = told.strip_prefix("job ").unwrap_or_else(|| panic!("{told}")).trim_end();
    assert!(token.parse::<u64>().unwrap() > 0, "{told}");
    // It has ended its session, so nothing waits for that to run out.
    assert_eq!(server.nodes("job").len(), 0);
}

#[test]
fn status_tells_holder_queue_and_token() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let begun = SystemTime::now();
    let holder = place.hold("job");
    let first = Running::start(&mut place.distlock(["hold", "job"]));
    place.until_waiting("job", 1);
    let second = Running::start(&mut place.distlock(["exec", "job", "true"]));
    place.until_waiting("job", 2);

    let status = place.status("job");
    assert_eq!((status["name"].as_str(), status["held"].as_bool()), (Some("job"), Some(true)));
    let [held_by] = status["holders"].as_array().unwrap().as_slice() else { panic!("{status}") };
    assert_eq!(held_by["pid"], holder.pid().as_raw());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(held_by["host"], host.trim());
    // The number of the transaction that has created the node.
    let (path, node) = server.nodes("job").remove(0);
    assert_eq!(held_by["token"], node.created.to_string());
    assert!(path.ends_with(held_by["id"].as_str().unwrap()), "{path}: {status}");
    let since = humantime::parse_rfc3339(held_by["since"].as_str().unwrap()).unwrap();
    // The server's clock is this machine's; it is written in milliseconds.
    assert!(since + Duration::from_millis(1) >= begun && since <= SystemTime::now(), "{status}");
    let waiters: Vec<_> = status["waiters"].as_array().unwrap().iter().map(|waiter| &waiter["pid"]).collect();
    assert_eq!(waiters, [first.pid().as_raw(), second.pid().as_raw()]);

    let text = String::from_utf8(place.run(["status", "job"]).stdout).unwrap();
    assert!(text.starts_with(&format!("lock \"job\" is held by pid {} on ", holder.pid())), "{text}");
    assert!(text.contains(&format!("1. pid {}", first.pid())), "{text}");
    assert_eq!(place.status("free").to_string(), r#"{"name":"free","held":false,"holders":[],"waiters":[]}"#);
}

#[test]
fn break_ends_the_command_of_the_holder_and_serves_the_next() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let mut job = place.exec(&[], "trap 'echo told; exit 0' TERM; echo $$; while :; do sleep 0.01; done");
    let child = job.pid_line();
    let mut next = place.exec(&[], "echo mine");
    place.until_waiting("job", 1);
    let id = place.status("job")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_code(&place.run(["break", "--yes", "--holder", "somebody-else", "job"]), 75, "another");
    assert!(job.runs());
    let output = place.run(["break", "--yes", "--holder", &id, "job"]);
    assert_code(&output, 0, "the holder");
    assert!(said(&output).contains(&format!("took lock \"job\" from pid {}", job.pid())), "{output:?}");
    // The holder has ended since, but it had not then.
    assert!(!said(&output).contains("gone"), "{output:?}");
    assert_eq!(job.event("lost")["reason"], "broken");
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.output_line(), "told");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
    assert_eq!(next.output_line(), "mine");
    assert_eq!(next.code(), 0);
}

#[test]
fn a_signal_while_waiting_leaves_the_queue_at_once() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let _holder = place.hold("job");
    let mut waiter = place.exec(&[], "touch ran");
    place.until_waiting("job", 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code(), 143);
    assert_eq!(place.status("job")["waiters"].as_array().unwrap().len(), 0);
    assert!(!place.file("ran").exists());
}

/// Nothing tells the server that the holder is gone; its session has to end.
#[test]
fn a_killed_holder_takes_its_command_along_and_the_next_has_the_lock_after_the_session() {
    let Some(server) = Server::start() else { return };
    let place = server.place("6s");
    let mut job = place.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let mut next = place.exec(&[], "echo mine");
    place.until_waiting("job", 1);
    job.signal(Signal::SIGKILL);
    assert_eq!(next.output_line(), "mine");
    until("the command ends with distlock", || !lives(child));
    assert_eq!(next.code(), 0);
}

#[test]
fn locks_in_other_folders_and_of_other_names_are_other_locks() {
    let Some(server) = Server::start() else { return };
    let place = server.place("60s");
    let _holder = place.hold("job");
    let elsewhere = crate::support::Place::at(server.url().replace("/locks", "/elsewhere/locks"));
    assert_code(&elsewhere.run(["exec", "--no-wait", "job", "--", "true"]), 0, "another folder");
    assert_code(&place.run(["exec", "--no-wait", "Job", "--", "true"]), 0, "another name");
    assert_code(&place.run(["exec", "--no-wait", "job", "--", "true"]), 75, "the same");
}
