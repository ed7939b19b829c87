//! Signals without a terminal.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::support::{
    Running, Sandbox, bare, code_of, is_stopped, lives, until, until_file_has, write_program,
};

#[test]
fn signals_reach_the_command() {
    let sandbox = Sandbox::new();
    for (signal, name) in [
        (Signal::SIGTERM, "TERM"),
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGINT, "INT"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
    ] {
        let mut job = sandbox.exec(
            &[],
            &format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.1; done"),
        );
        assert_eq!(job.output_line(), "ready");
        job.signal(signal);
        assert_eq!(job.output_line(), format!("got {name}"));
        assert_eq!(job.code(), 5, "{name}");
    }
}

#[test]
fn the_lock_is_released_when_the_command_has_ended_and_not_before() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "trap 'echo stopping; read line < pipe; exit 0' TERM; mkfifo pipe; echo ready; while :; do sleep 0.1; done");
    assert_eq!(job.output_line(), "ready");
    job.signal(Signal::SIGTERM);
    assert_eq!(job.output_line(), "stopping");
    // The command takes its time to stop; no other command gets the lock meanwhile.
    assert_eq!(sandbox.run(["exec", "--no-wait", "job", "--", "true"]).status.code(), Some(75));
    assert!(job.runs());
    std::fs::write(sandbox.file("pipe"), "go\n").unwrap();
    assert_eq!(job.code(), 0);
    assert_eq!(sandbox.status("job")["held"], false);
}

#[test]
fn what_ends_the_command_ends_its_helpers_too() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "sleep 1000 & echo $!; wait");
    let helper = job.pid_line();
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code(), 143);
    until("the helper ends", || !lives(helper));
}

#[test]
#[cfg(target_os = "linux")]
fn a_command_that_dies_by_a_real_time_signal_ends_with_128_and_its_number() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "kill -34 $$");
    assert_eq!(job.event("exited")["signal"], "signal 34");
    job.event("released");
    assert_eq!(job.code(), 162);
}

#[test]
fn a_signal_while_waiting_ends_the_wait_and_leaves_the_queue() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("job");
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
        (Signal::SIGQUIT, 131),
        (Signal::SIGUSR1, 138),
        (Signal::SIGUSR2, 140),
    ] {
        for subcommand in [["exec", "job", "touch", "ran"].as_slice(), &["hold", "job"]] {
            let mut waiter = Running::start(&mut sandbox.distlock(subcommand.iter().copied()));
            sandbox.until_waiting("job", 1);
            waiter.signal(signal);
            assert_eq!(waiter.code(), code, "{signal}");
            assert_eq!(sandbox.status("job")["waiters"].as_array().unwrap().len(), 0);
        }
    }
    holder.close_input();
    assert_eq!(holder.code(), 0);
    assert!(!sandbox.file("ran").exists());
}

#[test]
fn what_was_ignored_stays_ignored() {
    // As `nohup` does.
    let sandbox = Sandbox::new();
    let distlock = env!("CARGO_BIN_EXE_distlock");
    let script = format!(
        "trap '' HUP; exec {distlock} --url '{}' exec job -- sh -c 'echo $$; exec sleep 1000'",
        sandbox.url()
    );
    let mut job = Running::start(bare_shell(&script).current_dir(sandbox.file("")));
    let child = job.pid_line();
    job.signal(Signal::SIGHUP);
    nix::sys::signal::kill(child, Signal::SIGHUP).unwrap();
    // SIGTERM comes after SIGHUP, so SIGHUP has been delivered by then.
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code(), 143);
}

#[test]
fn a_mask_that_blocks_sigchld_keeps_nothing_from_ending_and_is_passed_on() {
    let sandbox = Sandbox::new();
    let mut command = std::process::Command::new("env");
    command.args(["--block-signal=CHLD,WINCH", env!("CARGO_BIN_EXE_distlock"), "--url", &sandbox.url()]);
    command.args(["exec", "job", "--", "grep", "SigBlk", "/proc/self/status"]);
    let mut job = Running::start(&mut command);
    let blocked = job.output_line();
    assert_eq!(job.code(), 0);
    let bit = |signal: Signal| 1_u64 << (signal as i32 - 1);
    let expected = bit(Signal::SIGCHLD) | bit(Signal::SIGWINCH);
    assert_eq!(blocked.split_whitespace().last().map(|hex| u64::from_str_radix(hex, 16)), Some(Ok(expected)));
}

