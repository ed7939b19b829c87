//! What a backend is asked: one attempt at a lock, or a look at one.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use super::Signals;
use crate::runtime::clock::Moment;
use crate::types::name::{LockName, PhysicalName};
use crate::types::status::HolderInfo;

/// A random 128-bit number that a client gives to one attempt, so that the server can tell it from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId(u128);

impl AttemptId {
    /// An id with this number.
    pub const fn new(number: u128) -> Self {
        Self(number)
    }

    /// The number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl fmt::Display for AttemptId {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// How a lock is shared. Exclusive is what there is today; the others are reserved for the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time.
    Exclusive,
    /// Several holders at a time, none of them exclusive.
    Shared,
    /// Some of a fixed number of permits.
    Permits {
        /// How many permits this acquisition takes.
        take: NonZeroU32,
        /// How many there are.
        of: NonZeroU32,
    },
}

/// How long an acquisition may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: once, at most a round trip to the server.
    Try,
    /// Until a moment of the client's clock.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    /// Waiting for `duration` from `now` on: zero is [`Wait::Try`], what exceeds the clock is [`Wait::Forever`].
    pub fn within(duration: Duration, now: Moment) -> Self {
        match now.plus(duration) {
            _ if duration.is_zero() => Self::Try,
            Moment::FOREVER => Self::Forever,
            deadline => Self::Until(deadline),
        }
    }

    /// The moment at which the wait ends.
    pub(crate) fn deadline(self) -> Moment {
        match self {
            Self::Try => Moment::from_nanoseconds(0),
            Self::Until(moment) => moment,
            Self::Forever => Moment::FOREVER,
        }
    }
}

/// One attempt at a lock.
#[derive(Debug)]
pub struct AcquireRequest {
    pub(crate) id: AttemptId,
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
    pub(crate) mode: Mode,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) signals: Signals,
}

impl AcquireRequest {
    /// A request of one's own, to test a backend without the core.
    pub fn new(
        id: AttemptId,
        name: LockName,
        physical: PhysicalName,
        wait: Wait,
        holder: Arc<HolderInfo>,
    ) -> Self {
        Self { id, name, physical, mode: Mode::Exclusive, holder, signals: Signals::new(wait) }
    }

    /// The attempt's id.
    pub fn id(&self) -> AttemptId {
        self.id
    }

    /// The lock, as the user calls it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock, as the server knows it.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }

    /// How the lock is to be shared.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Who asks, for people who inspect the lock.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.holder
    }

    /// How long the attempt may wait. [`Wait::Try`] stays what it is. **The others may grow while the attempt waits**,
    /// because an attempt passes from one local waiter to the next: whoever gives it to a server as a bound reads it
    /// again when the bound is reached.
    pub fn wait(&self) -> Wait {
        self.signals.wait()
    }

    /// The [place](Signals::keep_place) that an earlier attempt of the same waiter had in the server's queue and lost, so
    /// that a short loss of contact does not send the waiter to the end of the queue. What the number means is the
    /// backend's business.
    pub fn place(&self) -> Option<NonZeroU64> {
        self.signals.place()
    }

    /// By which the backend tells the core what becomes of the attempt, and of the hold that comes of it.
    pub fn signals(&self) -> &Signals {
        &self.signals
    }
}

/// A lock to look at.
#[derive(Debug, Clone)]
pub struct InspectRequest {
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
}

impl InspectRequest {
    /// A request of one's own, to test a backend without the core.
    pub fn new(name: LockName, physical: PhysicalName) -> Self {
        Self { name, physical }
    }

    /// The lock, as the user calls it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// The lock, as the server knows it.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }
}
