//! Processes that the command has started and that have left its process group.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Running, Sandbox, assert_code, lives, until, until_file_has};

/// Ways to leave the process group.
const WAYS_OUT: [&str; 5] = [
    "setsid sh helper & wait",
    "timeout 1000 sh helper",
    "set -m; sh helper & wait",
    // By then its parent is no process of the command.
    "(setsid sh helper &); sleep 1000",
    "setsid timeout 1000 sh helper & wait",
];

/// Starts a command whose helper leaves in that way. `first` is what the helper does first.
fn start(sandbox: &Sandbox, grace: &str, way_out: &str, first: &str) -> (Running, Pid) {
    let helper = format!("{first}\necho $$\nwhile :; do sleep 0.1; done\n");
    std::fs::write(sandbox.file("helper"), helper).unwrap();
    let mut job = sandbox.exec(&["--grace", grace], way_out);
    let helper = job.pid_line();
    (job, helper)
}

#[test]
fn it_is_ended_after_a_loss() {
    let sandbox = Sandbox::new();
    for way_out in WAYS_OUT {
        let (mut job, helper) = start(&sandbox, "60s", way_out, "");
        assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
        assert_eq!(job.code(), 76, "{way_out}");
        assert!(!lives(helper), "{way_out}");
    }
}

#[test]
fn it_is_killed_after_the_grace() {
    let sandbox = Sandbox::new();
    for way_out in WAYS_OUT {
        let (mut job, helper) = start(&sandbox, "500ms", way_out, "trap : TERM");
        assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
        assert_eq!(job.code(), 76, "{way_out}");
        assert!(!lives(helper), "{way_out}");
    }
}

#[test]
fn it_is_ended_by_what_ends_the_command() {
    let sandbox = Sandbox::new();
    for way_out in WAYS_OUT {
        let (mut job, helper) = start(&sandbox, "60s", way_out, "");
        job.signal(Signal::SIGTERM);
        assert_ne!(job.code(), 0, "{way_out}");
        until("the helper ends", || !lives(helper));
    }
}

#[test]
fn it_is_left_alone_when_the_command_ends_by_itself() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "setsid sleep 1000 > /dev/null 2>&1 & echo $!");
    let daemon = job.pid_line();
    assert_eq!(job.code(), 0);
    assert!(lives(daemon));
    assert_code(&sandbox.run(["exec", "--no-wait", "job", "--", "true"]), 0, "the next");
    assert!(lives(daemon));
    kill(daemon, Signal::SIGKILL).unwrap();
}

/// Also one that a real-time signal has ended; the command goes on under its lock.
#[test]
fn what_has_lost_its_parent_leaves_no_zombie() {
    let sandbox = Sandbox::new();
    let orphans = "(sh -c 'echo $$' &); (sh -c 'echo $$; kill -34 $$' &); (sh -c 'echo $$; kill -64 $$' &)";
    let mut job = sandbox.exec(&[], &format!("{orphans}; mkfifo pipe; read line < pipe; exit 3"));
    for orphan in [(); 3].map(|()| job.pid_line()) {
        until("nothing is left of it", || !std::path::Path::new(&format!("/proc/{orphan}")).exists());
    }
    until("the command listens", || sandbox.file("pipe").exists());
    assert_code(&sandbox.run(["exec", "--no-wait", "job", "--", "true"]), 75, "another");
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 3);
}

/// Starts `exec` of `script` where `/proc` is that of another namespace. `first` is a script there with distlock as its arguments.
fn start_unseen(sandbox: &Sandbox, first: &str, grace: &str, script: &str) -> Running {
    // The shell's messages about what a signal has ended would stand between the events.
    let script = &format!("exec 2> /dev/null; {script}");
    let distlock = sandbox.distlock(["exec", "--json", "--grace", grace, "job", "--", "sh", "-c", script]);
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--pid", "--fork", "--kill-child", "--", "sh", "-c", first]);
    command.arg(distlock.get_program()).args(distlock.get_args()).current_dir(sandbox.file(""));
    command.env_remove("DISTLOCK_URL").stdin(Stdio::null()).process_group(0);
    let mut job = Running::start(&mut command);
    // It makes a namespace of its own, for which util-linux has to be installed and user namespaces allowed, or a root user.
    assert_eq!(job.output_line(), "ready");
    job
}

