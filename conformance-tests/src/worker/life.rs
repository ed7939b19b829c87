//! What a worker lives in, and how that is ended.

use std::io::{self, Write};
use std::process::{Child, ChildStdin};

#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitOptions};
use tokio::sync::mpsc::UnboundedSender;

use super::protocol::Command;

/// A process or a thread.
#[derive(Debug)]
pub(super) enum Life {
    Process { child: Child, input: ChildStdin },
    Thread { commands: UnboundedSender<Command> },
}

impl Life {
    pub(super) fn tell(&mut self, command: &Command) -> io::Result<()> {
        match self {
            Self::Process { input, .. } => {
                let mut line = serde_json::to_vec(command)?;
                line.push(b'\n');
                input.write_all(&line)?;
                input.flush()
            }
            Self::Thread { commands } => {
                // Through the same encoding, so that both kinds of worker are told the same.
                let command = serde_json::from_slice(&serde_json::to_vec(command)?)?;
                commands
                    .send(command)
                    .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the thread has ended"))
            }
        }
    }

    pub(super) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process { child, .. } => Some(child.id()),
            Self::Thread { .. } => None,
        }
    }

    pub(super) fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Process { child, .. } => {
                child.kill()?;
                child.wait().map(drop)
            }
            Self::Thread { .. } => Err(not_a_process()),
        }
    }

    #[cfg(unix)]
    pub(super) fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)?;
        self.wait_until_stopped()
    }

    #[cfg(unix)]
    pub(super) fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    #[cfg(not(unix))]
    pub(super) fn stop(&self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "processes cannot be stopped here"))
    }

    #[cfg(not(unix))]
    pub(super) fn resume(&self) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "processes cannot be stopped here"))
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(rustix::process::kill_process(self.process()?, signal)?)
    }

    /// The signal is sent at once and takes its time.
    #[cfg(unix)]
    fn wait_until_stopped(&self) -> io::Result<()> {
        match rustix::process::waitpid(Some(self.process()?), WaitOptions::UNTRACED)? {
            Some((_, status)) if status.stopped() => Ok(()),
            _ => Err(io::Error::other("the process has ended instead of stopping")),
        }
    }

    #[cfg(unix)]
    fn process(&self) -> io::Result<Pid> {
        match self {
            Self::Process { child, .. } => Ok(Pid::from_child(child)),
            Self::Thread { .. } => Err(not_a_process()),
        }
    }
}

fn not_a_process() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the worker is a thread, not a process")
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Self::Process { child, .. } = self {
            // It may have ended by itself; then there is nothing to kill and no one to tell.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
