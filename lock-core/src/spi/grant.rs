//! What a backend answers: a grant, what a renewal found, what a release found.

use std::sync::Arc;
use std::time::Duration;

use super::AnyLease;
use crate::runtime::clock::Moment;
use crate::types::loss::LossReason;
use crate::types::token::FencingToken;

#[cfg(doc)]
use super::Signals;

/// What is renewed together: a connection, a session. The backend gives out the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

impl GroupId {
    /// A group with this number.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// A lock that the server has given.
#[derive(Debug)]
pub struct Grant<L> {
    pub(crate) lease: L,
    pub(crate) group: GroupId,
    pub(crate) term: Term,
    pub(crate) token: Option<FencingToken>,
    #[cfg(unix)]
    pub(crate) descriptor: Option<Arc<std::os::fd::OwnedFd>>,
}

impl<L> Grant<L> {
    /// A grant: what the backend needs to renew and release it, with which others it is renewed, and how long it is good
    /// for.
    pub fn new(lease: L, group: GroupId, term: Term) -> Self {
        Self {
            lease,
            group,
            term,
            token: None,
            #[cfg(unix)]
            descriptor: None,
        }
    }

    /// Adds the fencing token, minted by the server in the acquiring round trip.
    #[must_use]
    pub fn with_token(mut self, token: FencingToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Adds a descriptor that keeps the lock held for as long as any process has it open, for a child to inherit.
    #[cfg(unix)]
    #[must_use]
    pub fn with_descriptor(mut self, descriptor: Arc<std::os::fd::OwnedFd>) -> Self {
        self.descriptor = Some(descriptor);
        self
    }

    /// The lease, to test a backend without the core.
    pub fn lease(&self) -> &L {
        &self.lease
    }

    /// The fencing token, if there is one.
    pub fn token(&self) -> Option<FencingToken> {
        self.token
    }

    /// How long the grant is good for.
    pub fn term(&self) -> Term {
        self.term
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
            #[cfg(unix)]
            descriptor: self.descriptor,
        }
    }
}

/// How long a grant is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Term {
    /// Until its end is reported through [`Signals::lost`]; it is not renewed.
    UntilReported,
    /// For `length` from `anchor` on, and again from each renewal on.
    Leased {
        /// The moment before the acquiring request was sent.
        anchor: Moment,
        /// How long the server keeps the lock without a renewal.
        length: Duration,
    },
}

/// What a renewal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease is ours, and has been extended: it lasts from the moment before the call.
    Held,
    /// The lease is ours, and lasts from this moment, for backends that know better than the core what their server's
    /// answer is worth. It never shortens what was known before.
    HeldFrom(Moment),
    /// The lease is gone.
    Lost(LossReason),
    /// It could not be found out.
    Unknown,
}

/// What a release found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// The lease was ours until now.
    Clean,
    /// The lease was not ours any more. The core believes that only of the first request that was sent: on a repeated one it
    /// means that an earlier one arrived.
    WasLost(LossReason),
}
