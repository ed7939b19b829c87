//! One connection to the server, for its owner: sends statements and receives their answers.

use std::fmt;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Clock, ErrorKind, LockError, Operation};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Row as _};

use crate::failure::{Failure, no_answer, nonsense};
use crate::run::Run;
use crate::server::{Facts, question};
use crate::session_tag::SessionTag;

/// The client drops the connection if closing it takes longer.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// One row of an answer; NULL is `None`.
pub(crate) type Row = Vec<Option<String>>;

/// The answer to a statement.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    /// Of the last statement that has one.
    pub(crate) last_insert_id: u64,
    /// The run of the server that answered.
    pub(crate) run: Option<Run>,
}

impl Answer {
    /// The first column of the first row.
    pub(crate) fn value(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }
}

/// A usable connection. After a statement without an answer it is no longer usable.
pub(crate) struct Session {
    connection: MySqlConnection,
    /// The number that the server gave it.
    pub(crate) number: u64,
    pub(crate) tag: SessionTag,
    pub(crate) run: Run,
    /// How long an answer took.
    pub(crate) round_trip: Duration,
}

impl Session {
    /// Opens a connection, checks the server, and makes the server keep the connection for `lease_seconds` of silence. In the first
    /// second of a server it waits for the end of that second, because another start within it would have the same numbers.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn open(
        options: &MySqlConnectOptions,
        lease_seconds: u64,
        clock: &Clock,
        limit: Duration,
    ) -> Result<Self, LockError> {
        let session = within(clock, clock.now().plus(limit), Self::make(options, lease_seconds, clock))
            .await
            .unwrap_or_else(|| Err(no_answer(Operation::Connect)))?;
        if let Some(left) = session.run.time_to_wait() {
            clock.sleep_until(clock.now().plus(left)).await;
        } else {
            tracing::warn!(target: "distlock", run = %session.run, "the server's clock has gone back behind its start");
        }
        Ok(session)
    }

    async fn make(
        options: &MySqlConnectOptions,
        lease_seconds: u64,
        clock: &Clock,
    ) -> Result<Self, LockError> {
        let failed = |error| crate::failure::explain(Operation::Connect, error);
        let mut connection = options.connect().await.map_err(failed)?;
        let about = ask(&mut connection, question()).await.map_err(failed)?;
        let facts = Facts::read(&about.rows)
            .ok_or_else(|| nonsense(Operation::Connect, "it does not say what it is"))?;
        facts.check()?;
        if facts.is_tagged() {
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
        let numbers =
            [again.rows.first().and_then(|row| row.first()), number.rows.first().and_then(|row| row.first())];
        let expected = Some(facts.connection.to_string());
        if numbers != [Some(&expected); 2] {
            return Err(unsupported(
                "a proxy between this client and the server spreads statements over its own connections",
            ));
        }
        if again.rows.first().and_then(|row| row.get(1)) != Some(&Some(lease_seconds.to_string())) {
            return Err(unsupported(
                "a proxy between this client and the server does not let the client set wait_timeout",
            ));
        }
        if again.rows.first().and_then(|row| row.get(2)) != Some(&Some("1".to_owned())) {
            return Err(nonsense(Operation::Connect, "it refuses a lock with a new random name"));
        }
        Ok(Self { connection, number: facts.connection, tag, run: facts.run, round_trip })
    }

    /// Carries out a statement.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the session is no longer usable.
    pub(crate) async fn ask(&mut self, operation: Operation, statement: String) -> Result<Answer, Failure> {
        let answer = ask(&mut self.connection, statement).await;
        let answer = answer.map_err(|error| Failure::of(operation, error))?;
        Ok(Answer { run: Some(self.run.clone()), ..answer })
    }

    /// Closes the connection properly, or drops it if that takes long. Only for a connection without a statement under way.
    pub(crate) async fn close(self, clock: &Clock) {
        // An error means that it has already ended.
        let _ = within(clock, clock.now().plus(CLOSE_TIMEOUT), self.connection.close()).await;
    }
}

fn unsupported(cause: &'static str) -> LockError {
    LockError::new(ErrorKind::Unsupported, Operation::Connect)
        .because(cause)
        .remedy("connect to the server itself, or through a proxy that passes connections on unchanged")
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Session")
            .field("number", &self.number)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

async fn ask(connection: &mut MySqlConnection, statement: String) -> Result<Answer, sqlx::Error> {
    // As text and in one round trip. The statement contains only plain characters and encoded values.
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    let mut answers = sqlx::Executor::fetch_many(connection, query);
    let mut answer = Answer::default();
    while let Some(next) = next(&mut answers).await {
        match next? {
            Either::Left(done) if done.last_insert_id() != 0 => answer.last_insert_id = done.last_insert_id(),
            Either::Left(_) => {}
            Either::Right(row) => answer.rows.push(read(&row)?),
        }
    }
    Ok(answer)
}

/// The next item of a stream.
async fn next<S: futures_core::Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
    std::future::poll_fn(|context| std::pin::Pin::new(&mut *stream).poll_next(context)).await
}

fn read(row: &MySqlRow) -> Result<Row, sqlx::Error> {
    (0..row.len())
        .map(|column| {
            let bytes: Option<Vec<u8>> = row.try_get_unchecked(column)?;
            Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        })
        .collect()
}
