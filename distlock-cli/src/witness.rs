//! Tells a Ctrl-C from a command that interrupts itself.
//!
//! A key that is pressed on the terminal reaches the command's whole process group, and only that. From how the command ends
//! it cannot be seen whether it was a key. So a process of ours stands in the group and does nothing: what ends it by SIGINT
//! was meant for all.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{self, Pid};
use rustix::net::{SendFlags, send};

/// What the process is called, by which it knows what it is.
pub(crate) const NAME: &str = "distlock-witness";

/// A process that stands in a group.
#[derive(Debug)]
pub(crate) struct Witness {
    pid: Pid,
    line: Line,
    end: Option<WaitStatus>,
}

/// The line to the witness. When the last end of it is closed on our side, however that comes about, the witness ends.
#[derive(Debug, Clone)]
pub(crate) struct Line(Arc<OwnedFd>);

impl Line {
    /// Has the witness go into `group`, and returns when it is there.
    ///
    /// Async-signal-safe: nothing is called but `send` and `read`, and nothing allocated.
    pub(crate) fn send_into(&self, group: Pid) {
        // A witness that has ended by now is asked later how.
        if send(&*self.0, &group.as_raw().to_ne_bytes(), SendFlags::NOSIGNAL).is_ok() {
            let mut answer = [0];
            while rustix::io::read(&*self.0, &mut answer) == Err(rustix::io::Errno::INTR) {}
        }
    }
}

impl Witness {
    /// Starts one, which is in our own group until it is sent into another.
    pub(crate) fn start() -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = Command::new(ourselves()?)
            .arg0(NAME)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        Ok(Self { pid, line: Line(Arc::new(ours.into())), end: None })
    }

    /// The line to it.
    pub(crate) fn line(&self) -> &Line {
        &self.line
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Notes how a process ended, if it is this one.
    pub(crate) fn note(&mut self, status: WaitStatus) {
        let has_ended = matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
        if has_ended && status.pid() == Some(self.pid) {
            self.end = Some(status);
        }
    }

    /// Ends it, and answers whether an interrupt had done so before.
    pub(crate) fn was_interrupted(mut self) -> bool {
        while self.end.is_none() {
            // The end that came first counts.
            let _ = signal::kill(self.pid, Signal::SIGKILL);
            match waitpid(self.pid, None) {
                Ok(status) => self.note(status),
                Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        matches!(self.end, Some(WaitStatus::Signaled(_, Signal::SIGINT, _)))
    }
}

/// This very program, even when its file has been replaced since.
fn ourselves() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Whether this process is to be a witness.
pub(crate) fn are_we() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Goes where it is sent, and does nothing until the one who has started us is gone.
pub(crate) fn stand() {
    let read = |bytes: &mut [u8]| loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut *bytes) {
            Err(rustix::io::Errno::INTR) => {}
            read => return read.unwrap_or(0),
        }
    };
    let mut group = [0; size_of::<i32>()];
    if read(&mut group) == group.len()
        && unistd::setpgid(Pid::from_raw(0), Pid::from_raw(i32::from_ne_bytes(group))).is_ok()
        && send(rustix::stdio::stdin(), &[0], SendFlags::NOSIGNAL).is_ok()
    {
        read(&mut group);
    }
}
