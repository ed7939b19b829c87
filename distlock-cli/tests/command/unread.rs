//! Output that is not read: a full pipe, a paused terminal.

use std::fs::File;
use std::io::{ErrorKind, Write, pipe};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;

use crate::support::{Running, Sandbox, assert_code, lives, until};
use crate::terminal::Screen;

/// The grace of [`exec`], and how much later SIGKILL may arrive on a machine that stalls for seconds.
const GRACE: Duration = Duration::from_secs(1);
const ON_ANY_MACHINE: Duration = Duration::from_secs(8);

const HOW_MUCH: [&[&str]; 5] = [&[], &["-q"], &["-v"], &["-vv"], &["--json"]];

/// A full pipe, with a reader that does not read.
struct Unread {
    _reader: OwnedFd,
    writer: File,
}

impl Unread {
    fn new() -> Self {
        let (reader, writer) = pipe().unwrap();
        let mut writer = File::from(OwnedFd::from(writer));
        fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        // Byte by byte at the end, so that not even one more fits.
        for length in [4096, 1] {
            let mut filled = 0;
            let full = loop {
                match writer.write(&[b'x'; 4096][..length]) {
                    Ok(written) => filled += written,
                    Err(error) => break error,
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock, "after {filled} bytes");
        }
        fcntl(writer.as_fd(), FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        Self { _reader: reader.into(), writer }
    }

    fn stdio(&self) -> Stdio {
        self.writer.try_clone().unwrap().into()
    }
}

fn exec<'a>(sandbox: &Sandbox, options: &[&'a str], command: &[&'a str]) -> Command {
    sandbox.distlock([["exec"].as_slice(), options, &["--grace", "1s", "job", "--"], command].concat())
}

#[test]
fn a_command_starts_and_ends() {
    let (sandbox, unread) = (Sandbox::new(), Unread::new());
    for options in HOW_MUCH {
        let mut job =
            Running::start_as_it_is(exec(&sandbox, options, &["echo", "ran"]).stderr(unread.stdio()));
        assert_eq!(job.output_line(), "ran", "{options:?}");
        assert_eq!(job.code(), 0, "{options:?}");
    }
}

#[test]
fn a_lost_command_is_ended() {
    let (sandbox, unread) = (Sandbox::new(), Unread::new());
    for options in HOW_MUCH {
        let script = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
        let command = &mut exec(&sandbox, options, &["sh", "-c", script]);
        let mut job = Running::start_as_it_is(command.stderr(unread.stdio()));
        let child = job.pid_line();
        let begun = Instant::now();
        assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
        until("the command ends", || !lives(child));
        let killed_after = begun.elapsed();
        assert!((GRACE..GRACE + ON_ANY_MACHINE).contains(&killed_after), "{options:?}: {killed_after:?}");
        assert_eq!(job.code(), 76, "{options:?}");
    }
}

#[test]
fn a_wait_ends_at_a_signal_and_when_its_time_is_over() {
    let (sandbox, unread) = (Sandbox::new(), Unread::new());
    let _holder = sandbox.hold("job");
    for options in HOW_MUCH {
        let mut waiter = Running::start_as_it_is(exec(&sandbox, options, &["true"]).stderr(unread.stdio()));
        sandbox.until_waiting("job", 1);
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.code(), 143, "{options:?}");
        let options = [options, &["--wait", "400ms"]].concat();
        let mut waiter = Running::start_as_it_is(exec(&sandbox, &options, &["true"]).stderr(unread.stdio()));
        assert_eq!(waiter.code(), 75, "{options:?}");
    }
}

#[test]
fn a_hold_ends() {
    let (sandbox, unread) = (Sandbox::new(), Unread::new());
    let mut command = sandbox.distlock(["hold", "--json", "job"]);
    let mut holder = command.stdin(Stdio::piped()).stdout(unread.stdio()).spawn().unwrap();
    sandbox.until_status("it is held", "job", |status| status["held"] == true);
    drop(holder.stdin.take());
    until("it lets go", || holder.try_wait().unwrap().is_some_and(|status| status.success()));
}

#[test]
fn a_lost_command_is_ended_on_a_terminal_whose_output_is_held() {
    const CTRL_S: &str = "\x13";
    const CTRL_Q: &str = "\x11";
    let sandbox = Sandbox::new();
    let mut screen = Screen::open(&sandbox);
    screen.enter(r#"$D exec -v job -- sh -c 'echo start""ed $$; exec sleep 1000'"#);
    let child = screen.number_after("started ");
    screen.press(CTRL_S);
    assert_code(&sandbox.run(["break", "--yes", "job"]), 0, "break");
    until("the command ends", || !lives(child));
    screen.press(CTRL_Q);
    screen.expect_prompt_after(76);
}
