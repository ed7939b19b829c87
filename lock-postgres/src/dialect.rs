//! What only clients of PostgreSQL have, of what clients of SQL servers share.
//!
//! A session never has a lock twice, not even a shared one: the server would count it, and grant it without a look at those that
//! wait. Only so many waits of a client are in the server's queues: a long queue costs every user of the server.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    AttemptId, BackendContext, ErrorKind, LockError, LockKind, LockName, Memo, Operation, Secret,
};
use lock_sql::{Answer, Connecting, Dialect, Explained, Row};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::Notify;

use crate::actor::{Actor, Held};
use crate::address::connect_options;
use crate::budget::Budget;
use crate::claim::{Claim, Refusal, Wait, Waiting};
use crate::control::{Seen, seen};
use crate::failure::{self, newer_layout};
use crate::key::Key;
use crate::options::{Keys, Pooler, PostgresOptions, TokenSource};
use crate::server::SessionId;
use crate::session::{self, OfSession};
use crate::session_tag::{self, SessionTag};
use crate::statement;
use crate::table;

const SEARCH_PATH: &str = "search_path";

/// How long a wait lasts at the server: longer than a usual wait. After that the client begins another one.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);

pub(crate) type Settings = lock_sql::Settings<Postgres>;
pub(crate) type Session = lock_sql::Session<Postgres>;
pub(crate) type Control = lock_sql::Control<Postgres>;
pub(crate) type Link = lock_sql::Link<Postgres>;
pub(crate) type Mailbox = lock_sql::Mailbox<Postgres>;
pub(crate) type Command = lock_sql::Command<Postgres>;
pub(crate) type Connection = lock_sql::Connection<Postgres>;
pub(crate) type Pool = lock_sql::Pool<Postgres>;
pub(crate) type OwnLink = lock_sql::OwnLink<Postgres>;
pub(crate) type Started = lock_sql::Started<Postgres>;
pub(crate) type Taken = lock_sql::Taken<Refusal>;
pub(crate) type Client = lock_sql::Client<Postgres>;
pub(crate) type Placed = lock_sql::Placed<Postgres>;

pub(crate) struct Postgres {
    connect_options: PgConnectOptions,
    pub(crate) fencing: TokenSource,
    keys: Keys,
    pooler: Pooler,
    prefix: String,
    schema: String,
    /// What the client may still take of the server's table of locks.
    pub(crate) budget: Arc<Budget>,
    /// Notified when permits have been given back.
    pub(crate) permits: Notify,
}

pub(crate) fn settings(context: BackendContext, options: &PostgresOptions) -> Result<Settings, LockError> {
    let dialect = Postgres {
        connect_options: connect_options(options, context.holder()),
        fencing: options.fencing,
        keys: options.keys,
        pooler: options.pooler,
        prefix: options.server.prefix.clone(),
        schema: options.schema.clone(),
        budget: Budget::new(context.clock().clone()),
        permits: Notify::new(),
    };
    let connecting = Connecting {
        server: options.server.clone(),
        locks_per_connection: options.locks_per_connection,
        max_waiting: options.max_waiting,
        max_connections: options.max_connections,
    };
    Settings::new(context, dialect, connecting)
}

