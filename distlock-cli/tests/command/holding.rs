//! `hold` and `status`.

use nix::sys::signal::Signal;
use std::process::Stdio;

use crate::support::{Running, Sandbox, assert_code, said, until};

#[test]
fn it_holds_until_standard_input_closes() {
    let sandbox = Sandbox::new();
    let mut holder = Running::start(sandbox.distlock(["hold", "--json", "a/b"]).stdin(Stdio::piped()));
    let acquired = holder.says_acquired();
    let token = sandbox.status("a/b")["holders"][0]["token"].clone();
    assert_eq!(acquired, serde_json::json!({"event": "acquired", "name": "a/b", "token": token}));
    holder.close_input();
    assert_eq!(holder.output_line(), r#"{"event":"released","name":"a/b"}"#);
    assert_eq!(holder.code(), 0);
    assert_eq!(holder.rest(), "");
    assert_eq!(sandbox.status("a/b")["held"], false);
}

#[test]
fn it_holds_until_a_signal_says_that_it_is_enough() {
    let sandbox = Sandbox::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut holder = sandbox.hold("job");
        holder.signal(Signal::SIGUSR1);
        assert_eq!(sandbox.status("job")["held"], true);
        holder.signal(signal);
        assert_eq!(holder.output_event()["event"], "released");
        assert_eq!(holder.code(), 0, "{signal}");
    }
}

#[test]
fn a_loss_is_reported_and_exits_with_76() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
    assert_eq!(holder.output_line(), r#"{"event":"lost","name":"job","reason":"broken"}"#);
    assert_eq!(holder.code(), 76);
}

#[test]
fn status_tells_holder_and_queue_in_order() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("job");
    let first = Running::start(&mut sandbox.distlock(["hold", "job"]));
    sandbox.until_waiting("job", 1);
    let second = Running::start(&mut sandbox.distlock(["hold", "job"]));
    sandbox.until_waiting("job", 2);

    let status = sandbox.status("job");
    assert_eq!((status["name"].as_str(), status["held"].as_bool()), (Some("job"), Some(true)));
    let [held_by] = status["holders"].as_array().unwrap().as_slice() else { panic!("{status}") };
    assert_eq!(held_by["pid"], holder.pid().as_raw());
    assert!(held_by["token"].as_str().unwrap().parse::<u64>().is_ok());
    for key in ["id", "host", "since"] {
        assert!(held_by[key].is_string(), "{key}: {status}");
    }
    let waiters: Vec<_> = status["waiters"].as_array().unwrap().iter().map(|waiter| &waiter["pid"]).collect();
    assert_eq!(waiters, [first.pid().as_raw(), second.pid().as_raw()]);
    // A lock between processes has no lease.
    assert_eq!(status.get("remaining_ms"), None);

    let output = sandbox.run(["status", "job"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("lock \"job\" is held by pid {} on ", holder.pid())), "{text}");
    assert!(text.contains(&format!("1. pid {}", first.pid())), "{text}");
}

#[test]
fn a_free_lock_is_free() {
    let sandbox = Sandbox::new();
    assert_eq!(sandbox.status("job").to_string(), r#"{"name":"job","held":false,"holders":[],"waiters":[]}"#);
    assert_eq!(sandbox.run(["status", "job"]).stdout, b"lock \"job\" is free\n");
}

#[test]
fn a_standard_input_that_is_closed_to_begin_with_is_warned_of() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(["hold", "job"]);
    assert_code(&output, 0, "no input");
    assert!(
        said(&output).contains("standard input is closed, so the lock was released immediately"),
        "{output:?}"
    );

    let mut holder = Running::start(sandbox.distlock(["hold", "-v", "job"]).stdin(Stdio::piped()));
    while !holder.error_line().contains("until Ctrl-D") {}
    let pid = holder.pid();
    until("the input is read", || waits_for_input(pid));
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert!(holder.error_line().contains("is released"));
}

