//! The requests that a backend gets: one attempt at a lock, or an inspection of a lock.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::time::Duration;

use super::{AttemptHandle, HoldOptions};
use crate::runtime::clock::Moment;
use crate::types::mode::{LockKind, Mode};
use crate::types::name::{LockName, PhysicalName};
use crate::types::status::HolderInfo;

/// A random 128-bit number that a client gives to one attempt, so that the server can distinguish it from all others.
///
/// ```
/// use lock_core::AttemptId;
///
/// let id = AttemptId::new(42);
/// assert_eq!((id.get(), id.to_string()), (42, "0000000000000000000000000000002a".to_owned()));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttemptId([u8; 16]); // not u128, which would align whatever has an id to 16 bytes

impl AttemptId {
    /// Creates an id from its number.
    pub const fn new(number: u128) -> Self {
        Self(number.to_ne_bytes())
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        u128::from_ne_bytes(self.0)
    }
}

impl fmt::Display for AttemptId {
    /// 32 hexadecimal digits.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.get())
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// How long an acquisition may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one try, which takes a round trip to the server. Where others pass through a gate of the lock for a moment, as
    /// those that take permits, it tries again, mostly for milliseconds.
    Try,
    /// Until this moment of the client's clock.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    /// Returns a wait of `duration`, starting at `now`. Zero is [`Wait::Try`]; a duration beyond the range of the clock
    /// is [`Wait::Forever`].
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use lock_core::{Clock, Wait};
    ///
    /// let (now, second) = (Clock::system().now(), Duration::from_secs(1));
    /// assert_eq!(Wait::within(second, now), Wait::Until(now.plus(second)));
    /// assert_eq!(Wait::within(Duration::ZERO, now), Wait::Try);
    /// assert_eq!(Wait::within(Duration::MAX, now), Wait::Forever);
    /// ```
    pub fn within(duration: Duration, now: Moment) -> Self {
        match now.plus(duration) {
            _ if duration.is_zero() => Self::Try,
            Moment::FOREVER => Self::Forever,
            deadline => Self::Until(deadline),
        }
    }

    /// Returns the moment at which the wait ends.
    pub(crate) fn deadline(self) -> Moment {
        match self {
            Self::Try => Moment::from_nanoseconds(0),
            Self::Until(moment) => moment,
            Self::Forever => Moment::FOREVER,
        }
    }
}

/// One attempt at a lock.
///
/// ```
/// use std::sync::Arc;
///
/// use lock_core::{AcquireRequest, AttemptId, CharacterSet, HolderInfo, LockName, Mode, NameRules, Wait};
///
/// let name = LockName::new("orders/42")?;
/// let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
/// let holder = Arc::new(HolderInfo::of_this_process());
/// let request = AcquireRequest::new(AttemptId::new(7), name, physical, Wait::Forever, holder);
///
/// // What a backend does with it:
/// let sent = format!("lock {} {} {}", request.physical(), request.id(), request.holder().pid);
/// assert_eq!((request.name().as_str(), request.mode(), request.place()), ("orders/42", Mode::Exclusive, None));
/// if request.wait() != Wait::Try {
///     request.attempt().queued(); // when the server has answered that another client holds the lock
/// }
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone)]
pub struct AcquireRequest {
    pub(crate) id: AttemptId,
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
    pub(crate) mode: Mode,
    pub(crate) options: Arc<HoldOptions>,
    pub(crate) handle: AttemptHandle,
}

impl AcquireRequest {
    /// Creates a request for an exclusive hold, to test a backend without the core.
    pub fn new(
        id: AttemptId,
        name: LockName,
        physical: PhysicalName,
        wait: Wait,
        holder: Arc<HolderInfo>,
    ) -> Self {
        let options = Arc::new(HoldOptions::of(holder));
        Self { id, name, physical, mode: Mode::Exclusive, options, handle: AttemptHandle::new(wait) }
    }

    /// Sets the mode, to test a backend without the core.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Returns the id of the attempt.
    pub fn id(&self) -> AttemptId {
        self.id
    }

    /// Returns the name of the lock, as the user wrote it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the name of the lock on the server.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }

    /// Returns how the lock is to be shared. A backend gets only the modes that its
    /// [capabilities](crate::Capabilities::modes) declare.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns who is asking, for people who inspect the lock.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.options.holder
    }

    /// Returns the lease that this attempt is to get, if it is not the client's. Only backends that
    /// [grant leases one by one](crate::Capabilities::leasing) get such attempts.
    pub fn lease(&self) -> Option<Duration> {
        self.options.lease
    }

    /// Returns how many fencing tokens the grant may reserve: its own and those after it, for sections that follow without
    /// the server. One, unless the backend [can reserve](crate::Capabilities::reserving) them. The grant says how many
    /// [it has](super::Grant::with_sections).
    pub fn sections(&self) -> NonZeroU32 {
        match self.options.local_handoff {
            Some(handoff) if self.mode == Mode::Exclusive && self.options.at_least.is_none() => {
                handoff.sections
            }
            _ => NonZeroU32::MIN,
        }
    }

    /// Returns how long the request that the attempt is made for waits. Except for [`Wait::Try`] that does not limit the attempt,
    /// which passes from one local waiter to the next: the core ends the wait.
    pub fn wait(&self) -> Wait {
        self.handle.wait()
    }

    /// Returns the [place](AttemptHandle::keep_place) that an earlier attempt of the same waiter had in the server's queue
    /// and lost, so that a short loss of contact does not move the waiter to the end of the queue. The backend decides
    /// what the number means.
    pub fn place(&self) -> Option<NonZeroU64> {
        self.handle.place()
    }

    /// Returns the handle, through which the backend reports to the core what becomes of the attempt and of the hold
    /// that it leads to.
    pub fn attempt(&self) -> &AttemptHandle {
        &self.handle
    }
}

/// A request to inspect a lock.
///
/// ```
/// use lock_core::{CharacterSet, InspectRequest, LockName, LockStatus, NameRules};
///
/// let name = LockName::new("orders/42")?;
/// let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
/// let request = InspectRequest::new(name, physical);
///
/// let sent = format!("holder of {}", request.physical());
/// let status = LockStatus::free(request.name().clone());
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone)]
pub struct InspectRequest {
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
    pub(crate) kind: LockKind,
}

impl InspectRequest {
    /// Creates a request about a lock, to test a backend without the core.
    pub fn new(name: LockName, physical: PhysicalName) -> Self {
        Self { name, physical, kind: LockKind::Lock }
    }

    /// Makes the request one about a lock or about a semaphore.
    #[must_use]
    pub fn about(mut self, kind: LockKind) -> Self {
        self.kind = kind;
        self
    }

    /// Returns whether the request is about a lock or about the semaphore of that name. Only backends with
    /// [semaphores](crate::Modes::permits) are asked about them.
    pub fn kind(&self) -> LockKind {
        self.kind
    }

    /// Returns the name of the lock, as the user wrote it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the name of the lock on the server.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }
}
