//! What has become of a process that holds a lock or waits for it, as far as this machine can tell.

use std::fmt::{self, Display, Formatter};
use std::sync::LazyLock;

use distlock::{HolderInfo, Participant};
use nix::errno::Errno;
use nix::sys::signal;
use nix::unistd::Pid;

/// Something about a process that those who wait for it want to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// It does nothing until somebody continues it.
    Stopped,
    /// There is no such process any more.
    Gone,
}

static OUR_HOST: LazyLock<String> = LazyLock::new(|| HolderInfo::of_this_process().host);

impl Condition {
    /// What is worth telling about a participant; `None` when it runs, or is out of sight on another host.
    pub(crate) fn of(participant: &Participant) -> Option<Self> {
        let pid = participant.pid.filter(|_| participant.host.as_ref() == Some(&*OUR_HOST))?;
        let pid = i32::try_from(pid).ok().filter(|&pid| pid > 0).map(Pid::from_raw)?;
        match signal::kill(pid, None) {
            Err(Errno::ESRCH) => Some(Self::Gone),
            _ => state(pid).and_then(Self::of_state),
        }
    }

    fn of_state(state: char) -> Option<Self> {
        match state {
            'T' => Some(Self::Stopped),
            // Its parent has not asked for its exit code yet; that is all that is left of it.
            'Z' | 'X' => Some(Self::Gone),
            _ => None,
        }
    }
}

impl Display for Condition {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stopped => "which is stopped",
            Self::Gone => "which is gone",
        })
    }
}

/// The letter that the system has for a process's state, where it has such letters.
fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name comes before it, in brackets, and may have brackets and spaces in it.
    stat.rsplit_once(") ")?.1.chars().next()
}
