//! Failures of statements: why a statement failed, and the error that explains it to the user.

use std::io;

use lock_core::{ErrorKind, LockError, Operation};
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// A statement was cancelled.
const CANCELLED: &str = "57014";

/// A wait has reached `lock_timeout`.
const LONG_WAIT: &str = "55P03";

const NO_SUCH_TABLE: &str = "42P01";

/// The server has undone a statement because of others.
const CONFLICTS: [&str; 2] = ["40001", "40P01"];

const DENIED: &str = "42501";

/// There is no transaction, or it has failed before.
const NO_TRANSACTION: [&str; 2] = ["25P01", "25P02"];

const POOLER_REMEDY: &str =
    "connect to the server itself, or through a pooler in session mode with the option pooler=session";

const LOCK_TABLE_REMEDY: &str = "raise max_locks_per_transaction at the server, or hold fewer locks";

/// Why the server did not carry out a statement completely.
#[derive(Debug)]
pub enum Failure {
    /// The server answered with an error; the connection is in order.
    Refused { code: String, error: LockError },
    /// The connection is no longer usable, and the outcome of the statement is unknown.
    Broken(LockError),
}

impl Failure {
    pub(crate) fn of(operation: Operation, error: sqlx::Error) -> Self {
        match said(&error) {
            Some(said) if !is_last_word(said) => {
                let code = said.code().to_owned();
                Self::Refused { code, error: explain(operation, error) }
            }
            _ => Self::Broken(explain(operation, error)),
        }
    }

    /// The client does not want the rest of the answer.
    pub(crate) fn stopped(operation: Operation) -> Self {
        Self::Refused { code: CANCELLED.to_owned(), error: gone(operation) }
    }

    /// The client refuses what the server could carry out.
    pub(crate) fn refusal(error: LockError) -> Self {
        Self::Refused { code: String::new(), error }
    }

    /// The server did not answer in time.
    pub(crate) fn silence(operation: Operation) -> Self {
        Self::Broken(no_answer(operation))
    }

    /// Whether the statement ended early, for no fault of its own.
    pub(crate) fn is_interruption(&self) -> bool {
        self.has_code(&[CANCELLED, LONG_WAIT])
    }

    /// Whether the wait has reached the limit that the statement set.
    pub(crate) fn is_late(&self) -> bool {
        self.has_code(&[LONG_WAIT])
    }

    /// The table or sequence does not exist, or the user may not use it.
    pub(crate) fn is_about_a_table(&self) -> bool {
        self.has_code(&[NO_SUCH_TABLE, DENIED])
    }

    pub(crate) fn is_missing_table(&self) -> bool {
        self.has_code(&[NO_SUCH_TABLE])
    }

    pub(crate) fn is_conflict(&self) -> bool {
        self.has_code(&CONFLICTS)
    }

    /// Whether a statement failed after a first one that had made a savepoint.
    pub(crate) fn has_left_a_savepoint(&self) -> bool {
        matches!(self, Self::Refused { .. }) && !self.has_code(&NO_TRANSACTION)
    }

    fn has_code(&self, codes: &[&str]) -> bool {
        matches!(self, Self::Refused { code, .. } if codes.contains(&code.as_str()))
    }

    pub(crate) fn into_error(self) -> LockError {
        match self {
            Self::Refused { error, .. } | Self::Broken(error) => error,
        }
    }
}

fn said(error: &sqlx::Error) -> Option<&PgDatabaseError> {
    error.as_database_error()?.try_downcast_ref::<PgDatabaseError>()
}

/// Whether the server closes the connection after this error.
fn is_last_word(said: &PgDatabaseError) -> bool {
    matches!(said.severity(), PgSeverity::Fatal | PgSeverity::Panic)
}

/// The error for users, without secrets.
pub(crate) fn explain(operation: Operation, error: sqlx::Error) -> LockError {
    let Some(said) = said(&error) else { return explain_connection(operation, error) };
    explain_code(operation, said.code(), said.message()).caused_by(error)
}

/// The error for what the server says.
pub(crate) fn explain_code(operation: Operation, code: &str, said: &str) -> LockError {
    let server = |kind| LockError::new(kind, operation).because(format!("the server says {code}: {said}"));
    let is_startup = operation == Operation::Connect;
    match code {
        "28000" | "28P01" => server(ErrorKind::Denied)
            .remedy("check user, password, and from where and how the user may connect (pg_hba.conf)"),
        DENIED => server(ErrorKind::Denied).remedy(
            "GRANT CREATE ON SCHEMA to this user for the first connection, or create the tables as \
             docs/backends/postgres.md says, and GRANT SELECT, INSERT, UPDATE, DELETE on them",
        ),
        "3F000" => server(ErrorKind::InvalidOption).remedy(
            "CREATE SCHEMA, with the name that the option schema has, and GRANT USAGE, CREATE on it to this user",
        ),
        "3D000" => server(ErrorKind::InvalidOption).remedy("name a database that exists"),
        "08P01" if is_startup => server(ErrorKind::Unsupported).remedy(POOLER_REMEDY),
        "42704" if is_startup => {
            server(ErrorKind::Unsupported).remedy("use PostgreSQL 14 or newer, which can end silent sessions")
        }
        NO_SUCH_TABLE => server(ErrorKind::Server)
            .remedy("the table or sequence of the tokens is gone: connect anew, which creates it, or create it by hand"),
        "25006" => standby(operation),
        "53300" => server(ErrorKind::Unreachable)
            .remedy("raise max_connections at the server, or lower ?max_connections= of the clients")
            .retryable(),
        "53200" => server(ErrorKind::Unreachable).remedy(LOCK_TABLE_REMEDY).retryable(),
        CANCELLED | LONG_WAIT | "40P01" => server(ErrorKind::Server).retryable(),
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => server(ErrorKind::Unreachable)
            .remedy("the server has ended the session, or starts or stops; check why")
            .retryable(),
        _ => server(ErrorKind::Server),
    }
}

