//! The program that runs under the lock, in a process group of its own, with all that it starts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{self, SigSet, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::signal::unix::{self, SignalKind};

use crate::descendants::{self, Process};
use crate::terminal::is_gone;
use crate::witness::Witness;

/// How often is looked for what the child has started.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

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

/// A running child, leader of its process group, and all that it starts.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    changes: unix::Signal,
    /// Stands in the child's group while that has the terminal.
    witness: Option<Witness>,
    /// Children of ours from before.
    others: Vec<Process>,
    /// It has ended, and its number may be another's.
    has_ended: bool,
    /// What was stopped with the child, and is to be continued with it.
    stopped: Vec<Process>,
}

/// What came of a signal.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Those that have got it, as far as that can be seen.
    pub(crate) reached: Vec<Pid>,
    /// Those that belong to another user.
    pub(crate) refused: Vec<Pid>,
}

impl Child {
    /// Starts `command`, which [`system::prepare`](crate::system::prepare) has prepared, with the witness that it has been given
    /// there. `others` are the children that this process had before.
    pub(crate) fn spawn(
        command: &mut Command,
        witness: Option<Witness>,
        others: Vec<Process>,
    ) -> io::Result<Self> {
        // Listening first, so that no change is missed; whoever has started us may have blocked the signal.
        let changes = unix::signal(SignalKind::child())?;
        SigSet::from(Signal::SIGCHLD).thread_unblock()?;
        descendants::adopt();
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        Ok(Self { pid: Pid::from_raw(pid), changes, witness, others, has_ended: false, stopped: Vec::new() })
    }

    /// The number of the child and of its process group, which others may have once the child has ended.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the child ends or stops. Not to be called again once it has ended.
    ///
    /// # Cancel safety
    /// A change is either answered or left for the next call.
    pub(crate) async fn change(&mut self) -> io::Result<Change> {
        loop {
            // All of them, because those who lose their parents become ours, and nobody else takes note of their end.
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED)) {
                Ok(WaitStatus::StillAlive) => {
                    self.changes.recv().await;
                }
                Ok(status) if status.pid() == Some(self.pid) => {
                    if let Some(change) = change_of(status) {
                        self.has_ended = !matches!(change, Change::Stopped(_));
                        return Ok(change);
                    }
                }
                Ok(status) => self.note(status),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn note(&mut self, status: WaitStatus) {
        if let Some(witness) = &mut self.witness {
            witness.note(status);
        }
    }

    /// Notices from now on when the child's whole group is interrupted, as by a key on the terminal.
    pub(crate) fn watch_for_interrupts(&mut self) {
        if self.witness.is_none() {
            // Without one, every interrupt that ends the child is taken for a key.
            self.witness = Witness::start().ok();
            if let Some(witness) = &self.witness {
                witness.line().send_into(self.pid);
            }
        }
    }

    /// Whether the child's whole group may have been interrupted. Nothing is noticed from then on.
    pub(crate) fn may_have_been_interrupted_with_its_group(&mut self) -> bool {
        self.witness.take().is_none_or(|witness| witness.may_have_been_interrupted(self.pid))
    }

    /// Sends a signal to the child alone.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.has_ended {
            // It may belong to another user by now, as `sudo` does, which leaves nothing to do.
            let _ = signal::kill(self.pid, signal);
        }
    }

    /// Sends a signal to the child's whole process group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.has_its_group() {
            let _ = signal::killpg(self.pid, signal);
        }
    }

    /// Sends a signal to the child's process group, and to all that the child has started and that has left the group.
    pub(crate) fn signal_all(&self, signal: Signal) -> Sent {
        // The group first: that is one call, and nobody can slip away meanwhile.
        let group = self.has_its_group().then(|| signal::killpg(self.pid, signal));
        let mut sent = Sent::default();
        for process in self.descendants() {
            let has_it = group.is_some() && process.group == self.pid;
            match if has_it { process.probe() } else { process.signal(signal) } {
                Ok(()) => sent.reached.push(process.pid),
                Err(Errno::EPERM) => sent.refused.push(process.pid),
                Err(_) => {}
            }
        }
        if group == Some(Err(Errno::EPERM)) && sent.refused.is_empty() {
            sent.refused.push(self.pid);
        }
        sent
    }

    /// The child has stopped: stops what it has started and what runs on, until [`Self::continue_rest`].
    ///
    /// Its process group is being stopped already, and its programs may have something to do first, as to put the terminal in
    /// order; those that do not stop soon are stopped as well.
    pub(crate) fn stop_rest(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let begun = Instant::now();
        loop {
            let may_stop_by_itself = begun.elapsed() < PATIENCE;
            let mut is_complete = true;
            for process in self.descendants() {
                if process.is_stopped || self.stopped.iter().any(|stopped| stopped.is(&process)) {
                    continue;
                }
                // It may have started another just before.
                is_complete = false;
                if process.group != self.pid || !may_stop_by_itself {
                    let _ = process.signal(Signal::SIGSTOP);
                    self.stopped.push(process);
                }
            }
            if is_complete || begun.elapsed() > 2 * PATIENCE {
                return;
            }
            thread::sleep(INTERVAL);
        }
    }

    /// Continues what [`Self::stop_rest`] has stopped.
    pub(crate) fn continue_rest(&mut self) {
        for process in self.stopped.drain(..) {
            let _ = process.signal(Signal::SIGCONT);
        }
    }

    /// Whether the group with the child's number is the child's: once the child has ended, it may be of another program.
    fn has_its_group(&self) -> bool {
        let is_in_it = |process: &Process| process.group == self.pid;
        !self.has_ended || !ADOPTS || self.descendants().iter().any(is_in_it)
    }

    fn descendants(&self) -> Vec<Process> {
        let witness = self.witness.as_ref().and_then(Witness::pid);
        let is_other = |process: &Process| {
            Some(process.pid) == witness || self.others.iter().any(|other| other.is(process))
        };
        descendants::all(is_other)
    }

    /// After the end of the child: whether anything is left that it has started.
    pub(crate) fn has_left_something(&self) -> bool {
        if !ADOPTS {
            return !is_gone(self.pid);
        }
        has_children() && (self.others.is_empty() || !self.descendants().is_empty())
    }
}

/// Whether the child's descendants can be told: whoever loses its parent becomes ours.
const ADOPTS: bool = cfg!(target_os = "linux");

/// The children that this process has already: `helper & exec distlock exec …`.
pub(crate) fn all() -> Vec<Process> {
    if has_children() { descendants::children() } else { Vec::new() }
}

/// Whether this process has children that have not ended; takes note of those that have.
fn has_children() -> bool {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

fn change_of(status: WaitStatus) -> Option<Change> {
    match status {
        WaitStatus::Exited(_, code) => Some(Change::Exited(low_byte(code))),
        WaitStatus::Signaled(_, signal, _) => Some(Change::Killed(signal)),
        WaitStatus::Stopped(_, signal) => Some(Change::Stopped(signal)),
        _ => None,
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
