//! What a backend can do, as data. The core checks it before it calls the backend; users and tests can read it.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::types::{Mode, NameRules, setters};

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

/// What becomes of the locks when another server takes over, or the server restarts without its latest data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failover {
    /// A lock may be granted again while its holder believes that it has it.
    MayOverlap,
    /// Holds may be lost. Their holders learn of it before others get the locks.
    LosesHolds,
    /// The holds go on.
    KeepsHolds,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Inspection {
    /// Nothing.
    None,
    /// The session of the server that holds the lock, but not which acquisition of that session it is, and nothing that
    /// the holder says about itself; and the waiters, as far as the server shows them.
    Sessions,
    /// As `HolderAndQueue`, but a server that does not let the client see waiters of other users hides them without a word.
    HolderAndOwnQueue,
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
#[allow(clippy::struct_excessive_bools, reason = "each says of one thing whether the backend has it")]
pub struct Capabilities {
    /// The backend's name, as in its URL's scheme.
    pub backend: &'static str,
    /// How far the exclusion reaches.
    pub reach: Reach,
    /// What the fencing tokens guarantee.
    pub fencing: Fencing,
    /// What becomes of the locks when another server takes over.
    pub failover: Failover,
    /// The order in which waiters get the lock.
    pub fairness: Fairness,
    /// How often a waiter asks whether it has the lock; `None` where the server usually tells it.
    pub polls_every: Option<Duration>,
    /// How much `status` can show.
    pub inspection: Inspection,
    /// Whether the server can name the locks that it knows, for [`LockClient::list`](crate::LockClient::list).
    pub listing: bool,
    /// Whether `break_holder` works.
    pub breaking: Breaking,
    /// Whether the status of a lock shows the value of a leader, and the leader can change it.
    pub describing: bool,
    /// Whether the server can remember that a slot of a lock has been used, beyond the end of its user: for the time that is
    /// asked for, by its own clock.
    pub remembering: bool,
    /// Whether a lock may choose its lease.
    pub leasing: Leasing,
    /// How many tokens an acquisition can reserve.
    pub reserving: Reserving,
    /// Whether the server carries out the requests of a client in the order of their first polls, usually because they share a
    /// connection. Then the next waiter of a client acquires the lock right behind the release, in the same round trip;
    /// otherwise when the server has answered the release of the last holder.
    pub pipelining: bool,
    /// Whether a lock can have several shared holders, the read side of read-write locks, and an exclusive hold can become a
    /// shared one. Otherwise all locks are exclusive.
    pub shared: bool,
    /// The limits of semaphores; `None` without semaphores.
    pub permits: Option<PermitLimits>,
    /// What the server accepts as the name of a lock.
    pub names: NameRules,
    /// The longest time that the server keeps what a lost client has left behind: its places in queues and its grants.
    /// `None` when the server keeps it until a client undoes it: then the core repeats a release until the server
    /// answers it or the client ends, whatever the term of the lease.
    pub leftovers_last: Option<Duration>,
    /// How long the backend waits for an answer of the server at most. With it the core [asks](crate::AcquireRequest::asked)
    /// before a wait ends whether the server still has the attempt, early enough for the backend to notice that the server is
    /// silent. `None` when there is no server that could fall silent unnoticed.
    pub answers_within: Option<Duration>,
}

impl Capabilities {
    /// Creates the capabilities of a backend that excludes, and promises nothing more.
    pub const fn new(backend: &'static str, reach: Reach, names: NameRules) -> Self {
        Self {
            backend,
            reach,
            fencing: Fencing::None,
            failover: Failover::MayOverlap,
            fairness: Fairness::Unordered,
            polls_every: None,
            inspection: Inspection::None,
            listing: false,
            breaking: Breaking::Unsupported,
            describing: false,
            remembering: false,
            leasing: Leasing::PerClient,
            reserving: Reserving::Unsupported,
            pipelining: false,
            shared: false,
            permits: None,
            names,
            leftovers_last: None,
            answers_within: None,
        }
    }

    setters! {
        /// Sets what the fencing tokens guarantee.
        with_fencing(fencing: Fencing) { fencing = fencing }

        /// Sets what becomes of the locks when another server takes over.
        with_failover(failover: Failover) { failover = failover }

        /// Sets the order in which waiters get the lock.
        with_fairness(fairness: Fairness) { fairness = fairness }

        /// Declares that a waiter asks, this often.
        with_polling(interval: Duration) { polls_every = Some(interval) }

        /// Sets how much `status` can show.
        with_inspection(inspection: Inspection) { inspection = inspection }

        /// Declares that the locks of the server can be listed.
        with_listing() { listing = true }

        /// Sets how long leftovers last. An attempt that cannot be undone for that long is left to the server, and so is a
        /// release that is not answered before its lease is over.
        with_leftovers_gone_after(longest: Duration) { leftovers_last = Some(longest) }

        /// Sets how long an answer of the server may take.
        with_answers_within(longest: Duration) { answers_within = Some(longest) }

        /// Sets whether `break_holder` works.
        with_breaking(breaking: Breaking) { breaking = breaking }

        /// Sets whether a lock may choose its lease.
        with_leasing(leasing: Leasing) { leasing = leasing }

        /// Sets how many tokens an acquisition can reserve: [`AcquireRequest::sections`](crate::AcquireRequest::sections) says
        /// how many it wants.
        with_reserving(reserving: Reserving) { reserving = reserving }

        /// Declares that an acquisition may be sent right behind a release.
        ///
        /// The server has to carry both out as it would carry out two separate calls: if the release is lost, or fails, or
        /// comes late, then the acquisition queues behind the hold that still stands.
        with_pipelining() { pipelining = true }

        /// Declares that slots of locks are remembered.
        with_remembering() { remembering = true }

        /// Adds shared holders, and with them [`Backend::downgrade`](crate::Backend::downgrade).
        with_shared() { shared = true }

        /// Adds semaphores with these limits.
        with_permits(limits: PermitLimits) { permits = Some(limits) }

        /// Declares that a leader's value is shown and can be changed.
        with_describing() { describing = true }
    }

    /// Returns why a request in this mode is refused, before anything is sent; `None` when the backend has the mode.
    ///
    /// ```
    /// use lock_core::{Capabilities, CharacterSet, Mode, NameRules, Reach};
    ///
    /// let exclusive = Capabilities::new("example", Reach::Network, NameRules::new(CharacterSet::ANY, 200));
    /// assert!(exclusive.refusal(Mode::Shared).is_some()); // the reason, in words
    /// assert_eq!(exclusive.with_shared().refusal(Mode::Shared), None);
    /// ```
    pub fn refusal(&self, mode: Mode) -> Option<Cow<'static, str>> {
        match (mode, self.permits) {
            (Mode::Shared, _) if !self.shared => {
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
