//! The process or thread that a worker runs in, and how it is ended.

use std::io::{self, Write};
use std::process::{Child, ChildStdin};

use tokio::sync::mpsc::UnboundedSender;

use super::protocol::Command;

/// A process or a thread.
#[derive(Debug)]
pub(super) enum Host {
    Process { child: Child, input: ChildStdin },
    Thread { commands: UnboundedSender<Command> },
}

impl Host {
    pub(super) fn tell(&mut self, command: &Command) -> io::Result<()> {
        match self {
            Self::Process { input, .. } => {
                let mut line = serde_json::to_vec(command)?;
                line.push(b'\n');
                input.write_all(&line)?;
                input.flush()
            }
            Self::Thread { commands } => {
                // Uses the same encoding as for processes, so that both kinds of worker get the same commands.
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
        crate::signals::stop(self.process()?)
    }

    #[cfg(unix)]
    pub(super) fn resume(&self) -> io::Result<()> {
        crate::signals::resume(self.process()?)
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
    fn process(&self) -> io::Result<&Child> {
        match self {
            Self::Process { child, .. } => Ok(child),
            Self::Thread { .. } => Err(not_a_process()),
        }
    }
}

fn not_a_process() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the worker is a thread, not a process")
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Self::Process { child, .. } = self {
            // It may already have ended; then there is nothing to kill, and a destructor cannot report an error.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
