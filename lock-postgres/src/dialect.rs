//! What only clients of PostgreSQL have, of what clients of SQL servers share.
//!
//! A session never has a lock twice, not even a shared one: the server would count it, and grant it without a look at those that
//! wait. Only so many waits of a client are in the server's queues: a long queue costs every user of the server.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{
    BackendContext, Breaking, Capabilities, CharacterSet, ErrorKind, Fairness, Fencing, Inspection,
    LockError, LockKind, LockName, Mode, NameRules, Operation, Participant, PermitLimits, PhysicalName,
    Reach, Reserving, Secret,
};
use lock_kit::ClientRecord;
use lock_sql::{
    Answer, Connecting, Dialect, Explained, Failure, Listed, Seen, Waiting, create_if_missing, newer_layout,
};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::Notify;

use crate::address::connect_options;
use crate::budget::Budget;
use crate::holder_lookup::HolderLookup;
use crate::key::Key;
use crate::options::{Keys, Pooler, PostgresOptions, TokenSource};
use crate::permits::MOST_PERMITS;
use crate::server::SessionId;
use crate::session::{self, OfSession};
use crate::session_tag::{self, SessionTag};
use crate::snapshot_monitor::SnapshotMonitor;
use crate::{failure, hold, inspection, pg_locks, statement, table};

const SEARCH_PATH: &str = "search_path";

/// How long a wait lasts at the server: longer than a usual wait. After that the client begins another one.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_hours(24);

pub(crate) type Settings = lock_sql::Settings<Postgres>;
pub(crate) type Session = lock_sql::Session<Postgres>;
pub(crate) type Control = lock_sql::Control<Postgres>;
pub(crate) type Connection = lock_sql::Connection<Postgres>;
pub(crate) type Client = lock_sql::Client<Postgres>;
pub(crate) type Claim = lock_sql::Claim<Key>;
pub(crate) type Held = lock_sql::Held<hold::Hold>;

