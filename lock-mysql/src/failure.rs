//! Failures of statements: why a statement failed, and the error that explains it to the user.

use lock_core::{ErrorKind, LockError, Operation};
use lock_sql::{Explained, Why, nonsense, not_primary};
use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

/// A statement was cancelled by `KILL QUERY`, or because its connection was killed.
const INTERRUPTED: u16 = 1317;

/// No connection has this number.
const NO_SUCH_THREAD: u16 = 1094;

/// The connection is another user's.
const KILL_DENIED: u16 = 1095;

const NO_SUCH_TABLE: u16 = 1146;

const TABLE_DENIED: u16 = 1142;

const DEADLOCK: u16 = 1213;

/// A statement waited for too long for a lock of a row or a table.
const LOCKED_OUT: u16 = 1205;

/// The session has not prepared what it is to carry out: it is another one than before.
const NOT_PREPARED: u16 = 1243;

/// Errors after which the server closes the connection.
const LAST_WORDS: [u16; 10] = [1053, 1152, 1153, 1156, 1158, 1159, 1160, 1161, 1927, 4031];

/// What the server has said, for users, without secrets.
pub(crate) fn explain(operation: Operation, said: &(dyn DatabaseError + 'static)) -> Option<Explained> {
    let code = said.try_downcast_ref::<MySqlDatabaseError>()?.number();
    let why = (code != NOT_PREPARED && !LAST_WORDS.contains(&code)).then(|| why(code));
    Some(Explained { why, error: explain_code(operation, code, said.message()) })
}

fn why(code: u16) -> Why {
    match code {
        INTERRUPTED => Why::Cancelled,
        NO_SUCH_THREAD => Why::NoSession,
        NO_SUCH_TABLE => Why::MissingTable,
        TABLE_DENIED | KILL_DENIED => Why::Denied,
        DEADLOCK => Why::Conflict,
        LOCKED_OUT => Why::LockedOut,
        _ => Why::Other,
    }
}

fn explain_code(operation: Operation, code: u16, said: &str) -> LockError {
    let server = |kind| LockError::new(kind, operation).because(format!("the server says {code}: {said}"));
    match code {
        1044 => server(ErrorKind::Denied).remedy(
            "name a database that the user may use, or leave it out: only fencing=table and slots need one",
        ),
        1045 | 1130 | 1698 | 1862 | 1820 | 3118 | 3159 | 4151 => server(ErrorKind::Denied)
            .remedy("check user, password, and from where and how the user may connect"),
        TABLE_DENIED | KILL_DENIED | 1143 | 1227 => server(ErrorKind::Denied)
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
        NOT_PREPARED => nonsense(operation, "another session has answered"),
        1290 | 1836 => not_primary(operation),
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
