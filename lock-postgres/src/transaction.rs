//! A lock inside the user's own transaction.

use std::time::Duration;

use lock_core::{LockError, LockName, Operation};
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::failure::{Failure, explain};
use crate::key::Key;

/// The longest wait that the server understands, in milliseconds.
const LONGEST_LIMIT: u128 = i32::MAX as u128;

/// Begins to take a lock for the rest of a transaction of your own. It excludes every other transaction and client that asks
/// for a lock of this name in the same database, and ends with the transaction: with its commit or rollback, or with its
/// session. There is nothing to release, nothing to renew, and no lease: a session that hangs keeps the lock.
///
/// Whatever the transaction writes happens under the lock, or not at all. So a lock in the same transaction needs no fencing
/// token, unless it protects something outside of the database.
///
/// Take the lock in the first statement of the transaction, at the isolation level `READ COMMITTED`, which is the default. At
/// a higher level the first statement decides what the transaction sees. If that one waits for the lock, the transaction does
/// not see what the earlier owner has written meanwhile.
///
/// The transaction is one of sqlx 0.9.
///
/// ```no_run
/// use std::time::Duration;
///
/// # async fn run(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = pool.begin().await?;
/// let lock = lock_postgres::in_transaction(&mut transaction, "orders/42");
/// if lock.acquire_within(Duration::from_secs(5)).await? {
///     sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *transaction).await?;
///     transaction.commit().await?; // and the lock is free
/// }
/// # Ok(()) }
/// ```
pub fn in_transaction<'t, 'c>(
    transaction: &'t mut Transaction<'c, Postgres>,
    name: &str,
) -> InTransaction<'t, 'c> {
    InTransaction { transaction, name: name.to_owned(), prefix: String::new(), key: None }
}

/// A lock that a transaction is about to take; see [`in_transaction`].
#[must_use = "the lock is only taken by acquire, acquire_within or try_acquire"]
#[derive(Debug)]
pub struct InTransaction<'t, 'c> {
    transaction: &'t mut Transaction<'c, Postgres>,
    name: String,
    prefix: String,
    key: Option<i64>,
}

impl InTransaction<'_, '_> {
    /// Sets the [prefix](crate::PostgresOptions::prefix) of the clients that the lock is shared with.
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Takes the lock with this key instead of that of the name, which then only appears in errors.
    pub fn key(mut self, key: i64) -> Self {
        self.key = Some(key);
        self
    }

    /// Waits until the transaction has the lock.
    ///
    /// # Errors
    /// [`InvalidName`](lock_core::ErrorKind::InvalidName); what the server answers, for example when it has ended a deadlock
    /// or the session. After an error of the server the transaction can only be rolled back.
    ///
    /// # Cancel safety
    /// If the future is dropped, the transaction may get the lock all the same: roll it back.
    pub async fn acquire(self) -> Result<(), LockError> {
        let statement = format!("SELECT pg_advisory_xact_lock({})", self.number()?);
        run(self.transaction, &statement).await.map_err(Failure::into_error)
    }

    /// Waits at most for `limit`, and returns whether the transaction has the lock. If not, the transaction is as it was.
    ///
    /// # Errors
    /// Same as [`InTransaction::acquire`], but the transaction can be continued if its session still exists.
    ///
    /// # Cancel safety
    /// Same as [`InTransaction::acquire`].
    pub async fn acquire_within(self, limit: Duration) -> Result<bool, LockError> {
        if limit.is_zero() {
            return self.try_acquire().await;
        }
        let limit = limit.as_nanos().div_ceil(1_000_000).min(LONGEST_LIMIT);
        let key = self.number()?;
        let statement = format!(
            "SAVEPOINT distlock;\
             SELECT set_config('distlock.limit',current_setting('lock_timeout'),true),set_config('lock_timeout','{limit}ms',true);\
             SELECT pg_advisory_xact_lock({key});\
             SELECT set_config('lock_timeout',current_setting('distlock.limit'),true);\
             RELEASE SAVEPOINT distlock"
        );
        let Err(failure) = run(self.transaction, &statement).await else { return Ok(true) };
        if matches!(failure, Failure::Refused { .. }) {
            // That also frees the lock, if it was granted at the last moment, and restores the limit.
            let back = "ROLLBACK TO SAVEPOINT distlock;RELEASE SAVEPOINT distlock";
            run(self.transaction, back).await.map_err(Failure::into_error)?;
        }
        if failure.is_late() { Ok(false) } else { Err(failure.into_error()) }
    }

    /// Takes the lock if it is free, and returns whether the transaction has it.
    ///
    /// # Errors
    /// Same as [`InTransaction::acquire`].
    ///
    /// # Cancel safety
    /// Same as [`InTransaction::acquire`].
    pub async fn try_acquire(self) -> Result<bool, LockError> {
        let asked = sqlx::query_scalar("SELECT pg_try_advisory_xact_lock($1)").bind(self.number()?.number());
        let asked = asked.fetch_one(&mut **self.transaction);
        asked.await.map_err(|error| explain(Operation::Acquire, error))
    }

    fn number(&self) -> Result<Key, LockError> {
        let name = LockName::new(&self.name)?;
        Ok(self.key.map_or_else(|| Key::of(&self.prefix, name.as_str()), Key::of_number))
    }
}

async fn run(transaction: &mut Transaction<'_, Postgres>, statement: &str) -> Result<(), Failure> {
    let asked = sqlx::raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut **transaction);
    asked.await.map(drop).map_err(|error| Failure::of(Operation::Acquire, error))
}
