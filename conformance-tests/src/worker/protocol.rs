//! What is said between a case and a worker: one line of JSON each.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a worker is told to do.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Answered by `Acquired`, `Refused` or `Failed`; other commands are served meanwhile.
    Acquire { name: String, patience: Patience },
    /// Answered by `Released` or `Failed`.
    Release { name: String },
    /// Answered by `Standing`.
    Look { name: String },
    /// Acquires and releases, and meanwhile counts up what is in the file, with nothing else to protect it. Answered by
    /// `History` or `Failed`.
    Cycle { name: String, file: Option<PathBuf>, times: u32 },
    /// Acquires and releases over and over, whatever is done to the server meanwhile, and counts up what is in the file while
    /// it believes to hold the lock. Answered by `Visited` each time, and in the end by `Rested` or `Failed`.
    Contend { name: String, file: PathBuf },
    /// Holds the lock for so many milliseconds when it has it next, or until it is lost. Answered by `Clings`.
    Cling { milliseconds: u64 },
    /// Ends what `Contend` began.
    Rest,
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

/// What a worker tells.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    Ready,
    Acquired(Visit),
    Refused,
    Released,
    Standing {
        is_valid: bool,
        losses: usize,
    },
    /// The listener's first line was reached at this time.
    Lost {
        reason: String,
        at: u64,
    },
    /// Some more of what `Cycle` asked for is done.
    Progress,
    History(Vec<Visit>),
    /// One acquisition is over.
    Visited {
        visit: Visit,
        count: Count,
        end: End,
    },
    /// It has the lock that it was told to cling to.
    Clings,
    /// It contends no more.
    Rested,
    Closed,
    Failed {
        kind: String,
        text: String,
    },
}

/// What became of a number that was to be counted up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Count {
    /// It was, by one who held the lock before and afterwards.
    Up,
    /// It was, by one who may have lost the lock meanwhile.
    Doubtful,
    /// It was not, as the lock was lost before.
    Not,
}

/// How a holder came to let the lock go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// By itself.
    LetGo,
    /// It had lost it.
    Lost,
}

/// One acquisition, in nanoseconds of the machine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Visit {
    /// When the acquisition was called.
    pub(crate) asked: u64,
    /// When it had returned.
    pub(crate) acquired: u64,
    /// When the release was called or the listener was told of a loss, whichever came first.
    pub(crate) ended: Option<u64>,
    pub(crate) token: Option<u64>,
}