pub(crate) struct Postgres {
    connect_options: PgConnectOptions,
    pub(crate) fencing: TokenSource,
    keys: Keys,
    pub(crate) pooler: Pooler,
    prefix: String,
    schema: String,
    /// What the client may still take of the server's table of locks.
    pub(crate) budget: Arc<Budget>,
    /// Notified when permits have been given back.
    pub(crate) permits: Notify,
    holder_lookup: HolderLookup,
    snapshot_monitor: Arc<SnapshotMonitor>,
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
        holder_lookup: HolderLookup::default(),
        snapshot_monitor: Arc::default(),
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

/// The statements that give a session behind a pooler its settings, which the pooler would not pass on at the login, and show its tag.
pub(crate) fn statements(settings: &Settings, tag: SessionTag) -> String {
    if settings.dialect.pooler == Pooler::None {
        return String::new();
    }
    let settings = of_sessions(settings, tag).map(|(name, value)| match name {
        // A name, which is in quotes already.
        SEARCH_PATH => format!("SET {name}={value};"),
        _ => format!("SET {name}='{value}';"),
    });
    format!("{}{};", settings.concat(), tag.show())
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

const BACKEND: &str = "postgres";

/// The most permits of a semaphore.
const MOST: NonZeroU32 = NonZeroU32::MIN.saturating_add(MOST_PERMITS - 1);

/// The most holds of one grant.
const MOST_SECTIONS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// The same with tokens of a table. They follow the server's clock, and a hundred last for 100 µs. The statements of one hold take longer, so
/// that the tokens of holds in a row do not get ahead of the clock.
const MOST_OF_TABLE: NonZeroU32 = NonZeroU32::new(100).unwrap();

pub(crate) fn capabilities(options: &PostgresOptions) -> Capabilities {
    // The server gets a key of each name.
    let names = NameRules::new(CharacterSet::ANY, LockName::MAX_LENGTH);
    let capabilities = Capabilities::new(BACKEND, Reach::Network, names)
        .with_fairness(Fairness::Fifo)
        .with_answers_within(options.server.longest_request())
        .with_leftovers_gone_after(LONGEST_WAIT + options.server.lease)
        .with_inspection(Inspection::Sessions)
        .with_breaking(Breaking::Sessions)
        .with_remembering()
        .with_shared()
        .with_permits(PermitLimits::new(MOST, MOST));
    match options.fencing {
        TokenSource::Clock => capabilities.with_fencing(Fencing::WhileServerLives).with_reserving(
            Reserving::Refused("they are its clock; choose fencing=sequence or fencing=table"),
        ),
        TokenSource::Sequence => {
            capabilities.with_fencing(Fencing::Durable).with_reserving(Reserving::AtMost(MOST_SECTIONS))
        }
        TokenSource::Table => capabilities
            .with_fencing(Fencing::Durable)
            .with_reserving(Reserving::AtMost(MOST_OF_TABLE))
            .with_inspection(Inspection::HolderAndQueue)
            .with_listing()
            .with_describing(),
        TokenSource::None => capabilities.with_reserving(Reserving::AtMost(MOST_SECTIONS)),
    }
}

impl Postgres {
    pub(crate) fn has_table(&self) -> bool {
        self.fencing == TokenSource::Table
    }
}

impl Dialect for Postgres {
    const SERVER: &'static str = "a PostgreSQL server";
    const CONNECTIONS: &'static str = "/*distlock connect*/SELECT sum(numbackends)::text,(current_setting('max_connections')::int\
                                       -current_setting('superuser_reserved_connections')::int\
                                       -coalesce(current_setting('reserved_connections',true)::int,0))::text FROM pg_stat_database";
    const PING: &'static str = "/*distlock ping*/SELECT pg_is_in_recovery()::text";
    /// Those who pass are told from those who wait there: it tries until the server would have to have answered.
    const TRIES_AT_A_GATE: u32 = u32::MAX;
    const NAMES_HOLDERS_LATER: bool = true;

    type Connection = PgConnection;
    type Id = SessionId;
    type OfSession = OfSession;
    type Key = Key;

    fn key(&self, name: &LockName, _: &PhysicalName, kind: LockKind) -> Result<Key, LockError> {
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

    fn is_recorded(&self, mode: Mode) -> bool {
        self.has_table() && mode == Mode::Exclusive
    }

    async fn open(settings: &Settings, password: Option<Secret>) -> Result<Session, LockError> {
        let opening = session::open(settings, password.as_ref());
        settings.in_time(settings.time_to_connect(), Operation::Connect, opening).await
    }

    /// What tokens come from.
    async fn prepare(settings: &Settings, session: &mut Session) -> Result<(), LockError> {
        let dialect = &settings.dialect;
        let Some([probe, create]) = statement::probe_and_create(dialect.fencing) else { return Ok(()) };
        let description = create_if_missing(session, probe, create).await.map_err(Failure::into_error)?;
        if dialect.has_table() && table::is_newer(description.value()) {
            return Err(newer_layout(Operation::Connect, table::TOKENS));
        }
        Ok(())
    }

    async fn ask(connection: &mut PgConnection, statement: String) -> Result<Answer, sqlx::Error> {
        session::ask(connection, statement).await
    }

    fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
        failure::explain(operation, said)
    }

    fn is_primary(answer: &str) -> bool {
        answer == "false"
    }

    fn begins_to_wait(&self, control: &Arc<Control>, session: &SessionId, waiting: &Arc<Waiting>) {
        self.snapshot_monitor.add(control, *session, waiting);
    }

    async fn holder_of(client: &Client, claim: &Claim) -> Option<Participant> {
        if claim.key.kind() == LockKind::Semaphore {
            return None;
        }
        client.settings.dialect.holder_lookup.holder(client, claim.key).await
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

    fn look(_: &Key, id: &SessionId) -> String {
        statement::wait_of(*id)
    }

    fn seen(_: &SessionId, _: &SessionId, answer: &Answer) -> Seen {
        match answer.rows.first() {
            None => Seen::Gone,
            Some(_) => match answer.value() {
                Some("advisory") => Seen::Waiting,
                Some("active") => Seen::Active,
                _ => Seen::Idle,
            },
        }
    }

    fn list(&self) -> Option<String> {
        self.has_table().then(pg_locks::all)
    }

    fn listed(&self, _: &SessionId, answer: Answer, names: NameRules) -> Vec<Listed> {
        inspection::listed(self, answer, names)
    }

    fn describe(claim: &Claim, session: &SessionId, holder: &ClientRecord) -> String {
        table::update(claim, *session, holder)
    }
}
