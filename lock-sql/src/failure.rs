//! Failures of statements: why a statement failed, and the error that explains it to the user.

use std::fmt;
use std::io;

use lock_core::{ErrorKind, LockError, Operation};
use lock_kit::{gone, no_answer, unreachable};

use crate::connection::Broken;
use crate::dialect::Dialect;

/// Why a server has refused a statement, as far as clients distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// It was cancelled.
    Cancelled,
    /// A wait has reached the limit that was set for it.
    LongWait,
    /// A table or a sequence does not exist.
    MissingTable,
    /// The user may not do this.
    Denied,
    /// The server has undone the statement, because it and another one waited for each other.
    Conflict,
    /// It waited for too long for a lock of a row or a table.
    LockedOut,
    /// No session has this number, or the server was restarted.
    NoSession,
    /// There is no transaction, or it has failed before.
    NoTransaction,
    /// Something else.
    Other,
}

/// Why the server did not carry out a statement completely.
#[derive(Debug)]
pub enum Failure {
    /// The server answered with an error; the connection is in order.
    Refused {
        /// What clients distinguish.
        why: Why,
        /// The error for the user.
        error: LockError,
    },
    /// The connection is no longer usable, and the outcome of the statement is unknown.
    Broken(LockError),
}

/// What a server has said of a statement, as its dialect explains it.
#[derive(Debug)]
pub struct Explained {
    /// `None` if the server closes the connection after this error.
    pub why: Option<Why>,
    /// The error for the user, without secrets.
    pub error: LockError,
}

impl From<Broken> for Failure {
    fn from(Broken(error): Broken) -> Self {
        Self::Broken(error)
    }
}

impl Failure {
    /// Explains an error of the client crate.
    pub fn of<D: Dialect>(operation: Operation, error: sqlx::Error) -> Self {
        let said = error.as_database_error().and_then(|said| D::explain(operation, said));
        match said {
            Some(Explained { why: Some(why), error: explained }) => {
                Self::Refused { why, error: explained.caused_by(error) }
            }
            Some(Explained { why: None, error: explained }) => Self::Broken(explained.caused_by(error)),
            None => Self::Broken(explain_connection(operation, error, D::SERVER)),
        }
    }

    /// The server did not answer in time.
    pub fn silence(operation: Operation) -> Self {
        Self::Broken(no_answer(operation))
    }

    /// The client does not want the rest of the answer.
    pub fn stopped(operation: Operation) -> Self {
        Self::Refused { why: Why::Cancelled, error: gone(operation) }
    }

    /// Something in the answer that makes it none, on a connection that is in order.
    pub fn refusal(error: LockError) -> Self {
        Self::Refused { why: Why::Other, error }
    }

    /// Returns why the server has refused the statement, if it did.
    pub fn why(&self) -> Option<Why> {
        match self {
            Self::Refused { why, .. } => Some(*why),
            Self::Broken(_) => None,
        }
    }

    /// Returns whether the statement ended early, for no fault of its own.
    pub fn is_interruption(&self) -> bool {
        matches!(self.why(), Some(Why::Cancelled | Why::LongWait))
    }

    /// Returns the error for the user.
    pub fn into_error(self) -> LockError {
        match self {
            Self::Refused { error, .. } | Self::Broken(error) => error,
        }
    }
}

fn explain_connection(operation: Operation, error: sqlx::Error, server: &str) -> LockError {
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
            .remedy(format!("check that {server} listens there"))
            .retryable(),
    };
    explained.caused_by(error)
}

/// The error if a connection has failed, and how.
pub fn broken(operation: Operation, cause: impl fmt::Display) -> LockError {
    unreachable(operation, format!("the connection failed: {cause}"))
}

/// The error for an answer that no statement of a backend can have.
pub fn nonsense(operation: Operation, what: impl fmt::Display) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because(format!("the server's reply is invalid: {what}"))
        .remedy("check any proxy between this client and the server")
}

/// The error if a statement was cancelled because it took too long.
pub fn blocked(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because("the server answers, and has not carried out the statement in time")
        .remedy("look at the server for what blocks it: a locked table, or a standby that does not confirm")
        .retryable()
}

/// The error if the server is not a primary, or no longer one.
pub fn not_primary(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because(
            "the server is read-only, as a standby or a replica is: a lock that is held there excludes no client of the primary",
        )
        .remedy("connect to the primary")
        .retryable()
}

/// The error if a table was made by a later release.
pub fn newer_layout(operation: Operation, table: &str) -> LockError {
    LockError::new(ErrorKind::Unsupported, operation)
        .because(format!("a later release of distlock has changed the table {table}"))
        .remedy("update this program")
}