fn explain_connection(operation: Operation, error: sqlx::Error) -> LockError {
    let new = |kind: ErrorKind, cause: String| LockError::new(kind, operation).because(cause);
    let tls_failed = |cause: String| {
        new(ErrorKind::Denied, format!("TLS failed: {cause}")).remedy(
            "check that the server speaks TLS, its certificate and name, and the files of extra_ca, cert and key",
        )
    };
    let explained = match &error {
        // A problem that the TLS library finds in its input, usually in a certificate.
        sqlx::Error::Io(io) if io.kind() == io::ErrorKind::InvalidData => tls_failed(io.to_string()),
        sqlx::Error::Io(io) => broken(operation, io),
        sqlx::Error::Tls(tls) => tls_failed(tls.to_string()),
        sqlx::Error::Configuration(cause) => new(ErrorKind::InvalidOption, cause.to_string())
            .remedy("check the files that the options extra_ca, cert and key name"),
        _ => new(ErrorKind::Unreachable, format!("the reply is invalid: {error}"))
            .remedy("check that a PostgreSQL server listens there")
            .retryable(),
    };
    explained.caused_by(error)
}

/// The error if a connection has failed, and how.
pub(crate) fn broken(operation: Operation, cause: impl std::fmt::Display) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because(format!("the connection failed: {cause}"))
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if a server did not answer in time.
pub(crate) fn no_answer(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the server did not answer in time")
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if a statement was cancelled because it took too long.
pub(crate) fn blocked(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the server answers, and has not carried out the statement in time")
        .remedy("look at the server for what blocks it: a locked table, or a standby that does not confirm")
        .retryable()
}

/// The error if a connection has ended, with everything that was held on it.
pub(crate) fn gone(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the connection has ended")
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if a table was made by a later release.
pub(crate) fn newer_layout(operation: Operation, table: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, operation)
        .because(format!("a later release of distlock has changed the table {table}"))
        .remedy("update this program")
}

/// The error if more entries of the server's table of locks are taken than it promises.
pub(crate) fn full_table(taken: u64, capacity: u64) -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Acquire)
        .because(format!(
            "the server's table of locks, which all of its users share, is nearly full: {taken} entries are taken, of \
             {capacity} (max_locks_per_transaction × (max_connections + max_prepared_transactions))"
        ))
        .remedy(LOCK_TABLE_REMEDY)
        .retryable()
}

/// The error if the server is not a primary.
pub(crate) fn standby(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the server is a standby: a lock that is held there excludes no client of the primary")
        .remedy("connect to the primary")
        .retryable()
}

/// The error if the session that answers is not the one that this client started.
pub(crate) fn shared_session(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unsupported, operation)
        .because(
            "a pooler between this client and the server lets another session answer, in which the lock would belong to \
             no client alone",
        )
        .remedy(POOLER_REMEDY)
}

/// The error for an answer that no statement of this crate can have.
pub(crate) fn nonsense(operation: Operation, what: impl std::fmt::Display) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because(format!("the server's reply is invalid: {what}"))
        .remedy("check any proxy between this client and the server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_ends_no_wait() {
        for code in ["53300", "53200", "57P01", "57P03", "57P05"] {
            let error = explain_code(Operation::Acquire, code, "no");
            assert!(error.is_retryable() && error.kind() == ErrorKind::Unreachable, "{error:?}");
            let text = error.to_string();
            assert!(text.contains(code) && text.ends_with(')'), "{text}");
        }
        for code in ["28000", "28P01", "3D000", "42501", "42P01"] {
            let error = explain_code(Operation::Acquire, code, "no");
            assert!(!error.is_retryable() && error.to_string().ends_with(')'), "{error:?}");
        }
    }

    #[test]
    fn a_pooler_and_an_old_server_are_refused_with_what_to_do() {
        let refused = |code| explain_code(Operation::Connect, code, "unsupported startup parameter: options");
        assert_eq!(refused("08P01").kind(), ErrorKind::Unsupported);
        assert!(refused("08P01").to_string().contains("pooler=session"));
        assert!(refused("42704").to_string().contains("PostgreSQL 14"));
    }
}
