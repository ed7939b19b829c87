//! What the server may have of a client for one lock: attempts, leases, and what is being undone of either. An attempt and the
//! lease that it leads to have one number.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Waker;

use super::line::Ticket;
use crate::policy::hold::HoldCore;
use crate::runtime::clock::Moment;
use crate::runtime::few::FewByKey;
use crate::runtime::number_map::NumberHashes;
use crate::runtime::pending::Pending;
use crate::spi::{AcquireRequest, AnyLease, GroupId, Mode, Validity};
use crate::types::error::LockError;
use crate::types::loss::LossReason;
use crate::types::owner::Owner;

pub(crate) type Number = u64;

pub(super) type Asks = FewByKey<Number, Ask, NumberHashes>;

pub(super) struct Ask {
    pub(super) request: AcquireRequest,
    pub(super) is: Is,
}

pub(super) enum Is {
    /// On its way to the server, or in the server's queue.
    Out(Out),
    Leased(Lease),
    Ending(Ending),
}

pub(super) struct Out {
    /// The request that it is for now.
    pub(super) ticket: Ticket,
    pub(super) since: Moment,
    pub(super) word: Word,
    /// Whether the server has confirmed that it is in the queue. That lasts as long as the attempt.
    pub(super) is_placed: bool,
    /// The release that was sent before it and is not answered.
    pub(super) behind: Option<Number>,
    /// The report that its lease is lost, which may come before the grant.
    pub(super) lost: Option<LossReason>,
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

pub(super) struct Lease {
    pub(super) kept: AnyLease,
    pub(super) group: GroupId,
    pub(super) lasting: Lasting,
    /// How many holds may follow on it without the server, until when, and where the backend counts them.
    pub(super) series: Option<Series>,
    pub(super) hold: Arc<HoldCore>,
    /// The hold of the same owner as a reader, under its exclusive one.
    pub(super) reader: Option<Arc<HoldCore>>,
    pub(super) seen: Seen,
    /// The release that was sent before its attempt and is not answered: until then its request does not get it.
    pub(super) behind: Option<Number>,
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

pub(super) struct Series {
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

pub(super) struct Ending {
    pub(super) what: Undo,
    pub(super) sent: Moment,
    pub(super) is_answered: bool,
    /// The answer is late: a wait that ends now has failed.
    pub(super) is_overdue: bool,
    /// Counts the cancel of an attempt that its driver has not noticed yet.
    pub(super) counted: Option<Pending>,
}

/// What is being undone.
pub(super) enum Undo {
    Attempt,
    /// A lease, and the hold whose owner waits for the answer until then.
    Lease {
        hold: Option<Arc<HoldCore>>,
        due: Moment,
    },
    /// The lease of a writer becomes that of the reader under it, as long as that has not ended.
    Downgrade {
        hold: Option<Arc<HoldCore>>,
        due: Moment,
        reader: Option<Arc<HoldCore>>,
        owner: Owner,
        /// The number of the reader's lease.
        to: Number,
        group: GroupId,
    },
}

impl Undo {
    /// Returns the hold whose end is to be reported, and by when.
    pub(super) fn hold_and_due(&mut self) -> Option<(&mut Option<Arc<HoldCore>>, Moment)> {
        match self {
            Self::Attempt => None,
            Self::Lease { hold, due } | Self::Downgrade { hold, due, .. } => Some((hold, *due)),
        }
    }
}

impl Ask {
    pub(super) fn mode(&self) -> Mode {
        self.request.mode()
    }

    pub(super) fn leased(&mut self) -> Option<&mut Lease> {
        match &mut self.is {
            Is::Leased(lease) => Some(lease),
            _ => None,
        }
    }

    pub(super) fn is_unanswered(&self) -> bool {
        matches!(&self.is, Is::Ending(ending) if !ending.is_answered)
    }

    /// Returns the next moment at which something happens to it by itself.
    pub(super) fn due(&self) -> Moment {
        match &self.is {
            Is::Out(_) => Moment::FOREVER,
            Is::Leased(lease) => lease.hold.deadline(),
            Is::Ending(ending) => {
                let overdue = if ending.is_answered || ending.is_overdue {
                    Moment::FOREVER
                } else {
                    ending.sent.plus(super::OVERDUE)
                };
                match &ending.what {
                    Undo::Attempt => overdue,
                    Undo::Lease { hold, due } => overdue.min(hold.as_ref().map_or(Moment::FOREVER, |_| *due)),
                    Undo::Downgrade { hold, due, reader, .. } => overdue
                        .min(hold.as_ref().map_or(Moment::FOREVER, |_| *due))
                        .min(reader.as_ref().map_or(Moment::FOREVER, |reader| reader.deadline())),
                }
            }
        }
    }
}
