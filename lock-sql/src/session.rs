//! One connection to the server, for its owner: sends statements and receives their answers.

use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Clock, Operation};
use sqlx::Connection as _;

use crate::dialect::Dialect;
use crate::failure::Failure;

/// The client drops the connection if closing it takes longer.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// One row of an answer; NULL is `None`.
pub type Row = Vec<Option<String>>;

/// The answer to a message: the rows of all of its statements.
#[derive(Debug, Default, Clone)]
pub struct Answer {
    /// The rows.
    pub rows: Vec<Row>,
    /// Whether an earlier answer to the same statement may have been lost.
    pub is_repeated: bool,
}

impl Answer {
    /// Returns the first column of the first row.
    pub fn value(&self) -> Option<&str> {
        self.rows.first()?.first()?.as_deref()
    }
}

/// A usable connection. After a statement without an answer it is no longer usable.
pub struct Session<D: Dialect> {
    /// The connection.
    pub connection: D::Connection,
    /// What identifies it.
    pub id: D::Id,
    /// What else the dialect knows of it.
    pub own: D::OfSession,
    /// How long an answer took.
    pub round_trip: Duration,
}

impl<D: Dialect> Session<D> {
    /// Carries out the statements of one message.
    ///
    /// # Errors
    /// The failure of the first statement that failed.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the session is no longer usable.
    pub async fn ask(&mut self, operation: Operation, statement: String) -> Result<Answer, Failure> {
        let answer = D::ask(&mut self.connection, statement).await;
        answer.map_err(|error| Failure::of::<D>(operation, error))
    }

    /// Closes the connection properly, or drops it if that takes long. Only for a connection without a statement under way.
    ///
    /// # Cancel safety
    /// Dropping the future drops the connection.
    pub async fn close(self, clock: &Clock) {
        // An error means that it has already ended.
        let _ = within(clock, clock.now().plus(CLOSE_TIMEOUT), self.connection.close()).await;
    }
}
