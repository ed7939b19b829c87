//! The settings of a client that its other modules need, and opening connections with them.

use std::time::Duration;

use lock_core::{BackendContext, Backoff, LockError, Password};
use lock_kit::{Endpoint, SharedBackoff};
use sqlx::postgres::PgConnectOptions;

use crate::address::connect_options;
use crate::options::{Keys, Pooler, PostgresOptions, TokenSource};
use crate::session::Session;
use crate::session_tag::{self, SessionTag};

/// The request timeout unless the options set another one.
const LONGEST_REQUEST: Duration = Duration::from_secs(3);

/// An attempt to connect to a server that accepts the connection and then says nothing takes at least this long.
const SHORTEST_TIME_TO_CONNECT: Duration = Duration::from_secs(2);

/// The client closes a connection without holds after this time.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

const SEARCH_PATH: &str = "search_path";

/// How long a wait lasts at the server: longer than a usual wait. After that the client begins another one.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// The pauses while the server refuses connections.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(crate) struct Settings {
    backoff: SharedBackoff,
    connect_options: PgConnectOptions,
    password: Option<Password>,
    pub(crate) endpoint: Endpoint,
    pub(crate) lease: Duration,
    /// The time between two renewals, and between two checks of a waiter.
    pub(crate) interval: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) fencing: TokenSource,
    pub(crate) keys: Keys,
    pub(crate) pooler: Pooler,
    pub(crate) prefix: String,
    schema: String,
    pub(crate) locks_per_connection: usize,
    pub(crate) max_waiting: usize,
    pub(crate) max_connections: usize,
}

impl Settings {
    pub(crate) fn new(context: &BackendContext, options: &PostgresOptions) -> Result<Self, LockError> {
        let interval = context.renewal_interval(options.lease)?;
        let request_timeout = options.request_timeout.unwrap_or(LONGEST_REQUEST).min(interval * 3 / 4);
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        Ok(Self {
            backoff: SharedBackoff::new(context.clock().clone(), pauses),
            connect_options: connect_options(options, context.holder()),
            password: options.password.clone(),
            endpoint: options.endpoint.clone(),
            lease: options.lease,
            interval,
            request_timeout,
            fencing: options.fencing,
            keys: options.keys,
            pooler: options.pooler,
            prefix: options.prefix.clone(),
            schema: options.schema.clone(),
            locks_per_connection: options.locks_per_connection,
            max_waiting: options.max_waiting,
            max_connections: options.max_connections,
        })
    }

    /// The lease in whole milliseconds, as the server counts, rounded up.
    pub(crate) fn lease_milliseconds(&self) -> u64 {
        u64::try_from(self.lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    /// What the sessions need, in the server's names for it.
    ///
    /// * The lease is `idle_session_timeout`. `statement_timeout` ends what hangs, and is switched off for waits.
    /// * The keepalives end the wait of a client whose machine has vanished. They take longer than the lease, so that no
    ///   partition ends a session before its lease.
    /// * Warnings about locks that are not held would only fill the log of the client crate.
    /// * A write to a table of tokens sees what was written before it, is on the disk before it is confirmed, and finds the
    ///   table in one schema, whatever the user's own settings are.
    fn of_sessions(&self, tag: SessionTag) -> [(&'static str, String); 15] {
        let lease = self.lease_milliseconds();
        let seconds = lease.div_ceil(1000);
        let milliseconds = |number: u64| format!("{number}ms");
        [
            ("idle_session_timeout", milliseconds(lease)),
            ("idle_in_transaction_session_timeout", milliseconds(lease)),
            ("statement_timeout", milliseconds(lease)),
            ("lock_timeout", milliseconds(u64::try_from(LONGEST_WAIT.as_millis()).unwrap_or_default())),
            ("tcp_keepalives_idle", seconds.to_string()),
            ("tcp_keepalives_interval", seconds.div_ceil(4).to_string()),
            ("tcp_keepalives_count", "2".to_owned()),
            ("tcp_user_timeout", milliseconds(lease + lease / 2)),
            ("client_min_messages", "error".to_owned()),
            ("default_transaction_isolation", "read committed".to_owned()),
            ("default_transaction_read_only", "off".to_owned()),
            ("standard_conforming_strings", "on".to_owned()),
            ("synchronous_commit", "on".to_owned()),
            (SEARCH_PATH, format!("\"{}\"", self.schema.replace('"', "\"\""))),
            (session_tag::SETTING, tag.to_string()),
        ]
    }

    /// The statements that give a session behind a pooler its settings, which the pooler would not pass on at the login.
    pub(crate) fn statements(&self, tag: SessionTag) -> String {
        if self.pooler == Pooler::None {
            return String::new();
        }
        let settings = self.of_sessions(tag).map(|(name, value)| match name {
            // A name, which is in quotes already.
            SEARCH_PATH => format!("SET {name}={value};"),
            _ => format!("SET {name}='{value}';"),
        });
        settings.concat()
    }

    /// Less than the time after which the server closes such a connection.
    pub(crate) fn longest_idle(&self) -> Duration {
        LONGEST_IDLE.min(self.lease / 2)
    }

    /// What a new session with this tag is opened with.
    pub(crate) async fn login(
        &self,
        context: &BackendContext,
        tag: SessionTag,
    ) -> Result<PgConnectOptions, LockError> {
        let mut options = self.connect_options.clone();
        if self.pooler == Pooler::None {
            options = options.options(self.of_sessions(tag));
        }
        let password = context.password(self.password.as_ref(), self.time_to_connect()).await?;
        // Its `Debug` output contains the password: never print it.
        Ok(match password {
            Some(password) => options.password(password.reveal()),
            None => options,
        })
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
        let tag = SessionTag::random()?;
        let login = self.login(context, tag).await?;
        Session::open(&login, self, tag, context.clock()).await
    }

    /// How long opening a connection may take.
    pub(crate) fn time_to_connect(&self) -> Duration {
        self.request_timeout.max(SHORTEST_TIME_TO_CONNECT)
    }
}
