//! What a backend can do, as data. The core checks it before it calls the backend; users and tests can read it.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::types::mode::Mode;
use crate::types::name::NameRules;

/// How far the exclusion of a backend reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reach {
    /// The clients of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// All clients that can reach the server.
    Network,
}

/// What the fencing tokens of a backend guarantee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// The backend has no fencing tokens.
    None,
    /// Tokens rise as long as the server keeps its state.
    WhileServerLives,
    /// Tokens rise across restarts of clients and of the server.
    Durable,
}

/// The order in which waiters get the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served, across all clients.
    Fifo,
    /// First come, first served, but a client passes the lock between its own tasks for a while before others have it:
    /// the client has [`local_handoff`](crate::ClientBuilder::local_handoff).
    InBatches,
    /// No particular order.
    Unordered,
}

/// How much of a lock's state [`LockClient::status`](crate::LockClient::status) can show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inspection {
    /// Nothing.
    None,
    /// The session of the server that holds the lock, but not which acquisition of that session it is, and nothing that
    /// the holder says about itself; and the waiters, as far as the server shows them.
    Sessions,
    /// The holder of the lock, and the waiters, in order.
    HolderAndQueue,
}

/// Whether [`LockClient::break_holder`](crate::LockClient::break_holder) works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breaking {
    /// A lock cannot be taken away from its holder.
    Unsupported,
    /// A lock can be taken away by ending the session of the server that holds it, even if that session has released
    /// the lock and acquired it again since the caller looked.
    Sessions,
    /// A lock can be taken away from its holder, and the holder is notified.
    Supported,
}

/// Whether the server shows the value of a leader, and lets the leader change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Describing {
    /// The server has no room for what a holder says about itself, or the holder cannot change it.
    Unsupported,
    /// The status of a lock shows the value, and the holder can change it.
    Supported,
}

/// Whose leases the server keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Leasing {
    /// There is no lease, or one for all locks of a client: of its session or its connections.
    PerClient,
    /// Each hold has a lease of its own, which a lock may [choose](crate::LockOptions::lease).
    PerHold {
        /// The shortest lease that the server keeps.
        shortest: Duration,
        /// The longest lease that the backend allows.
        longest: Duration,
    },
}

/// Whether the server can remember that a slot of a lock has been used, beyond the end of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remembering {
    /// The server remembers nothing of a client that is gone, or must not be written to.
    Unsupported,
    /// The server remembers a slot for the time that is asked for, by its own clock.
    Supported,
}

/// Whether an acquisition can reserve fencing tokens for more sections than its own, which a client with
/// [`local_handoff`](crate::ClientBuilder::local_handoff) needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reserving {
    /// An acquisition gets one token.
    Unsupported,
    /// As `Unsupported`, for this reason, which the error about the option gives.
    Refused(&'static str),
    /// The acquiring round trip can reserve this many tokens that follow each other. A backend that has no tokens has none to
    /// reserve, and sets a limit all the same.
    AtMost(NonZeroU32),
}

/// Whether an acquisition may be sent before the release ahead of it has been answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Pipelining {
    /// The next waiter of a client acquires the lock when the server has answered the release of the last holder.
    #[default]
    Unsupported,
    /// The server carries out the requests of a client in the order of their first polls, usually because they share a
    /// connection. The next waiter of a client acquires the lock right behind the release, in the same round trip.
    Supported,
}

/// Whether several can hold a lock together: the read side of read-write locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// All locks are exclusive.
    Unsupported,
    /// A lock can have several shared holders, and an exclusive hold can become a shared one.
    Supported,
}

/// How many permits the semaphores of a backend can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermitLimits {
    /// The most permits that a semaphore can have.
    pub of: NonZeroU32,
    /// The most permits that one acquisition can take.
    pub take: NonZeroU32,
}

impl PermitLimits {
    /// Any number of permits.
    pub const NONE: Self = Self::new(NonZeroU32::MAX, NonZeroU32::MAX);

    /// Creates the limits of a semaphore, and of one acquisition.
    pub const fn new(of: NonZeroU32, take: NonZeroU32) -> Self {
        Self { of, take }
    }
}

/// The modes that a backend has besides the exclusive one, which all have.
///
/// ```
/// use lock_core::{Mode, Modes, PermitLimits};
///
/// let modes = Modes::exclusive().with_shared().with_permits(PermitLimits::NONE);
/// assert_eq!(modes.refusal(Mode::Shared), None);
/// assert!(Modes::exclusive().refusal(Mode::Shared).is_some()); // the reason, in words
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Modes {
    /// Whether there are shared holders.
    pub shared: Sharing,
    /// The limits of semaphores; `None` without semaphores.
    pub permits: Option<PermitLimits>,
}

impl Modes {
    /// Exclusive locks only.
    pub const fn exclusive() -> Self {
        Self { shared: Sharing::Unsupported, permits: None }
    }

    /// Adds shared holders, and with them [`Backend::downgrade`](crate::Backend::downgrade).
    #[must_use]
    pub const fn with_shared(mut self) -> Self {
        self.shared = Sharing::Supported;
        self
    }

    /// Adds semaphores with these limits.
    #[must_use]
    pub const fn with_permits(mut self, limits: PermitLimits) -> Self {
        self.permits = Some(limits);
        self
    }