/// The lease in whole milliseconds, as the server counts, rounded up.
pub(crate) fn lease_milliseconds(settings: &Settings) -> u64 {
    u64::try_from(settings.server.lease.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// What the sessions need, in the server's names for it.
///
/// * The lease is `idle_session_timeout`. `statement_timeout` ends what hangs, and is switched off for waits.
/// * The keepalives end the wait of a client whose machine has vanished. They take longer than the lease, so that no
///   partition ends a session before its lease.
/// * Warnings about locks that are not held would only fill the log of the client crate.
/// * A write to a table of tokens sees what was written before it, is on the disk before it is confirmed, and finds the
///   table in one schema, whatever the user's own settings are.
fn of_sessions(settings: &Settings, tag: SessionTag) -> [(&'static str, String); 15] {
    let lease = lease_milliseconds(settings);
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
        (SEARCH_PATH, format!("\"{}\"", settings.dialect.schema.replace('"', "\"\""))),
        (session_tag::SETTING, tag.to_string()),
    ]
}

/// The statements that give a session behind a pooler its settings, which the pooler would not pass on at the login.
pub(crate) fn statements(settings: &Settings, tag: SessionTag) -> String {
    if settings.dialect.pooler == Pooler::None {
        return String::new();
    }
    let settings = of_sessions(settings, tag).map(|(name, value)| match name {
        // A name, which is in quotes already.
        SEARCH_PATH => format!("SET {name}={value};"),
        _ => format!("SET {name}='{value}';"),
    });
    settings.concat()
}

/// What a new session with this tag is opened with.
pub(crate) fn login(settings: &Settings, tag: SessionTag, password: Option<&Secret>) -> PgConnectOptions {
    let mut options = settings.dialect.connect_options.clone();
    if settings.dialect.pooler == Pooler::None {
        options = options.options(of_sessions(settings, tag));
    }
    // Its `Debug` output contains the password: never print it.
    match password {
        Some(password) => options.password(password.reveal()),
        None => options,
    }
}

impl Postgres {
    /// The lock or the semaphore, as the server knows it.
    pub(crate) fn key(&self, name: &LockName, kind: LockKind) -> Result<Key, LockError> {
        let (prefix, text) = (&self.prefix, name.as_str());
        match (kind, self.keys) {
            (LockKind::Semaphore, _) => Ok(Key::of_semaphore(prefix, text)),
            (_, Keys::Hashed) => Ok(Key::of(prefix, text)),
            (_, Keys::Raw) => Key::raw(text).ok_or_else(|| {
                LockError::new(ErrorKind::InvalidName, Operation::Configure)
                    .on(name)
                    .because(
                        "with keys=raw a name is a number from -9223372036854775807 to 9223372036854775807",
                    )
                    .remedy("write the number in decimal digits, or leave out keys=raw")
            }),
        }
    }

    pub(crate) fn has_table(&self) -> bool {
        self.fencing == TokenSource::Table
    }
}

impl Dialect for Postgres {
    const SERVER: &'static str = "a PostgreSQL server";

    type Connection = PgConnection;
    type Id = SessionId;
    type OfSession = OfSession;
    type Key = Key;
    type Claim = Claim;
    type Waiting = Wait;
    type UnderWay = Waiting;
    type Refusal = Refusal;
    type Held = Held;
    type Wait = SessionId;
    type Seen = Seen;

    fn key_of(claim: &Claim) -> Key {
        claim.key
    }

    fn attempt_of(claim: &Claim) -> AttemptId {
        claim.id
    }

    async fn open(settings: &Settings, password: Option<Secret>) -> Result<Session, LockError> {
        let opening = session::open(settings, password.as_ref());
        settings.in_time(settings.time_to_connect(), Operation::Connect, opening).await
    }

    async fn ask(connection: &mut PgConnection, statement: String) -> Result<Answer, sqlx::Error> {
        session::ask(connection, statement).await
    }

    fn drive(
        pool: Arc<Pool>,
        link: Arc<Link>,
        session: Session,
        mailbox: Mailbox,
    ) -> impl Future<Output = ()> + Send + 'static {
        Actor::new(pool, link, session).work(mailbox)
    }

    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
        failure::explain(operation, said)
    }

    fn cancel(id: &SessionId) -> String {
        statement::cancel(*id)
    }

    /// The server usually notices by itself that the client has gone.
    async fn remains(control: &Control, id: &SessionId, calls: u32) -> Result<bool, LockError> {
        let statement =
            if calls == 0 { statement::find(*id) } else { statement::end(*id, Operation::Cancel) };
        Ok(!control.ask(Operation::Cancel, statement).await?.rows.is_empty())
    }

    fn leave(waiting: &Waiting, _: AttemptId) -> bool {
        waiting.stop();
        false
    }

    fn look(waits: &[SessionId]) -> String {
        statement::waits(waits)
    }

    fn seen(_: &SessionId, waits: &[SessionId], answer: &Answer) -> Vec<Seen> {
        waits.iter().map(|session| seen(*session, &answer.rows)).collect()
    }

    fn create_slots() -> String {
        table::create_slots()
    }

    fn remember(&self, memo: &Memo, writer: &str, keep: Duration) -> Result<String, LockError> {
        Ok(table::remember(self.key(memo.name(), LockKind::Lock)?, memo, writer, keep))
    }

    fn check_slot(row: &Row) -> Result<(), LockError> {
        let is_newer = table::is_newer(row.get(3).and_then(Option::as_deref));
        if is_newer { Err(newer_layout(Operation::Remember, table::SLOTS)) } else { Ok(()) }
    }

    fn forget_slots() -> String {
        table::forget_slots()
    }
}
