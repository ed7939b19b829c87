//! One connection to the server, for its owner: sends statements and receives their answers.

use std::fmt;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Clock, LockError, Operation};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Row as _};

use crate::failure::{Failure, explain, no_answer, nonsense};
use crate::prepared::Prepared;
use crate::server::{Facts, SessionId, question};
use crate::session_tag::SessionTag;
use crate::settings::Settings;

/// The client drops the connection if closing it takes longer.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// One row of an answer; NULL is `None`.
pub(crate) type Row = Vec<Option<String>>;

/// The answer to a message: the rows of all of its statements.
#[derive(Debug, Default)]
pub struct Answer {
    pub(crate) rows: Vec<Row>,
    /// Whether an earlier answer to the same statement may have been lost.
    pub(crate) is_repeated: bool,
}

impl Answer {
    /// The first column of the first row.
    pub(crate) fn value(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }
}

/// A usable connection. After a statement without an answer it is no longer usable.
pub(crate) struct Session {
    connection: PgConnection,
    pub(crate) prepared: Prepared,
    pub(crate) id: SessionId,
    pub(crate) tag: SessionTag,
    /// How many entries the server promises in its table of locks.
    pub(crate) capacity: u64,
}

impl Session {
    /// Opens a connection, and checks the server and the settings of the session.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn open(
        login: &PgConnectOptions,
        settings: &Settings,
        tag: SessionTag,
        clock: &Clock,
    ) -> Result<Self, LockError> {
        let made = Self::make(login, settings, tag);
        within(clock, clock.now().plus(settings.time_to_connect()), made)
            .await
            .unwrap_or_else(|| Err(no_answer(Operation::Connect)))
    }

    async fn make(login: &PgConnectOptions, settings: &Settings, tag: SessionTag) -> Result<Self, LockError> {
        let failed = |error| explain(Operation::Connect, error);
        let mut connection = login.connect().await.map_err(failed)?;
        let question = question(&settings.statements(tag), tag);
        let about = ask(&mut connection, question).await.map_err(failed)?;
        let facts = Facts::read(&about.rows)
            .ok_or_else(|| nonsense(Operation::Connect, "it does not say what it is"))?;
        facts.check(settings.lease_milliseconds())?;
        if let Some(statement) = facts.newer_settings() {
            ask(&mut connection, statement).await.map_err(failed)?;
        }
        Ok(Self { connection, prepared: Prepared::default(), id: facts.id, tag, capacity: facts.capacity })
    }

    /// Carries out the statements of one message.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the session is no longer usable.
    pub(crate) async fn ask(&mut self, operation: Operation, statement: String) -> Result<Answer, Failure> {
        ask(&mut self.connection, statement).await.map_err(|error| Failure::of(operation, error))
    }

    /// Closes the connection properly, or drops it if that takes long. Only for a connection without a statement under way.
    pub(crate) async fn close(self, clock: &Clock) {
        // An error means that it has already ended.
        let _ = within(clock, clock.now().plus(CLOSE_TIMEOUT), self.connection.close()).await;
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Sends one message of the simple protocol, and receives the answer. It arrives whole or not at all. A message of the
/// extended protocol that is cut off before its end would switch the lease off for good.
pub(crate) async fn ask(connection: &mut PgConnection, statement: String) -> Result<Answer, sqlx::Error> {
    // The statement contains only numbers and encoded values.
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    let mut answers = sqlx::Executor::fetch_many(connection, query);
    let mut answer = Answer::default();
    while let Some(next) = next(&mut answers).await {
        if let Either::Right(row) = next? {
            answer.rows.push(read(&row)?);
        }
    }
    Ok(answer)
}

/// The next item of a stream.
async fn next<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *stream).poll_next(context)).await
}

fn read(row: &PgRow) -> Result<Row, sqlx::Error> {
    (0..row.len()).map(|column| row.try_get_unchecked(column)).collect()
}
