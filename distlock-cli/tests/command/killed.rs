//! `kill -9` of distlock itself.

use nix::sys::signal::Signal;

use crate::support::{Sandbox, lives, until};

#[test]
fn the_command_ends_with_distlock_and_the_lock_goes_on() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    let mut next = sandbox.exec(&[], "echo mine");
    sandbox.until_waiting("job", 1);
    job.signal(Signal::SIGKILL);
    assert_eq!(next.output_line(), "mine");
    // The child was dead before another command had the lock, because it kept the lock by its descriptor.
    assert!(!lives(child));
    assert_eq!(next.code(), 0);
}

#[test]
fn a_surviving_grandchild_keeps_the_lock_until_it_has_gone() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "sleep 1000 > /dev/null 2>&1 & echo $!; echo $$; wait");
    let (grandchild, child) = (job.pid_line(), job.pid_line());
    job.signal(Signal::SIGKILL);
    until("the child ends", || !lives(child));
    assert!(lives(grandchild));
    assert_eq!(sandbox.run(["exec", "--wait", "200ms", "job", "--", "true"]).status.code(), Some(75));
    nix::sys::signal::kill(grandchild, Signal::SIGKILL).unwrap();
    assert_eq!(sandbox.run(["exec", "--wait", "30s", "job", "--", "true"]).status.code(), Some(0));
}

#[test]
fn a_grandchild_does_not_keep_it_with_close() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&["--close"], "sleep 1000 > /dev/null 2>&1 & echo $!; wait");
    let grandchild = job.pid_line();
    job.signal(Signal::SIGKILL);
    assert_eq!(sandbox.run(["exec", "--wait", "30s", "job", "--", "true"]).status.code(), Some(0));
    assert!(lives(grandchild));
    nix::sys::signal::kill(grandchild, Signal::SIGKILL).unwrap();
}

#[test]
fn a_grandchild_does_not_keep_it_when_the_command_has_ended_in_good_order() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "sleep 1000 > /dev/null 2>&1 & echo $!");
    let grandchild = job.pid_line();
    assert_eq!(job.code(), 0);
    assert!(lives(grandchild));
    assert_eq!(sandbox.run(["exec", "--no-wait", "job", "--", "true"]).status.code(), Some(0));
    nix::sys::signal::kill(grandchild, Signal::SIGKILL).unwrap();
}

#[test]
fn the_command_can_be_left_alive_and_then_keeps_the_lock() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&["--on-death", "ignore"], "echo $$; mkfifo pipe; read line < pipe");
    let child = job.pid_line();
    until("the command listens", || sandbox.file("pipe").exists());
    job.signal(Signal::SIGKILL);
    assert_eq!(job.code(), 137);
    assert!(lives(child));
    assert_eq!(sandbox.run(["exec", "--no-wait", "job", "--", "true"]).status.code(), Some(75));
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(sandbox.run(["exec", "--wait", "30s", "job", "--", "true"]).status.code(), Some(0));
    until("the command ends", || !lives(child));
}

#[test]
fn a_killed_waiter_leaves_the_queue() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    let waiter = sandbox.exec(&[], "touch ran");
    sandbox.until_waiting("job", 1);
    let mut next = sandbox.exec(&[], "exit 0");
    sandbox.until_waiting("job", 2);
    waiter.signal(Signal::SIGKILL);
    holder.close_input();
    assert_eq!(next.code(), 0);
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn a_lock_that_only_grandchildren_keep_is_reported_as_such() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "sleep 1000 > /dev/null 2>&1 & echo $!; echo $$; wait");
    let (grandchild, child) = (job.pid_line(), job.pid_line());
    assert!(!told(&sandbox.run(["status", "job"]).stdout).contains("gone"));
    job.signal(Signal::SIGKILL);
    assert_eq!(job.code(), 137);
    until("the child ends", || !lives(child));

    let status = told(&sandbox.run(["status", "job"]).stdout);
    assert!(status.contains(&format!("is held by pid {} on ", job.pid())), "{status}");
    assert!(status.contains(", which is gone, since"), "{status}");
    assert!(status.contains("processes that it started still keep the lock"), "{status}");

    let broken = told(&sandbox.run(["break", "--yes", "job"]).stderr);
    assert!(broken.contains("they run on beside the next holder until a user ends them"), "{broken}");
    assert!(lives(grandchild));
    assert_eq!(sandbox.run(["exec", "--no-wait", "job", "--", "true"]).status.code(), Some(0));
    nix::sys::signal::kill(grandchild, Signal::SIGKILL).unwrap();
}

/// Each container has process ids of its own: no process there has the holder's id.
#[test]
#[cfg(target_os = "linux")]
fn a_holder_of_another_container_is_not_said_to_be_gone() {
    let sandbox = Sandbox::new();
    let holder = sandbox.hold("job");
    let status = sandbox.distlock(["status", "job"]);
    let mut elsewhere = std::process::Command::new("unshare");
    elsewhere.args(["--map-root-user", "--pid", "--fork", "--"]);
    elsewhere.arg(status.get_program()).args(status.get_args());
    let output = elsewhere.output().unwrap();
    assert!(
        output.status.success(),
        "this test makes a namespace of its own: install util-linux and allow user namespaces, or run it as root: {output:?}"
    );
    let told = told(&output.stdout);
    assert!(told.contains(&format!("is held by pid {} on ", holder.pid())), "{told}");
    assert!(!told.contains("gone") && !told.contains("stopped"), "{told}");
}

fn told(text: &[u8]) -> String {
    String::from_utf8(text.to_vec()).unwrap()
}
