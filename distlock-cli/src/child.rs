//! The program that runs under the lock, in a process group of its own.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, sleep};

use crate::terminal::is_gone;

/// What has become of the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// It ended with a code.
    Exited(u8),
    /// A signal ended it.
    Killed(Signal),
    /// A signal stopped it.
    Stopped(Signal),
}

/// A running child, leader of its process group.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    changes: unix::Signal,
}

impl Child {
    /// Starts `command`, which [`system::prepare`](crate::system::prepare) has prepared.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        // Listening first, so that no change is missed.
        let changes = unix::signal(SignalKind::child())?;
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self { pid: Pid::from_raw(pid), changes })
    }

    /// The number of the child and of its process group.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the child ends or stops. Not to be called again once it has ended.
    ///
    /// # Cancel safety
    /// A change is either answered or left for the next call.
    pub(crate) async fn change(&mut self) -> io::Result<Change> {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::Exited(_, code)) => return Ok(Change::Exited(low_byte(code))),
                Ok(WaitStatus::Signaled(_, signal, _)) => return Ok(Change::Killed(signal)),
                Ok(WaitStatus::Stopped(_, signal)) => return Ok(Change::Stopped(signal)),
                Ok(_) => {
                    self.changes.recv().await;
                }
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a signal to the child alone.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended already, or belong to another user by now, as `sudo` does; neither leaves anything to do.
        let _ = signal::kill(self.pid, signal);
    }

    /// Sends a signal to the child's whole process group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        let _ = signal::killpg(self.pid, signal);
    }

    /// Waits until nobody is left in the process group, and kills who is left at `deadline`.
    ///
    /// No system tells when a process group has emptied, so this looks again and again; only after a loss.
    pub(crate) async fn end_group(&self, deadline: Instant) {
        const INTERVAL: Duration = Duration::from_millis(20);
        while !is_gone(self.pid) {
            if Instant::now() >= deadline {
                return self.signal_group(Signal::SIGKILL);
            }
            sleep(INTERVAL).await;
        }
    }
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

/// A copy of `descriptor` that a child inherits, away from the small numbers that shell scripts use themselves.
pub(crate) fn inheritable(descriptor: impl AsFd) -> io::Result<OwnedFd> {
    const LOWEST_NUMBER: i32 = 10;
    let copy = rustix::io::fcntl_dupfd_cloexec(descriptor, LOWEST_NUMBER)?;
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
    Ok(copy)
}
