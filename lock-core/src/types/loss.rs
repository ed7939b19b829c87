//! How a hold ends, and why it is lost.

/// Why a hold was lost, as far as that is known: the reason is best effort, the loss is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// It could not be renewed before its deadline, or reached the greatest length that the client allows.
    #[error("its lease expired")]
    Expired,
    /// What stood for it at the server was deleted.
    #[error("what stood for it was deleted")]
    Deleted,
    /// Someone else has it.
    #[error("someone else has taken it")]
    Taken,
    /// The session that it belonged to has ended.
    #[error("its session was closed")]
    SessionClosed,
    /// This program closed its own client while the lock was held; the server had no part in it.
    #[error("its client was closed while it was held")]
    ClientClosed,
    /// The connection that it belonged to is gone, and the lock with it.
    #[error("the connection that it belonged to is gone")]
    ConnectionLost,
    /// An operator took it away.
    #[error("it was broken by an operator")]
    Broken,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldEnd {
    /// Its owner released it.
    Released,
    /// It was lost.
    Lost(LossReason),
}
