//! How a hold ends, and why it is lost.

/// Why a hold was lost, as far as the client knows. The reason is best effort; the loss is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The hold could not be renewed before its deadline, or reached the longest time that the client allows.
    #[error("its lease expired")]
    Expired,
    /// The server's data for the lock was deleted.
    #[error("what stood for it was deleted")]
    Deleted,
    /// Another client has the lock.
    #[error("another client has taken it")]
    Taken,
    /// The session that the hold belonged to has ended.
    #[error("its session was closed")]
    SessionClosed,
    /// This program closed its own client while the lock was held; the server was not involved.
    #[error("its client was closed while it was held")]
    ClientClosed,
    /// The connection that the hold belonged to is gone, and the lock with it.
    #[error("the connection that it belonged to is gone")]
    ConnectionLost,
    /// An operator took the lock away.
    #[error("it was broken by an operator")]
    Broken,
}

/// How a hold ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldEnd {
    /// The owner released the lock.
    Released,
    /// The hold was lost.
    Lost(LossReason),
}
