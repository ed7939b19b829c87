//! Failures of statements: why a statement failed, and the error that explains it to the user.

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Explained, Why, not_primary};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// A statement was cancelled.
const CANCELLED: &str = "57014";

/// A wait has reached `lock_timeout`.
const LONG_WAIT: &str = "55P03";

const NO_SUCH_TABLE: &str = "42P01";

const DENIED: &str = "42501";

const POOLER_REMEDY: &str =
    "connect to the server itself, or through a pooler in session mode with the option pooler=session";

const LOCK_TABLE_REMEDY: &str = "raise max_locks_per_transaction at the server, or hold fewer locks";

/// What the server has said, for users, without secrets.
pub(crate) fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
    let said = said.try_downcast_ref::<PgDatabaseError>()?;
    let is_last_word = matches!(said.severity(), PgSeverity::Fatal | PgSeverity::Panic);
    let why = (!is_last_word).then(|| why(said.code()));
    Some(Explained { why, error: explain_code(operation, said.code(), said.message()) })
}

pub(crate) fn why(code: &str) -> Why {
    match code {
        CANCELLED => Why::Cancelled,
        LONG_WAIT => Why::LongWait,
        NO_SUCH_TABLE => Why::MissingTable,
        DENIED => Why::Denied,
        "40001" | "40P01" => Why::Conflict,
        "25P01" | "25P02" => Why::NoTransaction,
        _ => Why::Other,
    }
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
        "25006" => not_primary(operation),
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

/// The error if the session that answers is not the one that this client started.
pub(crate) fn shared_session(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unsupported, operation)
        .because(
            "a pooler between this client and the server lets another session answer, in which the lock would belong to \
             no client alone",
        )
        .remedy(POOLER_REMEDY)
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
