//! A lock inside the user's own transaction.

mod clients;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

use std::fmt;
use std::time::Duration;

use lock_core::{LockError, LockName, Operation};
use lock_sql::{Answer, Failure, Why, nonsense, not_primary};

pub use self::clients::GenericTransaction;
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
/// The transaction is one of sqlx 0.9:
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
///
/// With the cargo feature `tokio-postgres`, it can also be one of tokio-postgres 0.7:
///
/// ```no_run
/// use std::time::Duration;
///
/// # #[cfg(feature = "tokio-postgres")]
/// # async fn run(mut client: tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut transaction = client.transaction().await?;
/// let lock = lock_postgres::in_transaction(&mut transaction, "orders/42");
/// if lock.acquire_within(Duration::from_secs(5)).await? {
///     transaction.execute("UPDATE orders SET paid = true WHERE id = 42", &[]).await?;
///     transaction.commit().await?; // and the lock is free
/// }
/// # Ok(()) }
/// ```
pub fn in_transaction<'t, T: GenericTransaction>(transaction: &'t mut T, name: &str) -> InTransaction<'t, T> {
    InTransaction { transaction, name: name.to_owned(), prefix: String::new(), key: None }
}

/// A lock that a transaction is about to take; see [`in_transaction`].
#[must_use = "the lock is only taken by acquire, acquire_within or try_acquire"]
pub struct InTransaction<'t, T> {
    transaction: &'t mut T,
    name: String,
    prefix: String,
    key: Option<i64>,
}

impl<T: GenericTransaction> InTransaction<'_, T> {
    /// Sets the [prefix](crate::PostgresOptions::server) of the clients that the lock is shared with.
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
    /// [`InvalidName`](lock_core::ErrorKind::InvalidName); [`Unreachable`](lock_core::ErrorKind::Unreachable) if the server is a
    /// standby, whose locks exclude no client of the primary; what the server answers, for example when it has ended a deadlock
    /// or the session. After an error of the server the transaction can only be rolled back.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server goes on waiting, and the transaction may get the lock all the same: roll it back,
    /// which happens when the wait has ended.
    pub async fn acquire(self) -> Result<(), LockError> {
        // Whatever limit the user's role has.
        self.wait("0").await.map(drop)
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
        self.wait(&format!("{limit}ms")).await
    }

    /// Waits with this limit, a value of `lock_timeout`.
    async fn wait(self, limit: &str) -> Result<bool, LockError> {
        let taking = taking("pg_advisory_xact_lock", self.number()?);
        let statements = format!(
            "SELECT set_config('distlock.limit',current_setting('lock_timeout'),true),set_config('lock_timeout','{limit}',true);\
             {taking};\
             SELECT set_config('lock_timeout',current_setting('distlock.limit'),true)"
        );
        let failure = match self.transaction.ask(in_savepoint(&statements)).await {
            Ok(answer) => return checked(answer).map(|_| true),
            Err(failure) => failure,
        };
        if has_left_a_savepoint(&failure) {
            // That also frees the lock, if it was granted at the last moment, and restores the limit.
            let back = "ROLLBACK TO SAVEPOINT distlock;RELEASE SAVEPOINT distlock".to_owned();
            self.transaction.ask(back).await.map_err(Failure::into_error)?;
        }
        if failure.why() == Some(Why::LongWait) { Ok(false) } else { Err(failure.into_error()) }
    }

    /// Takes the lock if it is free, and returns whether the transaction has it.
    ///
    /// # Errors
    /// Same as [`InTransaction::acquire`].
    ///
    /// # Cancel safety
    /// Same as [`InTransaction::acquire`].
    pub async fn try_acquire(self) -> Result<bool, LockError> {
        let statements = in_savepoint(&taking("pg_try_advisory_xact_lock", self.number()?));
        let answer = self.transaction.ask(statements).await.map_err(Failure::into_error)?;
        match checked(answer)?.value() {
            Some("t") => Ok(true),
            Some("f") => Ok(false),
            _ => Err(nonsense(Operation::Acquire, "it does not say whether the lock was free")),
        }
    }

    fn number(&self) -> Result<Key, LockError> {
        let name = LockName::new(&self.name)?;
        Ok(self.key.map_or_else(|| Key::of(&self.prefix, name.as_str()), Key::of_number))
    }
}

impl<T> fmt::Debug for InTransaction<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { transaction: _, name, prefix, key } = self;
        let mut shown = formatter.debug_struct("InTransaction");
        shown.field("name", name).field("prefix", prefix).field("key", key).finish_non_exhaustive()
    }
}

/// The statement that calls a function of the server, and answers NULL at a standby.
fn taking(function: &str, key: Key) -> String {
    format!("SELECT CASE WHEN NOT pg_is_in_recovery() THEN {function}({key}) END")
}

/// Statements that the server refuses without a transaction, in which a lock would end at once.
fn in_savepoint(statements: &str) -> String {
    format!("SAVEPOINT distlock;{statements};RELEASE SAVEPOINT distlock")
}

/// Whether a statement failed after a first one that had made a savepoint.
fn has_left_a_savepoint(failure: &Failure) -> bool {
    failure.why().is_some_and(|why| why != Why::NoTransaction)
}

/// Refuses the answer of a standby. No other value of an answer is NULL.
fn checked(answer: Answer) -> Result<Answer, LockError> {
    if answer.rows.iter().flatten().any(Option::is_none) {
        return Err(not_primary(Operation::Acquire));
    }
    Ok(answer)
}
