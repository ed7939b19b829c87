//! Opening a connection, and sending a statement on it.

use std::fmt;

use lock_core::{ErrorKind, LockError, Operation, Secret};
use lock_sql::{Answer, Failure, Row, nonsense};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

use crate::dialect::{MySql, Session, Settings, whole_seconds};
use crate::gate::Manner;
use crate::run::Run;
use crate::server::{Facts, question};
use crate::session_tag::SessionTag;

/// What identifies a connection.
#[derive(Debug, Clone)]
pub(crate) struct SessionId {
    /// The number that the server gave it.
    pub(crate) number: u64,
    pub(crate) tag: SessionTag,
    pub(crate) run: Run,
}

impl fmt::Display for SessionId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "connection {} of {}", self.number, self.run)
    }
}

/// Opens a connection, checks the server, and makes the server keep the connection for a lease of silence. In the first second of a
/// server it waits for the end of that second, because another start within it would have the same numbers.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub(crate) async fn open(settings: &Settings, password: Option<Secret>) -> Result<Session, LockError> {
    // Its `Debug` output contains the password: never print it.
    let mut options = settings.dialect.connect_options.clone();
    if let Some(password) = password {
        options = options.password(password.reveal());
    }
    let making = Box::pin(make(settings, &options));
    let session = settings.in_time(settings.time_to_connect(), Operation::Connect, making).await?;
    if let Some(left) = session.id.run.time_to_wait() {
        settings.clock().sleep_until(settings.clock().now().plus(left)).await;
    } else {
        tracing::warn!(target: "distlock", run = %session.id.run, "the server's clock has gone back behind its start");
    }
    Ok(session)
}

async fn make(settings: &Settings, options: &MySqlConnectOptions) -> Result<Session, LockError> {
    let (clock, lease_seconds) = (settings.clock(), whole_seconds(settings.server.lease));
    let failed = |error| Failure::of::<MySql>(Operation::Connect, error).into_error();
    let mut connection = options.connect().await.map_err(failed)?;
    let about = ask(&mut connection, question()).await.map_err(failed)?;
    let facts =
        Facts::read(&about.rows).ok_or_else(|| nonsense(Operation::Connect, "it does not say what it is"))?;
    facts.check()?;
    if facts.earlier_tag != "0" {
        return Err(unsupported(
            "a proxy between this client and the server shares one of its connections among several clients",
        ));
    }
    let tag = SessionTag::random()?;
    let again = ask(&mut connection, facts.settings(lease_seconds, tag)).await.map_err(failed)?;
    // ProxySQL answers exactly this text itself, with its own number, and also carries out KILL with its own numbers.
    let sent = clock.now();
    let number = ask(&mut connection, "SELECT CONNECTION_ID()".to_owned()).await.map_err(failed)?;
    let round_trip = clock.now().since(sent);
    let cell = |place: usize| again.rows.first().and_then(|row: &Row| row.get(place)?.as_deref());
    let expected = facts.connection.to_string();
    if [cell(0), number.value()] != [Some(&*expected); 2] {
        return Err(unsupported(
            "a proxy between this client and the server spreads statements over its own connections",
        ));
    }
    if cell(1) != Some(&lease_seconds.to_string()) {
        return Err(unsupported(
            "a proxy between this client and the server does not let the client set wait_timeout",
        ));
    }
    if cell(2) != Some("1") {
        return Err(nonsense(Operation::Connect, "it refuses a lock with a new random name"));
    }
    let prepared_after = facts.prepared_after();
    let id = SessionId { number: facts.connection, tag, run: facts.run };
    let own = Manner { prepared_after, ..settings.dialect.manner.starting_with(id.number) };
    Ok(Session { connection, id, own, round_trip })
}

fn unsupported(cause: &'static str) -> LockError {
    LockError::new(ErrorKind::Unsupported, Operation::Connect)
        .because(cause)
        .remedy("connect to the server itself, or through a proxy that passes connections on unchanged")
}

/// Sends statements in one message, and receives the answer.
pub(crate) async fn ask(connection: &mut MySqlConnection, statement: String) -> Result<Answer, sqlx::Error> {
    // As text and in one round trip. The statement contains only plain characters and encoded values.
    let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(connection).await?;
    Ok(Answer { rows: rows.iter().map(read).collect::<Result<_, _>>()?, is_repeated: false })
}

fn read(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    (0..row.len())
        .map(|column| {
            let bytes: Option<Vec<u8>> = row.try_get_unchecked(column)?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        })
        .collect()
}
