//! The client crates whose transactions can take a lock.

use std::future::Future;

use lock_core::Operation;
use lock_sql::{Answer, Failure};
use sqlx::Postgres;

use crate::dialect::Postgres as Dialect;
use crate::session;

/// A transaction that can take a lock: `sqlx::Transaction` of PostgreSQL, and with the cargo feature `tokio-postgres`
/// `tokio_postgres::Transaction`. No other crate can implement it.
pub trait GenericTransaction: Ask {}

/// What this crate needs of a transaction.
pub trait Ask: Send {
    /// Sends statements in one message of the simple protocol, and receives the answer. The first one that fails ends it.
    fn ask(&mut self, statements: String) -> impl Future<Output = Result<Answer, Failure>> + Send;
}

impl GenericTransaction for sqlx::Transaction<'_, Postgres> {}

impl Ask for sqlx::Transaction<'_, Postgres> {
    async fn ask(&mut self, statements: String) -> Result<Answer, Failure> {
        session::ask(self, statements)
            .await
            .map_err(|error| Failure::of::<Dialect>(Operation::Acquire, error))
    }
}
