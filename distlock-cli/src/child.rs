//! The program that runs under the lock, in a process group of its own, and all its descendants.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{self, SigSet, Signal};
use nix::unistd::Pid;
use rustix::io::{Errno as WaitError, retry_on_intr};
use rustix::process::{WaitOptions, WaitStatus, wait, waitpgid};
use tokio::signal::unix::{self, SignalKind};

use crate::descendants::{self, Process};
use crate::system::{self, SetUp};
use crate::terminal::is_gone;
use crate::witness::Witness;

/// How often to look for processes that the child has started.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);

/// A change in the state of the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The child exited with a code.
    Exited(u8),
    /// The signal with this number ended it, which need not have a name: there are real-time signals.
    Killed(i32),
    /// A signal stopped it.
    Stopped(Signal),
}

/// A running child, which leads its process group, and all its descendants.
#[derive(Debug)]
pub(crate) struct Child {
    pid: Pid,
    changes: unix::Signal,
    /// A member of the child's group while that group has the terminal.
    witness: Option<Witness>,
    /// The children that this process had before.
    others: Vec<Process>,
    /// The child has ended, and another process may have its id now.
    has_ended: bool,
    /// The processes that were stopped with the child and must be continued with it.
    stopped: Vec<Process>,
}

/// The result of sending a signal.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// The processes that received it, as far as that is known.
    pub(crate) reached: Vec<Pid>,
    /// The processes that belong to another user.
    pub(crate) refused: Vec<Pid>,
    /// The child's group received it, also if the system shows none of it.
    pub(crate) has_reached_group: bool,
}

impl Child {
    /// Starts `command`; `set_up` has this witness. `others` are the children that this process had before.
    pub(crate) fn spawn(
        command: &mut Command,
        set_up: SetUp,
        witness: Option<Witness>,
        others: Vec<Process>,
    ) -> io::Result<Self> {
        // Listen first, so that no change is missed; the parent of this process may have blocked the signal.
        let changes = unix::signal(SignalKind::child())?;
        SigSet::from(Signal::SIGCHLD).thread_unblock()?;
        descendants::adopt();
        let pid = system::start(command, set_up)?;
        Ok(Self { pid, changes, witness, others, has_ended: false, stopped: Vec::new() })
    }

