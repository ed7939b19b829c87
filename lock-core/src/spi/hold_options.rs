//! The options of a hold: what an acquisition asks for beside the lock itself.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use crate::types::HolderInfo;

/// What an acquisition asks for: those of the client, unless the lock has options of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HoldOptions {
    /// What the client tells the server about the holder.
    pub(crate) holder: Arc<HolderInfo>,
    /// `None` for the lease of the client.
    pub(crate) lease: Option<Duration>,
    pub(crate) abort_margin: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// How long after the grant no other attempt with such a wish succeeds, whatever becomes of the hold.
    pub(crate) at_least: Option<Duration>,
    /// Whether a body runs to its end when the lock is lost. Else it is dropped at its next await.
    pub(crate) finishes_body: bool,
    /// `None` when each hold comes from the server.
    pub(crate) local_handoff: Option<LocalHandoff>,
    /// Whether the hold is a term of an election.
    pub(crate) is_term: bool,
}

/// How far a lock passes between the tasks of a client before the server has it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalHandoff {
    /// How many holds, with the first.
    pub(crate) sections: NonZeroU32,
    /// How long after the first grant the last of them may begin.
    pub(crate) time: Duration,
}

impl HoldOptions {
    /// The options of a client with this holder, and nothing special.
    pub(crate) fn of(holder: Arc<HolderInfo>) -> Self {
        Self {
            holder,
            lease: None,
            abort_margin: Duration::ZERO,
            max_hold: None,
            at_least: None,
            finishes_body: false,
            local_handoff: None,
            is_term: false,
        }
    }
}
