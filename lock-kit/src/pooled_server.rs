//! What a pool has to know of its server and of its connections.

use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{AttemptId, BackendContext, Clock, GroupId, LockError};

use crate::pool::Pool;

/// A server on which a lock belongs to a connection and ends with it.
pub trait PooledServer: Send + Sync + Sized + 'static {
    /// A connection, for those that do not drive it.
    type Link: PooledLink;
    /// A connection that was just opened.
    type Session: Send + 'static;

    /// Returns what the backend got from the core.
    fn context(&self) -> &BackendContext;

    /// Returns the limits of the pool.
    fn limits(&self) -> PoolLimits;

    /// Opens a connection.
    ///
    /// # Errors
    /// Why it could not be opened.
    ///
    /// # Cancel safety
    /// Dropping the future closes what is being opened.
    fn open(&self) -> impl Future<Output = Result<Self::Session, LockError>> + Send;

    /// Returns why the last attempt to open a connection failed, if it did.
    fn failure(&self) -> Option<LockError>;

    /// Returns the link of an opened connection, and the task that drives it. The task ends with [`Pool::retire`] or
    /// [`Pool::remove`].
    fn driven(
        pool: &Arc<Pool<Self>>,
        group: GroupId,
        session: Self::Session,
    ) -> (Arc<Self::Link>, impl Future<Output = ()> + Send + 'static);
}

/// A connection that can hold locks. What is sent on it is carried out in order.
pub trait PooledLink: Send + Sync + 'static {
    /// What tells locks apart. A connection never has two of one key.
    type Key: Clone + Eq + Hash + Send;
    /// An attempt's request for a lock.
    type Claim: Clone + Sync;
    /// Who has a lock on the connection, or may have it.
    type Occupant: From<AttemptId> + Send;
    /// What becomes the answer to a request.
    type Answer: Send;

    /// Returns the number of the connection.
    fn group(&self) -> GroupId;

    /// Returns what a claim asks for.
    fn key(claim: &Self::Claim) -> Self::Key;

    /// Returns the attempt that makes a claim.
    fn attempt(claim: &Self::Claim) -> AttemptId;

    /// Sends a request for a lock, if it is free.
    fn take(&self, claim: Self::Claim) -> Self::Answer;

    /// Asks the connection's task to close it.
    fn close(&self);

    /// Returns whether a statement has had no answer for longer than `long`.
    fn is_slow(&self, clock: &Clock, long: Duration) -> bool;

    /// Returns about the shortest time in which the server has lately answered on this connection; zero if no estimate
    /// is needed.
    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns how long a new request will wait for those before it, if each takes this round trip.
    fn queueing_time(&self, round_trip: Duration) -> Duration {
        let _ = round_trip;
        Duration::ZERO
    }
}

/// The limits of a [`Pool`].
#[derive(Debug, Clone, Copy)]
pub struct PoolLimits {
    /// How many connections there may be.
    pub connections: usize,
    /// How many locks may be on one.
    pub locks_per_connection: usize,
    /// How many attempts may wait, each on a connection of its own. One connection stays free for those that do not
    /// wait.
    pub waiting: usize,
    /// How long an attempt looks for a connection with space.
    pub search: Duration,
    /// A connection that has not answered for so long gets no further requests.
    pub silence: Duration,
}