/// Whether the thread that reads standard input has nothing to read.
fn waits_for_input(pid: nix::unistd::Pid) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().any(|task| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        read("comm").starts_with("standard input") && read("stat").contains(") S ")
    })
}

/// Another process that shares the input may have made it so that it does not block.
#[test]
fn an_input_that_does_not_block_is_not_at_its_end() {
    let sandbox = Sandbox::new();
    let (input, mut writer) = std::io::pipe().unwrap();
    let flags = nix::fcntl::OFlag::O_NONBLOCK;
    nix::fcntl::fcntl(&input, nix::fcntl::FcntlArg::F_SETFL(flags)).unwrap();
    // It takes what arrives before distlock does, as often as it can.
    let mut thief = input.try_clone().unwrap();
    let stealing = std::thread::spawn(move || {
        let mut stolen = 0;
        while stolen < 200 {
            stolen += std::io::Read::read(&mut thief, &mut [0]).unwrap_or_default();
        }
    });
    let mut holder = Running::start(sandbox.distlock(["hold", "--json", "job"]).stdin(input));
    holder.says_acquired();
    while !stealing.is_finished() {
        std::io::Write::write_all(&mut writer, b"x").unwrap();
    }
    stealing.join().unwrap();
    assert_eq!(sandbox.status("job")["held"], true);
    drop(writer);
    assert_eq!(holder.code(), 0);
}

#[test]
fn those_in_use_are_listed() {
    let sandbox = Sandbox::new();
    let output = sandbox.run(["list"]);
    assert_code(&output, 0, "nothing");
    assert_eq!(output.stdout, b"no lock is in use\n");
    let holders = ["orders/1", "orders/2", "jobs/1"].map(|name| sandbox.hold(name));
    let waiter = Running::start(&mut sandbox.distlock(["hold", "orders/2"]));
    sandbox.until_waiting("orders/2", 1);

    let mut leader = sandbox.elect(&["--value", "10.0.0.7:8080"], "echo ready; exec sleep 600");
    assert_eq!(leader.output_line(), "ready");
    let text = String::from_utf8(sandbox.run(["list", "job"]).stdout).unwrap();
    let line = text.lines().next().unwrap();
    assert!(line.starts_with("lock \"job\" is held") && line.contains("; value \"10.0.0.7:8080\""), "{text}");
    leader.signal(Signal::SIGTERM);
    leader.code();

    let output = sandbox.run(["list", "orders/"]);
    let lines: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    let pid = |number: usize| holders[number].pid();
    assert!(lines[0].starts_with(&format!("lock \"orders/1\" is held by pid {} on ", pid(0))), "{lines:?}");
    assert!(lines[1].starts_with(&format!("lock \"orders/2\" is held by pid {} on ", pid(1))), "{lines:?}");
    assert!(lines[0].contains(" ago); token "), "{lines:?}");
    assert!(lines[1].contains("; 1 waiting, the first for ") && lines.len() == 2, "{lines:?}");

    let names = |options: &[&'static str]| {
        let output = sandbox.run(["list", "--json"].into_iter().chain(options.iter().copied()));
        let text = String::from_utf8(output.stdout).unwrap();
        let name = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["name"].clone();
        text.lines().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(&[]), ["jobs/1", "orders/1", "orders/2"]);
    assert_eq!(names(&["--waiting"]), ["orders/2"]);
    assert_eq!(sandbox.run(["list", "jobs/", "--waiting"]).stdout, b"no such lock is in use\n");
    assert_eq!(names(&["--held", "jobs"]), ["jobs/1"]);
    assert_eq!(sandbox.run(["list", "none"]).stdout, b"no such lock is in use\n");
    // All that a user of this machine has.
    assert_eq!(sandbox.run(["status", "--json"]).stdout, sandbox.run(["list", "--json"]).stdout);
    assert_code(&sandbox.run(["status", "--once", "monday"]), 64, "a slot of no lock");
    drop(waiter);
}
