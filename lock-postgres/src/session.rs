//! Opening a connection, and sending a message on it.

use std::collections::HashSet;

use lock_core::{LockError, Operation, Secret};
use lock_sql::{Answer, Failure, Row, nonsense};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Row as _};

use crate::dialect::{Postgres, Session, Settings, lease_milliseconds, login, statements};
use crate::key::Key;
use crate::options::Pooler;
use crate::prepared::Prepared;
use crate::server::{Facts, SessionId, question};
use crate::session_tag::SessionTag;

/// What a client knows of its own session.
pub(crate) struct OfSession {
    pub(crate) prepared: Prepared,
    pub(crate) tag: SessionTag,
    /// How many entries the server promises in its table of locks.
    pub(crate) capacity: u64,
    /// The locks whose rows in the table are about this session, perhaps about an earlier hold of it.
    pub(crate) recorded: HashSet<Key>,
    /// Whether statements have their limit, which a wait switches off. If a wait fails, the server takes that back.
    pub(crate) is_limited: bool,
}

/// Opens a connection, and checks the server and the settings of the session.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub(crate) async fn open(settings: &Settings, password: Option<&Secret>) -> Result<Session, LockError> {
    let failed = |error| Failure::of::<Postgres>(Operation::Connect, error).into_error();
    let tag = SessionTag::random()?;
    let mut connection = login(settings, tag, password).connect().await.map_err(failed)?;
    let question = question(&statements(settings, tag), tag);
    let sent = settings.clock().now();
    let about = ask(&mut connection, question).await.map_err(failed)?;
    let round_trip = settings.clock().now().since(sent);
    let facts =
        Facts::read(&about.rows).ok_or_else(|| nonsense(Operation::Connect, "it does not say what it is"))?;
    facts.check(lease_milliseconds(settings))?;
    if let Some(statement) = facts.newer_settings() {
        ask(&mut connection, statement).await.map_err(failed)?;
    }
    let own = OfSession {
        prepared: Prepared::default(),
        tag,
        capacity: facts.capacity,
        recorded: HashSet::new(),
        is_limited: true,
    };
    let shows = (settings.dialect.pooler == Pooler::Session).then_some(tag);
    Ok(Session { connection, id: SessionId { shows, ..facts.id }, own, round_trip })
}

/// Sends one message of the simple protocol, and receives the answer. It arrives whole or not at all. A message of the
/// extended protocol that is cut off before its end would switch the lease off for good.
pub(crate) async fn ask(connection: &mut PgConnection, statement: String) -> Result<Answer, sqlx::Error> {
    // The statement contains only numbers and encoded values.
    let rows = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_all(connection).await?;
    Ok(Answer { rows: rows.iter().map(read).collect::<Result<_, _>>()?, is_repeated: false })
}

fn read(row: &PgRow) -> Result<Row, sqlx::Error> {
    (0..row.len()).map(|column| row.try_get_unchecked(column)).collect()
}
