//! The messages between a case and a worker, each of which is one line of JSON.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lock_use::LockUse;

/// A command to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Answered by `Acquired`, `Refused` or `Failed`; the worker accepts other commands meanwhile.
    Acquire { name: String, patience: Patience },
    /// Answered by `Released` or `Failed`.
    Release { name: String },
    /// Answered by `Standing`.
    Look { name: String },
    /// Acquires and releases, and increments the number in the file meanwhile, which nothing else protects. Answered by
    /// `History` or `Failed`.
    Cycle { name: String, file: Option<PathBuf>, times: u32 },
    /// Acquires and releases over and over, whatever happens to the server, and increments the number in the file while
    /// the worker believes to hold the lock. Answered by `Visited` each time, and at the end by `Rested` or `Failed`.
    Contend { name: String, file: PathBuf },
    /// Holds the lock for this many milliseconds when the worker next has it, or until it is lost. Answered by
    /// `Clings`.
    Cling { milliseconds: u64 },
    /// Ends `Contend`.
    Rest,
    /// Holds the lock in a certain way. Answered by `Inside`, and then by `Released`; or by `Refused` or `Failed`.
    Enter { name: String, lock_use: LockUse },
    /// Ends `Enter`.
    Leave,
    /// Answered by `Closed` or `Failed`.
    Quit,
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Patience {
    Forever,
    Milliseconds(u64),
}

impl Patience {
    pub(crate) fn within(duration: Duration) -> Self {
        Self::Milliseconds(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(crate) fn as_duration(self) -> Duration {
        match self {
            Self::Forever => Duration::MAX,
            Self::Milliseconds(milliseconds) => Duration::from_millis(milliseconds),
        }
    }
}

/// A report of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Ready,
    Acquired(Visit),
    Refused,
    Released,
    /// It has entered, and stays.
    Inside,
    Standing {
        is_valid: bool,
        losses: usize,
    },
    /// The listener's first line was reached at this time.
    Lost {
        reason: String,
        at: u64,
    },
    /// More of the work for `Cycle` is done.
    Progress,
    History(Vec<Visit>),
    /// One acquisition has ended.
    Visited {
        visit: Visit,
        count: Count,
        end: End,
    },
    /// It has the lock that it was told to keep.
    Clings,
    /// It no longer contends.
    Rested,
    Closed,
    Failed {
        kind: String,
        text: String,
    },
}

/// Whether a number was incremented.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Count {
    /// Yes, by a worker that held the lock before and afterwards.
    Up,
    /// Yes, by a worker that may have lost the lock meanwhile.
    Doubtful,
    /// No, because the lock was lost before.
    Not,
}

/// Why a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// The holder released it.
    LetGo,
    /// The holder lost it.
    Lost,
}

/// One acquisition, in nanoseconds of the system clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Visit {
    /// When the acquisition was called.
    pub(crate) asked: u64,
    /// When it had returned.
    pub(crate) acquired: u64,
    /// When the release was called or the listener learned of a loss, whichever came first.
    pub(crate) ended: Option<u64>,
    pub(crate) token: Option<u64>,
}