#[test]
fn the_group_is_killed_after_the_grace_where_no_process_is_seen() {
    let sandbox = Sandbox::new();
    let helper = r#"trap "" TERM; echo $$ > helper; echo ready; exec > none; while :; do sleep 0.1; done"#;
    let first = r#""$0" "$@"; echo code $?; kill -0 $(cat helper) && echo it lives"#;
    let mut job = start_unseen(&sandbox, first, "1s", &format!("sh -c '{helper}' & wait"));
    sandbox.take_away();
    assert_eq!((job.output_line().as_str(), job.rest().as_str()), ("code 76", ""));
}

#[test]
fn a_second_signal_reaches_the_group_where_no_process_is_seen() {
    let sandbox = Sandbox::new();
    let helper = r#"trap "test ! -e told || exit; : > told" TERM; echo ready; while :; do sleep 0.1; done"#;
    let first =
        r#""$0" "$@" & until test -e go; do sleep 0.1; done; kill -TERM $!; wait $!; echo code $? > code"#;
    let job = start_unseen(&sandbox, first, "10m", &format!("sh -c '{helper}' & wait"));
    sandbox.take_away();
    assert_eq!(job.event("exited")["signal"], "SIGTERM");
    until("the helper knows", || sandbox.file("told").exists());
    std::fs::write(sandbox.file("go"), "").unwrap();
    until_file_has(&sandbox.file("code"), "code 76");
}

#[test]
fn what_may_be_left_is_unknown_where_no_process_is_seen() {
    let sandbox = Sandbox::new();
    let first = r#"sleep 1000 & exec "$0" "$@""#;
    let mut job = start_unseen(&sandbox, first, "1s", "echo ready; exec sleep 1000");
    sandbox.take_away();
    assert_eq!(job.event("survived")["pids"], serde_json::Value::Null);
    assert_eq!(job.code(), 76);
}

/// Makes each wait for a child fail in this process. Returns when it does; the thread ends with the process.
#[cfg(target_arch = "x86_64")]
fn let_waits_fail(pid: Pid) -> std::thread::JoinHandle<()> {
    use nix::libc::{ENOSYS, SYS_wait4};
    use nix::sys::ptrace::{Options, getregs, interrupt, seize, setregs, syscall};
    use nix::sys::wait::{WaitStatus, waitpid};

    let (sender, seized) = std::sync::mpsc::channel();
    let tracer = std::thread::spawn(move || {
        seize(pid, Options::PTRACE_O_TRACESYSGOOD).unwrap();
        interrupt(pid).unwrap();
        loop {
            let signal = match waitpid(pid, None).unwrap() {
                WaitStatus::PtraceSyscall(_) => {
                    let mut registers = getregs(pid).unwrap();
                    let begins = registers.rax.cast_signed() == -i64::from(ENOSYS);
                    if begins && registers.orig_rax.cast_signed() == SYS_wait4 {
                        // There is no such call, so it fails.
                        registers.orig_rax = u64::MAX;
                        setregs(pid, registers).unwrap();
                    }
                    None
                }
                WaitStatus::Stopped(_, signal) => Some(signal),
                WaitStatus::Exited(..) | WaitStatus::Signaled(..) => return,
                _ => None,
            };
            let _ = syscall(pid, signal);
            let _ = sender.send(());
        }
    });
    seized.recv().unwrap();
    tracer
}

#[test]
#[cfg(target_arch = "x86_64")]
fn nothing_runs_on_after_the_release_if_distlock_cannot_wait_for_it() {
    let sandbox = Sandbox::new();
    let script = "sh -c 'while :; do sleep 0.1; done' & echo $PPID; echo $!; (sh -c 'echo $$; exec sleep 1000' &); wait";
    let distlock = sandbox.distlock(["exec", "job", "--", "sh", "-c", script]);
    let mut shell = Command::new("sh");
    shell.args(["-c", r#""$0" "$@"; echo code $? > code"#]).arg(distlock.get_program());
    shell.args(distlock.get_args()).env_remove("DISTLOCK_URL").current_dir(sandbox.file(""));
    let mut job = Running::start(shell.process_group(0));
    let [distlock, helper, orphan] = [(); 3].map(|()| job.pid_line());
    let tracer = let_waits_fail(distlock);
    // Then distlock waits.
    kill(orphan, Signal::SIGKILL).unwrap();
    until_file_has(&sandbox.file("code"), "code 70");
    assert!(!lives(helper));
    tracer.join().unwrap();
}
