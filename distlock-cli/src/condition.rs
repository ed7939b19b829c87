//! Whether the process of a holder or waiter is stopped or gone, as far as this machine can tell.

use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::sync::LazyLock;

use distlock::status::{HolderInfo, Participant};
use nix::errno::Errno;
use nix::sys::signal;
use nix::unistd::Pid;

/// A state of a process that matters to waiters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The process does nothing until another process continues it.
    Stopped,
    /// The process no longer exists.
    Gone,
}

static US: LazyLock<HolderInfo> = LazyLock::new(HolderInfo::of_this_process);

impl Condition {
    /// The condition of a participant; `None` if its process runs, or cannot be seen from here: on another host, or in another
    /// container, where its id belongs to another process.
    pub(crate) fn of(participant: &Participant) -> Option<Self> {
        Self::as_seen_by(&US, participant)
    }

    fn as_seen_by(us: &HolderInfo, participant: &Participant) -> Option<Self> {
        let pid = pid_in_sight(us, participant)?;
        if signal::kill(pid, None) == Err(Errno::ESRCH) {
            return Some(Self::Gone);
        }
        let found = Stat::of(pid)?;
        match &participant.origin {
            // Another process has this id now.
            Some(origin) if origin.started != found.started => Some(Self::Gone),
            _ => Self::of_state(found.state),
        }
    }

    fn of_state(state: char) -> Option<Self> {
        match state {
            'T' => Some(Self::Stopped),
            // The process has ended, and only its exit code is left for its parent to read.
            'Z' | 'X' => Some(Self::Gone),
            _ => None,
        }
    }
}

/// Whether this user may signal the process of a participant, or could before it ended.
pub(crate) fn is_ours(participant: &Participant) -> bool {
    pid_in_sight(&US, participant).is_some_and(|pid| signal::kill(pid, None) != Err(Errno::EPERM))
}

/// The process of a participant, if its id means the same here.
fn pid_in_sight(us: &HolderInfo, participant: &Participant) -> Option<Pid> {
    let is_in_sight = match &participant.origin {
        Some(theirs) => us.origin.as_ref().is_some_and(|ours| ours.numbering == theirs.numbering),
        None => participant.host.as_ref() == Some(&us.host),
    };
    let pid = participant.pid.filter(|_| is_in_sight)?;
    i32::try_from(pid).ok().filter(|&pid| pid > 0).map(Pid::from_raw)
}

impl Display for Condition {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stopped => "which is stopped",
            Self::Gone => "which is gone",
        })
    }
}

/// What the system reports about a process, if anything.
struct Stat {
    state: char,
    started: u64,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        // The `/proc` that is mounted may show another namespace, with ids of its own.
        if std::fs::read_link("/proc/self").ok()? != Path::new(&std::process::id().to_string()) {
            return None;
        }
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name comes before the fields, in brackets, and may contain brackets and spaces.
        let mut words = stat.rsplit_once(") ")?.1.split(' ');
        let state = words.next()?.chars().next()?;
        Some(Self { state, started: words.nth(18)?.parse().ok()? })
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use distlock::status::{HolderId, ProcessOrigin};

    use super::*;

    /// An id that no process has.
    const NO_PID: u32 = i32::MAX as u32;

    fn seen(change: impl FnOnce(&mut Participant)) -> Option<Condition> {
        let us = HolderInfo::of_this_process();
        let mut participant = Participant::new(HolderId::new("a")).with_info(&us);
        change(&mut participant);
        Condition::as_seen_by(&us, &participant)
    }

    #[test]
    fn only_what_is_known_is_reported() {
        let ours = ProcessOrigin::of_this_process().unwrap();
        let earlier = ProcessOrigin::new(ours.numbering.clone(), ours.started - 1);
        let elsewhere = ProcessOrigin::new("another machine", ours.started);
        assert_eq!(seen(|_| {}), None);
        assert_eq!(seen(|participant| participant.pid = Some(NO_PID)), Some(Condition::Gone));
        assert_eq!(seen(|participant| participant.origin = Some(earlier)), Some(Condition::Gone));
        assert_eq!(seen(|participant| participant.host = Some("renamed since".to_owned())), None);
        for pid in [std::process::id(), NO_PID] {
            let origin = Some(elsewhere.clone());
            let out_of_sight = |participant: &mut Participant| {
                (participant.pid, participant.origin) = (Some(pid), origin);
            };
            assert_eq!(seen(out_of_sight), None);
        }
    }

    #[test]
    fn without_more_than_a_number_the_host_decides() {
        let with = |host: &str| {
            let host = Some(host.to_owned());
            seen(|participant| {
                (participant.host, participant.pid, participant.origin) = (host, Some(NO_PID), None);
            })
        };
        assert_eq!(with(&HolderInfo::of_this_process().host), Some(Condition::Gone));
        assert_eq!(with("elsewhere"), None);
    }
}
