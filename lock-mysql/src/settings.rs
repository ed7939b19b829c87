//! The settings of a client that its other modules need, and opening connections with them.

use std::time::Duration;

use lock_core::{BackendContext, Backoff, LockError, Operation, Password};
use lock_kit::{Endpoint, SharedBackoff};
use sqlx::mysql::MySqlConnectOptions;

use crate::address::connect_options;
use crate::gate::Manner;
use crate::options::{MySqlOptions, TokenSource};
use crate::parts::READER_SLOTS;
use crate::session::Session;

/// The request timeout unless the options set another one.
const LONGEST_REQUEST: Duration = Duration::from_secs(3);

/// The request timeout of what writes a slot.
const LONGEST_WRITE: Duration = Duration::from_secs(5);

/// An attempt to connect to a server that accepts the connection and then says nothing takes at least this long.
const SHORTEST_TIME_TO_CONNECT: Duration = Duration::from_secs(2);

/// The client closes a connection without holds after this time.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

/// The pauses while the server refuses connections.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct Settings {
    backoff: SharedBackoff,
    connect_options: MySqlConnectOptions,
    password: Option<Password>,
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    /// The time between two renewals, and between two checks of a waiter.
    pub(crate) interval: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) fencing: TokenSource,
    pub(crate) manner: Manner,
    pub(crate) prefix: String,
    pub(crate) locks_per_connection: usize,
    pub(crate) max_connections: usize,
}

/// A time as the server counts it, rounded up.
fn whole_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl Settings {
    pub(crate) fn new(context: &BackendContext, options: &MySqlOptions) -> Result<Self, LockError> {
        let interval = context.renewal_interval(options.lease)?;
        let request_timeout = options.request_timeout.unwrap_or(LONGEST_REQUEST).min(interval * 3 / 4);
        let manner = Manner {
            tokens: options.fencing,
            readers: READER_SLOTS,
            first_slot: 0,
            slice: whole_seconds(options.lease),
        };
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Ok(Self {
            backoff: SharedBackoff::new(context.clock().clone(), pauses),
            connect_options: connect_options(options),
            password: options.password.clone(),
            endpoint: options.endpoint.clone(),
            lease: options.lease,
            interval,
            request_timeout,
            fencing: options.fencing,
            manner,
            prefix: options.prefix.clone(),
            locks_per_connection: options.locks_per_connection,
            max_connections: options.max_connections,
        })
    }

    /// Less than the time after which the server closes such a connection.
    pub(crate) fn longest_idle(&self) -> Duration {
        LONGEST_IDLE.min(self.lease / 2)
    }

    /// Opens a connection. After a failure only one caller at a time tries.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt, and the next caller has its turn.
    pub(crate) async fn open(&self, context: &BackendContext) -> Result<Session, LockError> {
        self.backoff.attempt(Box::pin(self.open_now(context))).await
    }

    /// Why the last attempt to open a connection failed, if it did.
    pub(crate) fn failure(&self) -> Option<LockError> {
        self.backoff.failure()
    }

    async fn open_now(&self, context: &BackendContext) -> Result<Session, LockError> {
        let limit = self.time_to_connect();
        let password = context.password(self.password.as_ref(), limit).await?;
        // Its `Debug` output contains the password: never print it.
        let options = match password {
            Some(password) => self.connect_options.clone().password(password.reveal()),
            None => self.connect_options.clone(),
        };
        Session::open(&options, whole_seconds(self.lease), context.clock(), limit).await
    }

    /// How long the server may take to answer. No lease depends on a slot, and its table may have to be made, which waits for the
    /// disk.
    pub(crate) fn time_for(&self, operation: Operation) -> Duration {
        if operation == Operation::Remember { LONGEST_WRITE } else { self.request_timeout }
    }

    /// How long opening a connection may take.
    pub(crate) fn time_to_connect(&self) -> Duration {
        self.request_timeout.max(SHORTEST_TIME_TO_CONNECT)
    }
}