#[test]
fn the_command_gets_the_default_action_of_every_signal_and_no_mask() {
    let sandbox = Sandbox::new();
    let mut command =
        sandbox.distlock(["exec", "job", "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    // Above them are those that the C library uses itself.
    let ordinary = (1_u64 << Signal::SIGSYS as i32) - 1;
    let set = |line: &str| u64::from_str_radix(line.split_whitespace().last()?, 16).ok();
    let sets: Vec<_> = text.lines().map(|line| set(line).map(|set| set & ordinary)).collect();
    assert_eq!(sets, [Some(0), Some(0)], "{text}");
}

#[test]
fn a_script_without_a_first_line_gets_many_arguments() {
    let sandbox = Sandbox::new();
    let script = sandbox.file("script");
    write_program(&script, "echo $# $DISTLOCK_NAME");
    let mut command = sandbox.distlock(["exec", "job", "--", script.to_str().unwrap()]);
    command.args((0..100_000).map(|number| number.to_string()));
    let output = command.output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "100000 job\n");
}

#[test]
fn stopping_and_continuing_reach_the_command() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    job.signal(Signal::SIGTSTP);
    until("the command stops", || is_stopped(child));
    assert!(!is_stopped(job.pid()));
    job.signal(Signal::SIGCONT);
    until("it goes on", || !is_stopped(child));
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code(), 143);
}

#[test]
fn a_stopped_command_keeps_the_lock_and_distlock_awake() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "echo $$; exec sleep 1000");
    let child = job.pid_line();
    nix::sys::signal::kill(child, Signal::SIGSTOP).unwrap();
    until("the command stops", || is_stopped(child));
    assert_eq!(sandbox.status("job")["held"], true);
    assert!(!is_stopped(job.pid()));
    nix::sys::signal::kill(child, Signal::SIGCONT).unwrap();
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code(), 143);
}

#[test]
fn the_command_has_a_group_of_its_own_and_what_it_needs_in_its_environment() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "ps -o pgid= -p $$ 2>/dev/null || cut -d' ' -f5 /proc/$$/stat; echo $$; echo \"$DISTLOCK_NAME\"; echo $DISTLOCK_TOKEN");
    let group: i32 = job.output_line().trim().parse().unwrap();
    let child = job.pid_line();
    assert_eq!(Pid::from_raw(group), child);
    assert_eq!(job.output_line(), "job");
    let token = job.output_line();
    assert_eq!(job.event("acquired")["token"], token.as_str());
    assert!(token.parse::<u64>().is_ok());
    assert_eq!(job.code(), 0);
}

#[test]
fn output_and_input_are_the_commands_own() {
    let sandbox = Sandbox::new();
    let input = sandbox.file("input");
    std::fs::write(&input, "one\ntwo\n").unwrap();
    let output = sandbox
        .distlock(["exec", "job", "--", "sh", "-c", "cat; echo oops >&2"])
        .stdin(std::fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert_eq!(code_of(output.status), 0);
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (b"one\ntwo\n".as_slice(), b"oops\n".as_slice())
    );
    until_file_has(&input, "two");
}

fn bare_shell(script: &str) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).env_remove("DISTLOCK_URL").stdin(std::process::Stdio::null());
    let _ = bare;
    command
}

/// However close the two signals are, the command goes on, and distlock is not stopped with its lock.
#[test]
fn a_stop_that_is_taken_back_at_once_stops_nothing_for_long() {
    let sandbox = Sandbox::new();
    let mut job = sandbox.exec(&[], "echo $$; while :; do sleep 0.1; done");
    let child = job.pid_line();
    for round in 0..40_u64 {
        job.signal(Signal::SIGTSTP);
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_micros(round % 20 * 100) {
            std::hint::spin_loop();
        }
        job.signal(Signal::SIGCONT);
        assert!(!is_stopped(job.pid()));
        until("the command goes on", || !is_stopped(child));
    }
    job.signal(Signal::SIGTERM);
    assert_eq!(job.code(), 143);
}
