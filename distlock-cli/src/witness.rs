//! Distinguishes a Ctrl-C from a command that interrupts itself.
//!
//! A key pressed on the terminal reaches the command's whole process group, and only that group. How the command ends does not
//! show whether it was a key. So distlock puts a process of its own, the witness, into the group. A SIGINT that ends the witness
//! was meant for the whole group. If something else ended the witness, or it never joined the group, every interrupt that ends the
//! command counts as a key, as without a witness.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::{self, Pid};
use rustix::io::retry_on_intr;
use rustix::net::{SendFlags, send};
use rustix::process::{WaitOptions, WaitStatus, waitpid};

/// The witness's process name, by which the program recognises its role.
pub(crate) const NAME: &str = "distlock-witness";

/// How long a witness may take to join a group.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process that joins a group to see its interrupts.
#[derive(Debug)]
pub(crate) struct Witness {
    pid: Pid,
    line: WitnessConnection,
    end: Option<WaitStatus>,
}

/// The connection to the witness. When its last end on our side is closed, for whatever reason, the witness ends.
#[derive(Debug, Clone)]
pub(crate) struct WitnessConnection(Arc<OwnedFd>);

impl WitnessConnection {
    fn new(ours: UnixStream) -> io::Result<Self> {
        ours.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(Arc::new(ours.into())))
    }

    /// Tells the witness to join `group`, and returns when it is there, or after a while: a command must not wait for ever for
    /// a witness that is stopped. It may join later.
    ///
    /// Async-signal-safe: this calls only `send` and `read`, and allocates nothing.
    pub(crate) fn send_into(&self, group: Pid) {
        // If the witness has ended by now, a later check finds out how.
        if send(&*self.0, &group.as_raw().to_ne_bytes(), SendFlags::NOSIGNAL).is_ok() {
            let mut answer = [0];
            while rustix::io::read(&*self.0, &mut answer) == Err(rustix::io::Errno::INTR) {}
        }
    }
}

impl Witness {
    /// Starts a witness in a group of its own, where no key reaches it until it is sent into another group.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_as(Command::new(ourselves()?))
    }

    fn start_as(mut program: Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let line = WitnessConnection::new(ours)?;
        let child = program
            .arg0(NAME)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = Pid::from_raw(i32::try_from(child.id()).map_err(io::Error::other)?);
        Ok(Self { pid, line, end: None })
    }

    /// The connection to the witness.
    pub(crate) fn line(&self) -> &WitnessConnection {
        &self.line
    }

    /// The process id, until the witness has ended and another process may have the id.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.end.is_none().then_some(self.pid)
    }

    /// Records how a process ended, if it is the witness.
    pub(crate) fn note(&mut self, (pid, status): (rustix::process::Pid, WaitStatus)) {
        if !status.stopped() && pid.as_raw_pid() == self.pid.as_raw() {
            self.end = Some(status);
        }
    }

    /// Ends the witness, and returns whether `group` may have been interrupted as a whole: not if the witness was in it until
    /// now.
    pub(crate) fn may_have_been_interrupted(mut self, group: Pid) -> bool {
        self.look(WaitOptions::NOHANG);
        let stood_there = self.end.is_none() && unistd::getpgid(Some(self.pid)) == Ok(group);
        if self.end.is_none() {
            // Whichever signal arrived first ended it.
            let _ = signal::kill(self.pid, Signal::SIGKILL);
            self.look(WaitOptions::empty());
        }
        let ended_by = self.end.and_then(WaitStatus::terminating_signal);
        !(stood_there && ended_by == Some(Signal::SIGKILL as i32))
    }

    fn look(&mut self, options: WaitOptions) {
        let pid = rustix::process::Pid::from_raw(self.pid.as_raw());
        if let Ok(Some(ended)) = retry_on_intr(|| waitpid(pid, options)) {
            self.note(ended);
        }
    }
}

/// This very program, even if its file has been replaced.
fn ourselves() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Whether this process was started as a witness.
pub(crate) fn are_we() -> bool {
    std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Joins the groups it is sent into, and otherwise does nothing until its parent is gone or an interrupt arrives.
pub(crate) fn stand() {
    let mut all_others = SigSet::all();
    all_others.remove(Signal::SIGINT);
    // How this process ends shows whether anything fails here.
    let _ = all_others.thread_set_mask();
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn one_that_goes_nowhere_keeps_nothing_waiting_and_tells_nothing() {
        let mut deaf = Command::new("sh");
        deaf.args(["-c", "exec sleep 1000"]);
        let witness = Witness::start_as(deaf).unwrap();
        assert_eq!(unistd::getpgid(witness.pid()), Ok(witness.pid));
        let (line, (sender, receiver)) = (witness.line().clone(), channel());
        thread::spawn(move || {
            line.send_into(unistd::getpgrp());
            sender.send(()).unwrap();
        });
        receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(witness.may_have_been_interrupted(unistd::getpgrp()));
    }
}
