//! Holders, waiters, and users that inspect or break a lock.

use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Server;
use crate::support::{Running, Sandbox, assert_code, lives, rounds, said, until};
use crate::terminal::Screen;

pub(crate) fn loops_on_several_processes_lose_no_increment_and_tokens_rise<S: Server>(server: &S) {
    let [loops, rounds] = [S::LOOPS[0], rounds(S::LOOPS[1])];
    let sandbox = server.sandbox("60s");
    std::fs::write(sandbox.file("c"), "0\n").unwrap();
    let script = format!(
        "i=0; while [ $i -lt {rounds} ]; do '{}' exec counter -- \
         sh -c 'n=$(cat c); echo $((n+1)) > c; echo $DISTLOCK_TOKEN >> tokens' || exit 1; i=$((i+1)); done",
        env!("CARGO_BIN_EXE_distlock"),
    );
    let mut running: Vec<_> = (0..loops)
        .map(|_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", &script]).current_dir(sandbox.file("")).stdin(Stdio::null());
            Running::start(shell.env("DISTLOCK_URL", sandbox.url()))
        })
        .collect();
    for one in &mut running {
        assert_eq!(one.code_at_last(), 0);
    }
    assert_eq!(std::fs::read_to_string(sandbox.file("c")).unwrap(), format!("{}\n", loops * rounds));
    let tokens: Vec<u64> = std::fs::read_to_string(sandbox.file("tokens"))
        .unwrap()
        .lines()
        .map(|token| token.parse().unwrap())
        .collect();
    assert_eq!(tokens.len(), loops * rounds);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// In a sandbox with the server's defaults, and the default grace for them.
pub(crate) fn runs_and_has_name_and_token(sandbox: &Sandbox) {
    let output =
        sandbox.run(["exec", "job", "--", "sh", "-c", "echo $DISTLOCK_NAME $DISTLOCK_TOKEN; exit 3"]);
    assert_code(&output, 3, "the command's own");
    let told = String::from_utf8(output.stdout).unwrap();
    let token = told.strip_prefix("job ").unwrap_or_else(|| panic!("{told}")).trim_end();
    assert!(token.parse::<u64>().unwrap() > 0, "{told}");
}

/// The status of a lock that is held, and that two processes wait for.
pub(crate) struct Seen {
    pub(crate) begun: SystemTime,
    pub(crate) status: Value,
    pub(crate) text: String,
    // They live as long as this.
    _participants: [Running; 3],
}

impl Seen {
    /// Asserts that the status has a token, and the time since when the lock is held.
    pub(crate) fn assert_tells_token_and_since(&self) {
        let Self { begun, status, .. } = self;
        let held_by = &status["holders"][0];
        assert!(held_by["token"].as_str().unwrap().parse::<u64>().is_ok());
        let since = humantime::parse_rfc3339(held_by["since"].as_str().unwrap()).unwrap();
        // The server's clock is this machine's; the time is printed in milliseconds.
        assert!(since + Duration::from_millis(1) >= *begun && since <= SystemTime::now(), "{status}");
    }
}

pub(crate) fn holder_and_queue<S: Server>(server: &S) -> Seen {
    let sandbox = server.sandbox("60s");
    let begun = SystemTime::now();
    let holder = sandbox.hold("job");
    let first = Running::start(&mut sandbox.distlock(["hold", "job"]));
    sandbox.until_waiting("job", 1);
    let second = Running::start(&mut sandbox.distlock(["exec", "job", "true"]));
    sandbox.until_waiting("job", 2);

    let status = sandbox.status("job");
    assert_eq!((status["name"].as_str(), status["held"].as_bool()), (Some("job"), Some(true)));
    let [held_by] = status["holders"].as_array().unwrap().as_slice() else { panic!("{status}") };
    server.assert_is(held_by, holder.pid());
    let waiters: Vec<_> = status["waiters"].as_array().unwrap().iter().map(|waiter| &waiter["pid"]).collect();
    assert_eq!(waiters, [first.pid().as_raw(), second.pid().as_raw()]);

    let text = String::from_utf8(sandbox.run(["status", "job"]).stdout).unwrap();
    let holders = server.people_read(holder.pid());
    assert!(text.starts_with(&format!("lock \"job\" is held by {holders}")), "{text}");
    assert!(text.contains(&format!("1. pid {}", first.pid())), "{text}");
    assert_eq!(
        sandbox.status("free").to_string(),
        r#"{"name":"free","held":false,"holders":[],"waiters":[]}"#
    );
    Seen { begun, status, text, _participants: [holder, first, second] }
}

