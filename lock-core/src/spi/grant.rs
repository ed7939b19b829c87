//! The answers of a backend: a grant, the result of a renewal, the result of a release.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::AnyLease;
use crate::runtime::Moment;
use crate::types::{FencingToken, HolderId, LossReason};

#[cfg(doc)]
use super::{AcquireRequest, Backend};

/// Identifies what is renewed together: a connection, a session. The backend assigns the numbers, in the order in which its groups
/// begin.
///
/// ```
/// use lock_core::GroupId;
///
/// let session = GroupId::new(7);
/// assert_eq!(session.get(), 7);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

impl GroupId {
    /// Creates the id of a group from its number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A lock that the server has granted.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{Clock, FencingToken, Grant, GroupId, Term};
///
/// let anchor = Clock::system().now(); // before the request is sent
/// let term = Term::Leased { anchor, length: Duration::from_secs(30) };
/// let token = Some(FencingToken::new(33));
/// let grant = Grant { token, ..Grant::new("session 7", GroupId::new(7), term) };
/// assert_eq!((grant.lease, grant.term, grant.token), ("session 7", term, token));
/// ```
#[derive(Debug)]
pub struct Grant<L> {
    /// What the backend needs to renew and release the lock.
    pub lease: L,
    /// What the lock is renewed with.
    pub group: GroupId,
    /// How long the grant is valid.
    pub term: Term,
    /// The fencing token, which the server created in the round trip that acquired the lock.
    pub token: Option<FencingToken>,
    /// The id under which [`Backend::inspect`] shows the holder, if it is not that of the attempt.
    pub holder: Option<HolderId>,
    /// How many tokens the server has reserved in the same round trip, from the grant's own on: no other grant gets one of them,
    /// and later grants get higher ones.
    pub sections: NonZeroU32,
    /// The core counts here how many of the reserved tokens after the grant's own it has used, before it uses each: a backend may
    /// give back those that are left when the lease is released.
    pub passes: Option<Arc<AtomicU32>>,
    /// A file descriptor that keeps the lock held for as long as any process has it open. A child process can inherit it.
    #[cfg(unix)]
    pub descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

impl<L> Grant<L> {
    /// Creates a grant of one section, without a token.
    pub fn new(lease: L, group: GroupId, term: Term) -> Self {
        Self {
            lease,
            group,
            term,
            token: None,
            holder: None,
            sections: NonZeroU32::MIN,
            passes: None,
            #[cfg(unix)]
            descriptor: None,
        }
    }

    pub(super) fn erase(self) -> Grant<AnyLease>
    where
        L: Send + Sync + 'static,
    {
        Grant {
            lease: Arc::new(self.lease) as AnyLease,
            group: self.group,
            term: self.term,
            token: self.token,
            holder: self.holder,
            sections: self.sections,
            passes: self.passes,
            #[cfg(unix)]
            descriptor: self.descriptor,
        }
    }
}

/// How long a grant is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Until the backend reports its end through [`AcquireRequest::lost`]; it is not renewed.
    UntilReported,
    /// For `length` from `anchor`, and again from each renewal.
    Leased {
        /// The moment before the acquiring request was sent.
        anchor: Moment,
        /// How long the server keeps the lock without a renewal.
        length: Duration,
    },
}

/// The result of a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The server still has the lease for this client, and has extended it: it lasts from the moment before the call.
    Held,
    /// The server still has the lease for this client, and it lasts from this moment. For backends that know better
    /// than the core from which moment on their server's answer counts. It never shortens a lease.
    HeldFrom(Moment),
    /// The lease is gone.
    Lost(LossReason),
    /// The backend could not find out.
    Unknown,
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The server had the lease for this client until now.
    Clean,
    /// The server did not have the lease for this client any more. The core believes that only of the first request: on
    /// a repeated request it means that an earlier one arrived.
    WasLost(LossReason),
}

/// The result of making an exclusive hold a shared one.
#[derive(Debug)]
pub enum Downgraded<L> {
    /// The lease is shared from now on, without a gap, under the id of the request.
    Shared(Grant<L>),
    /// The server does not have the exclusive lease for this client any more, and has granted nothing.
    WasLost(LossReason),
}

/// The result of replacing what the server shows of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// The server shows the new information.
    Done,
    /// The server does not have the lease for this client any more, and has changed nothing.
    Lost(LossReason),
}
