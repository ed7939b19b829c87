//! The settings of a client that its other modules need, and opening connections with them.

use std::future::Future;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, Backoff, Clock, LockError, Operation};
use lock_kit::{PoolLimits, ServerOptions, SharedBackoff, no_answer};

use crate::dialect::Dialect;
use crate::session::Session;

/// The request timeout of what writes a slot.
const LONGEST_WRITE: Duration = Duration::from_secs(5);

/// An attempt to connect to a server that accepts the connection and then says nothing takes at least this long.
const SHORTEST_TIME_TO_CONNECT: Duration = Duration::from_secs(2);

/// The client closes a connection without holds after this time.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

/// The pauses while the server refuses connections.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// What the options of each dialect have.
#[derive(Debug)]
pub struct Connecting {
    /// The server.
    pub server: ServerOptions,
    /// How many locks may be on one connection.
    pub locks_per_connection: usize,
    /// How many attempts may wait at the server, each on a connection of its own.
    pub max_waiting: usize,
    /// How many connections there may be.
    pub max_connections: usize,
}

/// The settings of a client.
pub struct Settings<D> {
    /// What the backend got from the core.
    pub context: BackendContext,
    /// What only clients of such a server have.
    pub dialect: D,
    /// The server. Its lease is how long it keeps a silent session.
    pub server: ServerOptions,
    /// The time between two renewals, and between two checks of a waiter.
    pub interval: Duration,
    /// How long the server may take to answer a statement that does not wait.
    pub request_timeout: Duration,
    /// The limits of the pool of connections.
    pub limits: PoolLimits,
    backoff: SharedBackoff,
}

impl<D: Dialect> Settings<D> {
    /// Creates the settings from options.
    ///
    /// # Errors
    /// That the lease and the renewal interval do not fit.
    pub fn new(context: BackendContext, dialect: D, options: Connecting) -> Result<Self, LockError> {
        let interval = context.renewal_interval(options.server.lease)?;
        let request_timeout = options.server.timeout_within(interval);
        let limits = PoolLimits {
            connections: options.max_connections,
            locks_per_connection: options.locks_per_connection,
            waiting: options.max_waiting,
            search: request_timeout.max(SHORTEST_TIME_TO_CONNECT) + request_timeout,
            silence: request_timeout / 2,
        };
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Ok(Self {
            backoff: SharedBackoff::new(context.clock().clone(), pauses),
            context,
            dialect,
            server: options.server,
            interval,
            request_timeout,
            limits,
        })
    }

    /// Returns the clock of the client.
    pub fn clock(&self) -> &Clock {
        self.context.clock()
    }

    /// Returns after which time without use the client closes a connection: less than that after which the server does.
    pub fn longest_idle(&self) -> Duration {
        LONGEST_IDLE.min(self.server.lease / 2)
    }

    /// Opens a connection. After a failure only one caller at a time tries.
    ///
    /// # Errors
    /// Why there is none.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt, and the next caller has its turn.
    pub async fn open(&self) -> Result<Session<D>, LockError> {
        self.backoff.attempt(Box::pin(self.open_now())).await
    }

    async fn open_now(&self) -> Result<Session<D>, LockError> {
        let (context, source) = (&self.context, self.server.password.as_ref());
        let password = lock_kit::read_password(context, source, self.time_to_connect()).await?;
        D::open(self, password).await
    }

    /// Returns why the last attempt to open a connection failed, if it did.
    pub fn failure(&self) -> Option<LockError> {
        self.backoff.failure()
    }

    /// Returns how long the server may take to answer. No lease depends on a slot, and its table may have to be made, which waits
    /// for the disk.
    pub fn time_for(&self, operation: Operation) -> Duration {
        if operation == Operation::Remember { LONGEST_WRITE } else { self.request_timeout }
    }

    /// Returns how long opening a connection may take.
    pub fn time_to_connect(&self) -> Duration {
        self.request_timeout.max(SHORTEST_TIME_TO_CONNECT)
    }

    /// Returns how long a statement may take for which a connection may have to be opened.
    pub fn time_to_ask(&self) -> Duration {
        self.time_to_connect() + self.request_timeout
    }

    /// Awaits an action for this long.
    ///
    /// # Errors
    /// Those of the action; after that time, that the server did not answer.
    ///
    /// # Cancel safety
    /// Dropping the future drops the action.
    pub async fn in_time<T>(
        &self,
        limit: Duration,
        operation: Operation,
        action: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let deadline = self.clock().now().plus(limit);
        within(self.clock(), deadline, action).await.unwrap_or_else(|| Err(no_answer(operation)))
    }
}
