//! What the server may have of a client for one lock: attempts, leases, and what is being undone of either. An attempt and the
//! lease that it leads to have one number.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Waker;

use super::OVERDUE;
use super::line::Ticket;
use crate::policy::hold::Hold;
use crate::runtime::{Moment, Pending};
use crate::spi::{AcquireRequest, AnyLease, Grant, GroupId, Mode, Validity};
use crate::types::{LockError, LossReason, Owner};

pub(crate) type Number = u64;

pub(super) struct Claim {
    pub(super) request: AcquireRequest,
    pub(super) state: ClaimState,
}

pub(super) enum ClaimState {
    /// On its way to the server, or in the server's queue.
    Attempt(Attempt),
    Leased(Lease),
    Ending(Ending),
}

pub(super) struct Attempt {
    /// The request that it is for now.
    pub(super) ticket: Ticket,
    pub(super) since: Moment,
    pub(super) word: Word,
    /// When the server was last asked, or heard.
    pub(super) heard: Moment,
    /// Whether the server has confirmed that it is in the queue. That lasts as long as the attempt.
    pub(super) is_placed: bool,
    /// Whether a request waits for that.
    pub(super) is_awaited: bool,
    /// The report that its lease is lost, which may come before the grant.
    pub(super) loss: Option<LossReason>,
    /// Wakes its driver, when it is not wanted any more.
    pub(super) driver: Option<Waker>,
}

/// The last word of the server on an attempt.
pub(crate) enum Word {
    None,
    /// Another client holds the lock.
    Busy,
    Unreachable(LockError),
}

pub(in crate::policy) struct Lease {
    pub(in crate::policy) kept: AnyLease,
    pub(super) group: GroupId,
    pub(super) lasting: Lasting,
    /// How many holds may follow on it without the server, until when, and where the backend counts them.
    pub(super) sections: Option<Box<Sections>>,
    pub(in crate::policy) hold: Hold,
    /// The hold of the same owner as a reader, under its exclusive one.
    pub(super) reader: Option<Hold>,
    pub(super) seen: Seen,
}

impl Lease {
    pub(super) fn new(grant: Grant<AnyLease>, lasting: Lasting, hold: Hold, seen: Seen) -> Self {
        Self { kept: grant.lease, group: grant.group, lasting, sections: None, hold, reader: None, seen }
    }
}

/// How long a lease lasts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lasting {
    UntilReported,
    Leased { anchor: Moment, validity: Validity },
}

impl Lasting {
    /// Returns the deadline without any further renewal.
    pub(super) fn deadline(&self) -> Moment {
        match self {
            Self::UntilReported => Moment::FOREVER,
            Self::Leased { anchor, validity } => validity.deadline(*anchor),
        }
    }
}

pub(super) struct Sections {
    pub(super) left: u32,
    pub(super) until: Moment,
    pub(super) passes: Option<Arc<AtomicU32>>,
}

/// Whether code has seen a lease. If so, it does not pass to another owner: its token has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is for this request.
    NotYet(Ticket),
    By(Owner),
}

/// What is being undone: an attempt, or a lease, which may become that of a reader.
pub(super) struct Ending {
    pub(super) sent: Moment,
    pub(super) is_answered: bool,
    /// The answer is late: a wait that ends now has failed.
    pub(super) is_overdue: bool,
    /// Counts the cancel of an attempt that its driver has not noticed yet.
    pub(super) counted: Option<Pending>,
    /// The hold whose owner waits for the answer until then.
    pub(super) hold: Option<(Hold, Moment)>,
    pub(super) successor: Option<Successor>,
}

impl Ending {
    pub(super) fn sent_at(sent: Moment) -> Self {
        Self { sent, is_answered: false, is_overdue: false, counted: None, hold: None, successor: None }
    }
}

/// The reader that gets the lease of the writer above it, as long as it has not ended.
pub(super) struct Successor {
    pub(super) reader: Hold,
    pub(super) owner: Owner,
    /// The group of the writer's lease.
    pub(super) group: GroupId,
}

impl Claim {
    pub(super) fn mode(&self) -> Mode {
        self.request.mode()
    }

    pub(super) fn is_unanswered(&self) -> bool {
        matches!(&self.state, ClaimState::Ending(ending) if !ending.is_answered)
    }

    /// Returns the next moment at which something happens to it by itself.
    pub(super) fn due(&self) -> Moment {
        match &self.state {
            ClaimState::Attempt(_) => Moment::FOREVER,
            ClaimState::Leased(lease) => lease.hold.deadline(),
            ClaimState::Ending(ending) => {
                let is_awaited = !ending.is_answered && !ending.is_overdue;
                let overdue = is_awaited.then(|| ending.sent.plus(OVERDUE));
                let hold = ending.hold.as_ref().map(|(_, due)| *due);
                let reader = ending.successor.as_ref().map(|successor| successor.reader.deadline());
                [overdue, hold, reader].into_iter().flatten().min().unwrap_or(Moment::FOREVER)
            }
        }
    }
}
