//! Failures of statements: why a statement failed, and the error that explains it to the user.

use std::io;

use lock_core::{ErrorKind, LockError, Operation};
use sqlx::mysql::MySqlDatabaseError;

/// A statement was interrupted by `KILL QUERY`, or because its connection was killed.
const INTERRUPTED: u16 = 1317;

/// No connection has this number.
const NO_SUCH_THREAD: u16 = 1094;

const NO_SUCH_TABLE: u16 = 1146;

const TABLE_DENIED: u16 = 1142;

const DEADLOCK: u16 = 1213;

/// A statement waited for too long for a lock of a row or a table.
const LOCKED_OUT: u16 = 1205;

/// Errors after which the server closes the connection.
const LAST_WORDS: [u16; 10] = [1053, 1152, 1153, 1156, 1158, 1159, 1160, 1161, 1927, 4031];

/// Why the server did not carry out a statement completely.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answered with an error; the connection is in order.
    Refused { code: u16, error: LockError },
    /// The connection is no longer usable, and the outcome of the statement is unknown.
    Broken(LockError),
}

impl Failure {
    pub(crate) fn of(operation: Operation, error: sqlx::Error) -> Self {
        match code_of(&error) {
            Some(code) if !LAST_WORDS.contains(&code) => {
                Self::Refused { code, error: explain(operation, error) }
            }
            _ => Self::Broken(explain(operation, error)),
        }
    }

    /// The server did not answer in time.
    pub(crate) fn silence(operation: Operation) -> Self {
        Self::Broken(no_answer(operation))
    }

    /// The connection does not exist, because this is a different server or the server was restarted.
    pub(crate) fn unknown_thread(operation: Operation) -> Self {
        Self::Refused { code: NO_SUCH_THREAD, error: gone(operation) }
    }

    pub(crate) fn is_interruption(&self) -> bool {
        matches!(self, Self::Refused { code: INTERRUPTED, .. })
    }

    /// The table does not exist, or the user may not use it: the server does not tell a user without any privilege on the table
    /// which of the two.
    pub(crate) fn is_about_a_table(&self) -> bool {
        matches!(self, Self::Refused { code: NO_SUCH_TABLE | TABLE_DENIED, .. })
    }

    pub(crate) fn is_missing_table(&self) -> bool {
        matches!(self, Self::Refused { code: NO_SUCH_TABLE, .. })
    }

    /// The server has undone the statement, because it and another one waited for each other.
    pub(crate) fn is_deadlock(&self) -> bool {
        matches!(self, Self::Refused { code: DEADLOCK, .. })
    }

    /// Another program has a lock on the row or the table.
    pub(crate) fn is_locked_out(&self) -> bool {
        matches!(self, Self::Refused { code: LOCKED_OUT, .. })
    }

    pub(crate) fn is_unknown_thread(&self) -> bool {
        matches!(self, Self::Refused { code: NO_SUCH_THREAD, .. })
    }

    pub(crate) fn into_error(self) -> LockError {
        match self {
            Self::Refused { error, .. } | Self::Broken(error) => error,
        }
    }
}

fn code_of(error: &sqlx::Error) -> Option<u16> {
    error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}

/// The error for users, without secrets.
pub(crate) fn explain(operation: Operation, error: sqlx::Error) -> LockError {
    let Some(code) = code_of(&error) else { return explain_connection(operation, error) };
    let said = error.as_database_error().map(|error| error.message().to_owned()).unwrap_or_default();
    explain_code(operation, code, &said).caused_by(error)
}

fn explain_code(operation: Operation, code: u16, said: &str) -> LockError {
    let server = |kind| LockError::new(kind, operation).because(format!("the server says {code}: {said}"));
    match code {
        1044 => server(ErrorKind::Denied).remedy(
            "name a database that the user may use, or leave it out: only fencing=table and slots need one",
        ),
        1045 | 1130 | 1698 | 1862 | 1820 | 3118 | 3159 | 4151 => server(ErrorKind::Denied)
            .remedy("check user, password, and from where and how the user may connect"),
        1142 | 1143 | 1227 => server(ErrorKind::Denied)
            .remedy("give the user the permissions that docs/backends/mysql.md lists"),
        1049 | 1046 => server(ErrorKind::InvalidOption).remedy("name a database that exists"),
        1040 | 1203 | 1226 => server(ErrorKind::Unreachable)
            .remedy("raise max_connections at the server, or lower ?max_connections= of the clients")
            .retryable(),
        1129 => server(ErrorKind::Unreachable)
            .remedy("find out why connections from this host fail, and unblock the host with FLUSH HOSTS")
            .retryable(),
        1135 => server(ErrorKind::Unreachable)
            .remedy("check how many threads and how much memory the server may have")
            .retryable(),
        3032 => server(ErrorKind::Unreachable)
            .remedy("switch offline_mode off at the server, or wait until that is done")
            .retryable(),
        NO_SUCH_TABLE => server(ErrorKind::Server)
            .remedy("the table of the tokens is gone: connect anew, which creates it, or create it by hand"),
        1235 => server(ErrorKind::Unsupported)
            .remedy("a Galera cluster has no named locks: use a server that is not part of one"),
        1290 | 1836 => read_only(operation),
        DEADLOCK | 3058 => server(ErrorKind::Server)
            .remedy("two programs take two locks in opposite order on one connection")
            .retryable(),
        INTERRUPTED | LOCKED_OUT | 3024 | 1969 => server(ErrorKind::Server).retryable(),
        code if LAST_WORDS.contains(&code) => server(ErrorKind::Unreachable)
            .remedy("an operator has ended the connection at the server, or the server shuts down")
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
        sqlx::Error::Io(io) => new(ErrorKind::Unreachable, format!("the connection failed: {io}"))
            .remedy("check that the server runs and can be reached")
            .retryable(),
        sqlx::Error::Tls(tls) => tls_failed(tls.to_string()),
        sqlx::Error::Configuration(cause) => new(ErrorKind::InvalidOption, cause.to_string())
            .remedy("check the files that the options extra_ca, cert and key name"),
        _ => new(ErrorKind::Unreachable, format!("the reply is invalid: {error}"))
            .remedy("check that a MySQL or MariaDB server listens there")
            .retryable(),
    };
    explained.caused_by(error)
}

/// The error if a server did not answer in time.
pub(crate) fn no_answer(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the server did not answer in time")
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if a connection has ended, with everything that was held on it.
pub(crate) fn gone(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the connection has ended")
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if the server is not a primary, or no longer one.
pub(crate) fn read_only(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because(
            "the server is read-only, as a replica is: a lock that is held there excludes no client of another server",
        )
        .remedy("connect to the primary")
        .retryable()
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
        for code in [1040, 1129, 1135, 1203, 1226, 3032, 1053, 4031] {
            let error = explain_code(Operation::Acquire, code, "no");
            assert!(error.is_retryable() && error.kind() == ErrorKind::Unreachable, "{error:?}");
            let text = error.to_string();
            assert!(text.contains(&code.to_string()) && text.ends_with(')'), "{text}");
        }
        for code in [1044, 1045, 1049, 1142, 1146] {
            let error = explain_code(Operation::Acquire, code, "no");
            assert!(!error.is_retryable() && error.to_string().ends_with(')'), "{error:?}");
        }
    }
}