/// The holder gets one of these reasons.
pub(crate) fn break_serves_the_next<S: Server>(server: &S, sandbox: &Sandbox, reason: &str) {
    let mut job = sandbox.exec(&[], "trap 'echo told; exit 0' TERM; echo $$; while :; do sleep 0.1; done");
    let child = job.pid_line();
    let mut next = sandbox.exec(&[], "echo mine");
    sandbox.until_waiting("job", 1);
    let id = sandbox.status("job")["holders"][0]["id"].as_str().unwrap().to_owned();
    assert_code(&sandbox.run(["break", "--yes", "--holder", "another-holder", "job"]), 75, "another");
    assert!(job.runs());
    let output = sandbox.run(["break", "--yes", "--holder", &id, "job"]);
    assert_code(&output, 0, "the holder");
    let took = format!("took lock \"job\" from {}", server.people_read(job.pid()));
    assert!(said(&output).contains(&took), "{output:?}");
    // The holder may have ended since, but it had not at the time of the break.
    assert!(!said(&output).contains("gone"), "{output:?}");
    assert_eq!(job.event("lost")["reason"], reason);
    assert_eq!(job.event("terminating")["signal"], "SIGTERM");
    assert_eq!(job.output_line(), "told");
    assert_eq!(job.code(), 76);
    assert!(!lives(child));
    assert_eq!(next.output_line(), "mine");
    assert_eq!(next.code(), 0);
}

pub(crate) fn a_waiter_says_on_a_terminal_who_holds_the_lock<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let mut holder = sandbox.hold("job");
    let mut screen = Screen::open(&sandbox);
    screen.enter("$D exec --wait 10m job -- echo ra''n");
    screen.expect(&format!("waiting for lock \"job\", held by {}", server.people_read(holder.pid())));
    screen.expect(" since ");
    screen.expect(" ago)");
    holder.close_input();
    screen.expect("ran");
    screen.expect_prompt_after(0);
}

pub(crate) fn a_signal_while_waiting_leaves_the_queue_at_once<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let _holder = sandbox.hold("job");
    let mut waiter = sandbox.exec(&[], "touch ran");
    sandbox.until_waiting("job", 1);
    waiter.signal(Signal::SIGTERM);
    assert_eq!(waiter.code(), 143);
    assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
    assert!(!sandbox.file("ran").exists());
}

/// The server may have to find out by itself that the holder is gone.
pub(crate) fn a_killed_holder_takes_its_command_along_and_the_next_has_the_lock<S: Server>(server: &S) {
    let sandbox = server.sandbox(S::BRIEF);
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let mut next = sandbox.exec(&[], "echo mine");
    sandbox.until_waiting("job", 1);
    job.signal(Signal::SIGKILL);
    assert_eq!(next.output_line(), "mine");
    until("the command ends with distlock", || !lives(child));
    assert_eq!(next.code(), 0);
}

pub(crate) fn locks_elsewhere_and_of_other_names_are_other_locks<S: Server>(server: &S) {
    let sandbox = server.sandbox("60s");
    let _holder = sandbox.hold("job");
    assert_code(&server.elsewhere().run(["exec", "--no-wait", "job", "--", "true"]), 0, "elsewhere");
    assert_code(&sandbox.run(["exec", "--no-wait", "Job", "--", "true"]), 0, "another name");
    assert_code(&sandbox.run(["exec", "--no-wait", "job", "--", "true"]), 75, "the same");
}