    /// The id of the child and of its process group. Another process may get it once the child has ended.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits until the child ends or stops. Must not be called again after it has ended.
    ///
    /// # Cancel safety
    /// A change is either returned or left for the next call.
    pub(crate) async fn change(&mut self) -> io::Result<Change> {
        loop {
            // Waits for all children: orphaned descendants become children of this process, and no other process reaps them.
            match retry_on_intr(|| wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)) {
                Ok(None) => {
                    self.changes.recv().await;
                }
                Ok(Some((pid, status))) if pid.as_raw_pid() == self.pid.as_raw() => {
                    if let Some(change) = change_of(status) {
                        self.has_ended = !matches!(change, Change::Stopped(_));
                        return Ok(change);
                    }
                }
                Ok(Some(ended)) => self.witness.iter_mut().for_each(|witness| witness.note(ended)),
                Err(error) => {
                    self.has_ended = error == WaitError::CHILD;
                    return Err(error.into());
                }
            }
        }
    }

    /// Notices from now on an interrupt of the child's whole group, as by a key on the terminal.
    pub(crate) fn watch_for_interrupts(&mut self) {
        if self.witness.is_none() {
            // Without a witness, every interrupt that ends the child counts as a key.
            self.witness = Witness::start().ok();
            if let Some(witness) = &self.witness {
                witness.line().send_into(self.pid);
            }
        }
    }

    /// Whether the child's whole group may have been interrupted. Stops noticing.
    pub(crate) fn may_have_been_interrupted_with_its_group(&mut self) -> bool {
        self.witness.take().is_none_or(|witness| witness.may_have_been_interrupted(self.pid))
    }

    /// Sends a signal only to the child.
    pub(crate) fn signal(&self, signal: Signal) {
        if !self.has_ended {
            // The child may belong to another user by now, as with `sudo`; then this does nothing.
            let _ = signal::kill(self.pid, signal);
        }
    }

    /// Sends a signal to the child's whole process group.
    pub(crate) fn signal_group(&self, signal: Signal) {
        if self.has_its_group() {
            let _ = signal::killpg(self.pid, signal);
        }
    }

    /// Sends a signal to the child's process group, and to all descendants of the child that have left the group.
    pub(crate) fn signal_all(&self, signal: Signal) -> Sent {
        // The group first: that is one call, which no process can evade.
        let group = self.has_its_group().then(|| signal::killpg(self.pid, signal));
        let mut sent = Sent::default();
        let descendants = self.descendants();
        for process in &descendants {
            let has_it = group.is_some() && process.group == self.pid;
            match if has_it { process.probe() } else { process.signal(signal) } {
                Ok(()) => sent.reached.push(process.pid),
                Err(Errno::EPERM) => sent.refused.push(process.pid),
                Err(_) => {}
            }
        }
        let is_unseen = descendants.is_empty();
        // Without `/proc` the child itself is asked while it runs: a witness in its group receives every signal.
        let asked = if is_unseen && !self.has_ended { Some(signal::kill(self.pid, None)) } else { group };
        match asked {
            Some(Ok(())) => {
                sent.has_reached_group = true;
                sent.reached.extend((is_unseen && !self.has_ended).then_some(self.pid));
            }
            Some(Err(Errno::EPERM)) if sent.refused.is_empty() => sent.refused.push(self.pid),
            _ => {}
        }
        sent
    }

    /// After the child has stopped, stops its descendants that still run, until [`Self::continue_rest`].
    ///
    /// Its process group is stopping already, and the programs in it may have to do something first, such as restoring the
    /// terminal's settings; those that do not stop soon are stopped as well.
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
                // The process may have started another one just before.
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

    /// Continues the processes that [`Self::stop_rest`] has stopped.
    pub(crate) fn continue_rest(&mut self) {
        for process in self.stopped.drain(..) {
            let _ = process.signal(Signal::SIGCONT);
        }
    }

    /// Whether the group with the child's id is the child's: once the child has ended, it may belong to another program.
    fn has_its_group(&self) -> bool {
        !self.has_ended || !ADOPTS || has_children(Some(self.pid))
    }

    /// All descendants of the child, and the child, that have not ended; none without `/proc`.
    pub(crate) fn descendants(&self) -> Vec<Process> {
        let witness = self.witness.as_ref().and_then(Witness::pid);
        let is_other = |process: &Process| {
            Some(process.pid) == witness || self.others.iter().any(|other| other.is(process))
        };
        descendants::all(is_other)
    }

    /// After the end of the child: whether any of its descendants is left.
    pub(crate) fn has_left_something(&self) -> bool {
        if !ADOPTS {
            return !is_gone(self.pid);
        }
        has_children(None) && (self.others.is_empty() || !self.descendants().is_empty())
    }
}

/// Whether the system shows all descendants of the child: orphaned ones become children of this process.
const ADOPTS: bool = cfg!(target_os = "linux");

/// The children that this process already has, as in `helper & exec distlock exec …`.
pub(crate) fn all() -> Vec<Process> {
    if has_children(None) { descendants::children() } else { Vec::new() }
}

/// Whether this process has children that have not ended, in that group if one is given, as far as the system tells; reaps those
/// that have.
fn has_children(group: Option<Pid>) -> bool {
    let group = group.and_then(|group| rustix::process::Pid::from_raw(group.as_raw()));
    let now = WaitOptions::NOHANG;
    let look = || group.map_or_else(|| wait(now), |group| waitpgid(group, now));
    loop {
        match retry_on_intr(look) {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(error) => return error != WaitError::CHILD,
        }
    }
}

fn change_of(status: WaitStatus) -> Option<Change> {
    let exited = status.exit_status().map(|code| Change::Exited(low_byte(code)));
    let killed = || status.terminating_signal().map(Change::Killed);
    // Only signals with a name stop.
    let stopped = || Some(Change::Stopped(Signal::try_from(status.stopping_signal()?).ok()?));
    exited.or_else(killed).or_else(stopped)
}

fn low_byte(code: i32) -> u8 {
    code.to_le_bytes()[0]
}

/// Copies `descriptor` for a child to inherit, to a number above the small ones that shell scripts use themselves.
pub(crate) fn inheritable(descriptor: impl AsFd) -> io::Result<OwnedFd> {
    const LOWEST_NUMBER: i32 = 10;
    let copy = rustix::io::fcntl_dupfd_cloexec(descriptor, LOWEST_NUMBER)?;
    rustix::io::fcntl_setfd(&copy, rustix::io::FdFlags::empty())?;
    Ok(copy)
}
