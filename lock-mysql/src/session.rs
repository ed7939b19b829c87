//! One connection to the server, as whoever owns it sees it: statements that are answered, or not.

use std::fmt;
use std::time::Duration;

use lock_core::{Clock, ErrorKind, LockError, Moment, Operation};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Row as _};

use crate::mark::Mark;
use crate::run::Run;
use crate::server::{Facts, question};
use crate::trouble::{Trouble, no_answer, nonsense};

/// A server that does not take a farewell is left without one.
const LONGEST_FAREWELL: Duration = Duration::from_millis(500);

/// One row of an answer; NULL is `None`.
pub(crate) type Row = Vec<Option<String>>;

/// What a statement has answered.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) rows: Vec<Row>,
    pub(crate) last_insert_id: u64,
    /// The run of the server that has answered.
    pub(crate) run: Option<Run>,
}

impl Answer {
    /// The first column of the first row.
    pub(crate) fn value(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }
}

/// A connection that is in order. After a statement that was not answered it is of no more use.
pub(crate) struct Session {
    connection: MySqlConnection,
    /// The number that the server gave it.
    pub(crate) number: u64,
    pub(crate) mark: Mark,
    pub(crate) run: Run,
    /// How long an answer took.
    pub(crate) round_trip: Duration,
}

impl Session {
    /// Opens a connection, looks at the server, and has it keep the connection for `lease_seconds` of silence. The first second of
    /// a server is waited for, because another start within it would have the same numbers.
    ///
    /// # Cancel safety
    /// Dropping it closes the connection.
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
        let failed = |error| crate::trouble::explain(Operation::Connect, error);
        let mut connection = options.connect().await.map_err(failed)?;
        let about = ask(&mut connection, question()).await.map_err(failed)?;
        let facts = Facts::read(&about.rows)
            .ok_or_else(|| nonsense(Operation::Connect, "it does not say what it is"))?;
        facts.check()?;
        if facts.is_marked() {
            return Err(unsupported(
                "what stands between this client and the server gives one connection of it to several clients",
            ));
        }
        let mark = Mark::random()?;
        let again = ask(&mut connection, facts.settings(lease_seconds, mark)).await.map_err(failed)?;
        // ProxySQL answers exactly this text itself, with its own number, and carries out KILL with its own numbers.
        let sent = clock.now();
        let number = ask(&mut connection, "SELECT CONNECTION_ID()".to_owned()).await.map_err(failed)?;
        let round_trip = clock.now().since(sent);
        let numbers =
            [again.rows.first().and_then(|row| row.first()), number.rows.first().and_then(|row| row.first())];
        let expected = Some(facts.connection.to_string());
        if numbers != [Some(&expected); 2] {
            return Err(unsupported(
                "what stands between this client and the server has connections of its own, and mixes them",
            ));
        }
        if again.rows.first().and_then(|row| row.get(1)) != Some(&Some(lease_seconds.to_string())) {
            return Err(unsupported(
                "what stands between this client and the server does not let wait_timeout be set",
            ));
        }
        if again.rows.first().and_then(|row| row.get(2)) != Some(&Some("1".to_owned())) {
            return Err(nonsense(
                Operation::Connect,
                "it refuses a lock whose name was made up a moment ago",
            ));
        }
        Ok(Self { connection, number: facts.connection, mark, run: facts.run, round_trip })
    }

    /// Has a statement carried out.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the session is of no more use.
    pub(crate) async fn ask(&mut self, operation: Operation, statement: String) -> Result<Answer, Trouble> {
        let answer = ask(&mut self.connection, statement).await;
        let answer = answer.map_err(|error| Trouble::of(operation, error))?;
        Ok(Answer { run: Some(self.run.clone()), ..answer })
    }

    /// Ends the connection in good order, or by dropping it when that takes long. Only when nothing is under way on it.
    pub(crate) async fn close(self) {
        // An error says that it has ended already.
        let _ = tokio::time::timeout(LONGEST_FAREWELL, self.connection.close()).await;
    }
}

fn unsupported(cause: &'static str) -> LockError {
    LockError::new(ErrorKind::Unsupported, Operation::Connect)
        .because(cause)
        .remedy("connect to the server itself, or through something that passes connections on as they are")
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
    // As text and in one round trip. What stands in the statement is made of plain characters, or encoded.
    let query = sqlx::raw_sql(AssertSqlSafe(statement));
    let mut answers = sqlx::Executor::fetch_many(connection, query);
    let mut answer = Answer::default();
    while let Some(next) = next(&mut answers).await {
        match next? {
            Either::Left(done) => answer.last_insert_id = done.last_insert_id(),
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

/// `future`, if it completes before `deadline`.
pub(crate) async fn within<T>(clock: &Clock, deadline: Moment, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = clock.sleep_until(deadline) => None,
    }
}
