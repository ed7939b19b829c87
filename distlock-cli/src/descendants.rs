//! Finds all running descendants of a command, in whatever process group or session they are.
//!
//! A process can leave its group and its session, and it can outlive its parent. It cannot leave its ancestors: while this
//! process is the *child subreaper* (Linux), every orphaned descendant becomes its child.

use std::collections::HashMap;
use std::fs;

use nix::errno::Errno;
use nix::sys::signal::{self, Signal};
use nix::unistd::{Pid, getpid};

/// A process as it was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) group: Pid,
    /// By a signal, or by a process that traces it.
    pub(crate) is_stopped: bool,
    parent: Pid,
    /// The start time, which distinguishes the process from a later one with the same id.
    started: String,
}

/// Makes orphaned descendants children of this process from now on, if the system can do that.
pub(crate) fn adopt() {
    // This fails on no kernel on which the rest of the command runs.
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}

/// All running descendants of this process, without those for which `is_other` is true and their descendants.
pub(crate) fn all(is_other: impl Fn(&Process) -> bool) -> Vec<Process> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in processes() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut parents = vec![getpid()];
    let mut found = Vec::new();
    while let Some(parent) = parents.pop() {
        let ours = children.remove(&parent).unwrap_or_default();
        for process in ours.into_iter().filter(|process| !is_other(process)) {
            parents.push(process.pid);
            found.push(process);
        }
    }
    found
}

/// The children of this process.
pub(crate) fn children() -> Vec<Process> {
    let us = getpid();
    processes().filter(|process| process.parent == us).collect()
}

impl Process {
    /// Sends the process a signal, and never another process.
    #[cfg(target_os = "linux")]
    pub(crate) fn signal(&self, signal: Signal) -> nix::Result<()> {
        use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
        let (Some(pid), Some(number)) = (
            rustix::process::Pid::from_raw(self.pid.as_raw()),
            rustix::process::Signal::from_named_raw(signal as i32),
        ) else {
            return Err(Errno::EINVAL);
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            // The open descriptor refers to the process that was seen, if that process still exists now.
            Ok(process) if self.is_there() => {
                pidfd_send_signal(&process, number).map_err(|error| Errno::from_raw(error.raw_os_error()))
            }
            Ok(_) | Err(rustix::io::Errno::SRCH) => Err(Errno::ESRCH),
            // An old kernel, or no descriptor left: fall back to `kill`.
            Err(_) => self.kill(Some(signal)),
        }
    }

    /// Sends the process a signal.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn signal(&self, signal: Signal) -> nix::Result<()> {
        self.kill(Some(signal))
    }

    /// Whether this process may send it a signal.
    pub(crate) fn probe(&self) -> nix::Result<()> {
        self.kill(None)
    }

    fn kill(&self, signal: Option<Signal>) -> nix::Result<()> {
        if self.is_there() { signal::kill(self.pid, signal) } else { Err(Errno::ESRCH) }
    }

    /// Whether the other is the same process, not another one with its id.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.pid, &self.started) == (other.pid, &other.started)
    }

    fn is_there(&self) -> bool {
        read(self.pid).is_some_and(|process| process.is(self))
    }
}

fn processes() -> impl Iterator<Item = Process> {
    // The `/proc` that is mounted may show another namespace, with ids of its own.
    let is_ours =
        fs::read_link("/proc/self").is_ok_and(|link| link.as_os_str() == getpid().to_string().as_str());
    let folders = is_ours.then(|| fs::read_dir("/proc").ok()).flatten().into_iter().flatten().flatten();
    let pids = folders.filter_map(|folder| folder.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| read(Pid::from_raw(pid)))
}

/// What the system reports about a process that has not ended.
fn read(pid: Pid) -> Option<Process> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse(pid: Pid, stat: &str) -> Option<Process> {
    /// The number of fields between the group and the start time.
    const FIELDS_BETWEEN: usize = 16;
    // The program's name comes first, in brackets, and may contain brackets and spaces.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    let is_stopped = matches!(state, "T" | "t");
    let mut number = || Some(Pid::from_raw(fields.next()?.parse().ok()?));
    let (parent, group) = (number()?, number()?);
    let started = fields.nth(FIELDS_BETWEEN)?.to_owned();
    Some(Process { pid, group, is_stopped, parent, started })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_anything_and_the_dead_are_not_there() {
        let pid = Pid::from_raw(7);
        let stat =
            |state| format!("7 (a) b) (c) {state} 5 6 4 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 22 33");
        let expected = |is_stopped| Process {
            pid,
            group: Pid::from_raw(6),
            is_stopped,
            parent: Pid::from_raw(5),
            started: "4711".to_owned(),
        };
        assert_eq!(parse(pid, &stat("S")), Some(expected(false)));
        assert_eq!(parse(pid, &stat("T")), Some(expected(true)));
        assert_eq!(parse(pid, &stat("Z")), None);
        assert_eq!(parse(pid, "7 (a"), None);
    }

    #[test]
    fn a_child_is_found_and_its_signal_reaches_it_alone() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        let found = all(|_| false).into_iter().find(|process| process.pid == pid).unwrap();
        let other = Process { started: "0".to_owned(), ..found.clone() };
        assert!(children().iter().any(|child| child.is(&found)));
        assert!(!all(|process| process.is(&found)).iter().any(|process| process.is(&found)));
        assert!(all(|process| process.is(&other)).iter().any(|process| process.is(&found)));
        assert_eq!(other.signal(Signal::SIGKILL), Err(Errno::ESRCH));
        assert_eq!(found.signal(Signal::SIGTERM), Ok(()));
        // Other tests look for children that have ended, too.
        assert!(!child.wait().is_ok_and(|status| status.success()));
        assert_eq!(found.signal(Signal::SIGTERM), Err(Errno::ESRCH));
    }
}
