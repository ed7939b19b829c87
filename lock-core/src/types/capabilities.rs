//! What a backend can do, as data. The core checks it before it calls the backend; users and tests read it.

use std::time::Duration;

use crate::types::name::NameRules;

/// How far the exclusion of a backend reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reach {
    /// The clients of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// Everyone who can reach the server.
    Network,
}

/// What the fencing tokens of a backend are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fencing {
    /// There are none.
    None,
    /// They rise as long as the server keeps its state.
    WhileServerLives,
    /// They rise across restarts of clients and of the server.
    Durable,
}

/// In which order waiters are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fairness {
    /// First come, first served, across all clients.
    Fifo,
    /// In no order that is promised.
    Unordered,
}

/// How much of a lock's state [`LockClient::status`](crate::LockClient::status) can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Inspection {
    /// Nothing.
    None,
    /// By which session of the server the lock is held, whichever acquisition that is, and nothing that its holder says of
    /// itself; who waits for it, as far as the server shows.
    Sessions,
    /// Who holds the lock.
    Holder,
    /// Who holds the lock, and who waits for it, in order.
    HolderAndQueue,
}

/// Whether [`LockClient::break_holder`](crate::LockClient::break_holder) works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Breaking {
    /// A lock cannot be taken away from its holder.
    Unsupported,
    /// A lock can be taken away by ending the session of the server that holds it: also if that session has released it and got
    /// it again since it was looked at.
    Sessions,
    /// A lock can be taken away from its holder, who is told.
    Supported,
}

/// What a backend can do.
///
/// Start from [`Capabilities::new`], which claims nothing, and add with the `with_…` methods what is true.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name, as in its URL's scheme.
    pub backend: &'static str,
    /// How far the exclusion reaches.
    pub reach: Reach,
    /// What the fencing tokens are worth.
    pub fencing: Fencing,
    /// In which order waiters are served.
    pub fairness: Fairness,
    /// How much `status` tells.
    pub inspection: Inspection,
    /// Whether `break_holder` works.
    pub breaking: Breaking,
    /// What the server accepts as a lock's name.
    pub names: NameRules,
    /// How long what a lost client has left behind lasts at the server at most: its places in queues, its grants. `None`
    /// when it lasts until it is undone: the core then repeats a release until it is answered, whatever the term of the
    /// lease, or until the client ends.
    pub leftovers_last: Option<Duration>,
}

impl Capabilities {
    /// A backend that excludes, and promises nothing more.
    pub const fn new(backend: &'static str, reach: Reach, names: NameRules) -> Self {
        Self {
            backend,
            reach,
            fencing: Fencing::None,
            fairness: Fairness::Unordered,
            inspection: Inspection::None,
            breaking: Breaking::Unsupported,
            names,
            leftovers_last: None,
        }
    }

    /// Declares what the fencing tokens are worth.
    #[must_use]
    pub const fn with_fencing(mut self, fencing: Fencing) -> Self {
        self.fencing = fencing;
        self
    }

    /// Declares in which order waiters are served.
    #[must_use]
    pub const fn with_fairness(mut self, fairness: Fairness) -> Self {
        self.fairness = fairness;
        self
    }

    /// Declares how much `status` tells.
    #[must_use]
    pub const fn with_inspection(mut self, inspection: Inspection) -> Self {
        self.inspection = inspection;
        self
    }

    /// Declares how long leftovers last: an attempt that cannot be undone for that long is left to the server, and so is a
    /// release that is not answered before its lease is over.
    #[must_use]
    pub const fn with_leftovers_gone_after(mut self, longest: Duration) -> Self {
        self.leftovers_last = Some(longest);
        self
    }

    /// Declares whether `break_holder` works.
    #[must_use]
    pub const fn with_breaking(mut self, breaking: Breaking) -> Self {
        self.breaking = breaking;
        self
    }
}