    /// Returns why a request in this mode is refused; `None` when the backend has the mode.
    pub fn refusal(&self, mode: Mode) -> Option<Cow<'static, str>> {
        match (mode, self.permits) {
            (Mode::Shared, _) if self.shared == Sharing::Unsupported => {
                Some("its locks are exclusive: it has no read-write locks".into())
            }
            (Mode::Permits { .. }, None) => Some("it has no semaphores".into()),
            (Mode::Permits { of, .. }, Some(limits)) if of > limits.of => {
                Some(format!("its semaphores have at most {} permits, not {of}", limits.of).into())
            }
            (Mode::Permits { take, .. }, Some(limits)) if take > limits.take => {
                Some(format!("one acquisition can take at most {} permits, not {take}", limits.take).into())
            }
            _ => None,
        }
    }
}

/// What a backend can do.
///
/// Start from [`Capabilities::new`], which claims nothing, and add what applies with the `with_…` methods.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{Breaking, Capabilities, CharacterSet, Fairness, Fencing, Inspection, NameRules, Reach};
///
/// let names = NameRules::new(CharacterSet::PORTABLE, 200);
/// let capabilities = Capabilities::new("shelf", Reach::Network, names)
///     .with_fencing(Fencing::WhileServerLives)
///     .with_fairness(Fairness::Fifo)
///     .with_inspection(Inspection::HolderAndQueue)
///     .with_breaking(Breaking::Supported)
///     .with_leftovers_gone_after(Duration::from_secs(30));
/// assert_eq!(capabilities.leftovers_last, Some(Duration::from_secs(30)));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, as in its URL's scheme.
    pub backend: &'static str,
    /// How far the exclusion reaches.
    pub reach: Reach,
    /// What the fencing tokens guarantee.
    pub fencing: Fencing,
    /// The order in which waiters get the lock.
    pub fairness: Fairness,
    /// How much `status` can show.
    pub inspection: Inspection,
    /// Whether `break_holder` works.
    pub breaking: Breaking,
    /// Whether a leader's value is shown and can be changed.
    pub describing: Describing,
    /// Whether slots of locks are remembered.
    pub remembering: Remembering,
    /// Whether a lock may choose its lease.
    pub leasing: Leasing,
    /// How many tokens an acquisition can reserve.
    pub reserving: Reserving,
    /// Whether an acquisition may be sent right behind a release.
    pub pipelining: Pipelining,
    /// The modes that it has besides the exclusive one. The core refuses the others before anything is sent.
    pub modes: Modes,
    /// What the server accepts as the name of a lock.
    pub names: NameRules,
    /// The longest time that the server keeps what a lost client has left behind: its places in queues and its grants.
    /// `None` when the server keeps it until a client undoes it: then the core repeats a release until the server
    /// answers it or the client ends, whatever the term of the lease.
    pub leftovers_last: Option<Duration>,
}

impl Capabilities {
    /// Creates the capabilities of a backend that excludes, and promises nothing more.
    pub const fn new(backend: &'static str, reach: Reach, names: NameRules) -> Self {
        Self {
            backend,
            reach,
            fencing: Fencing::None,
            fairness: Fairness::Unordered,
            inspection: Inspection::None,
            breaking: Breaking::Unsupported,
            describing: Describing::Unsupported,
            remembering: Remembering::Unsupported,
            leasing: Leasing::PerClient,
            reserving: Reserving::Unsupported,
            pipelining: Pipelining::Unsupported,
            modes: Modes::exclusive(),
            names,
            leftovers_last: None,
        }
    }

    /// Sets what the fencing tokens guarantee.
    #[must_use]
    pub const fn with_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// Sets the order in which waiters get the lock.
    #[must_use]
    pub const fn with_fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// Sets how much `status` can show.
    #[must_use]
    pub const fn with_inspection(mut self, inspection: Inspection) -> Self {
        self.inspection = inspection;
        self
    }

    /// Sets how long leftovers last. An attempt that cannot be undone for that long is left to the server, and so is a
    /// release that is not answered before its lease is over.
    #[must_use]
    pub const fn with_leftovers_gone_after(mut self, longest: Duration) -> Self {
        self.leftovers_last = Some(longest);
        self
    }

    /// Sets whether `break_holder` works.
    #[must_use]
    pub const fn with_breaking(mut self, breaking: Breaking) -> Self {
        self.breaking = breaking;
        self
    }

    /// Sets whether a lock may choose its lease.
    #[must_use]
    pub const fn with_leasing(mut self, leasing: Leasing) -> Self {
        self.leasing = leasing;
        self
    }

    /// Sets how many tokens an acquisition can reserve: [`AcquireRequest::sections`](crate::AcquireRequest::sections) says
    /// how many it wants.
    #[must_use]
    pub const fn with_reserving(mut self, reserving: Reserving) -> Self {
        self.reserving = reserving;
        self
    }

    /// Sets whether an acquisition may be sent right behind a release.
    ///
    /// The server has to carry both out as it would carry out two separate calls: if the release is lost, or fails, or
    /// comes late, then the acquisition queues behind the hold that still stands.
    #[must_use]
    pub const fn with_pipelining(mut self, pipelining: Pipelining) -> Self {
        self.pipelining = pipelining;
        self
    }

    /// Sets whether slots of locks are remembered.
    #[must_use]
    pub const fn with_remembering(mut self, remembering: Remembering) -> Self {
        self.remembering = remembering;
        self
    }

    /// Sets the modes besides the exclusive one.
    #[must_use]
    pub const fn with_modes(mut self, modes: Modes) -> Self {
        self.modes = modes;
        self
    }

    /// Sets whether a leader's value is shown and can be changed.
    #[must_use]
    pub const fn with_describing(mut self, describing: Describing) -> Self {
        self.describing = describing;
        self
    }
}
