//! Turns errors of the server and the connection into errors for users.

use std::error::Error;
use std::io;
use std::sync::Arc;

use lock_core::{ErrorKind, LockError, Operation};
use lock_kit::{no_answer, unreachable};
use redis::{RedisError, ServerErrorKind};

/// Temporary states of a server, and what to do if they last.
const PASSING: &[(&str, &str)] = &[
    ("OOM", "raise maxmemory, or delete what fills it; distlock needs little"),
    ("BUSY", "a script blocks the server: see SCRIPT KILL and lua-time-limit"),
    ("READONLY", "connect to the primary; a replica takes no locks"),
    ("LOADING", "the server loads its data: wait"),
    ("NOREPLICAS", "too few replicas are connected for min-replicas-to-write"),
    ("MASTERDOWN", "the replica has lost its primary: connect to the primary"),
    ("MAXCLIENTS", "the server accepts no more connections: raise maxclients"),
    ("MISCONF", "the server cannot save its data: check its log"),
    ("NOSCRIPT", "a client keeps making the server forget its scripts: see SCRIPT FLUSH"),
    ("CLUSTERDOWN", "the cluster is down: check its state"),
    ("UNBLOCKED", "the server is no longer the primary: connect to that"),
];

/// The answers of a node that does not execute a request because it does not have the hash slot, or not yet, or no longer.
const ELSEWHERE: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];

/// The error for a hash slot that no longer is at the node that had it.
pub(crate) fn elsewhere(operation: Operation) -> LockError {
    let text = "the hash slot is no longer at this node".to_owned();
    explain(operation, redis::make_extension_error("MOVED".to_owned(), Some(text)))
}

/// Whether the request was certainly not executed, because its hash slot is elsewhere or on its way.
pub(crate) fn is_elsewhere(error: &LockError) -> bool {
    let cause = error.underlying().and_then(|cause| cause.downcast_ref());
    cause.and_then(code_of).is_some_and(|code| ELSEWHERE.contains(&code))
}

/// Whether the connection is no longer usable.
pub(crate) fn breaks_connection(error: &RedisError) -> bool {
    // Including a reply that did not come in time: whatever is wrong, the client needs a connection that answers.
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Whether the server has forgotten the script.
pub(crate) fn is_forgotten_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Whether the server is no longer a primary.
pub(crate) fn is_no_primary(error: &RedisError) -> bool {
    matches!(code_of(error), Some("READONLY" | "MASTERDOWN" | "UNBLOCKED"))
}

/// Whether the server refuses the command: to this user, or to all users, for whom it then reports an unknown command.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    let is_unknown = || error.detail().is_some_and(|text| text.to_lowercase().starts_with("unknown "));
    let code = code_of(error);
    code == Some("NOPERM") || code == Some("ERR") && is_unknown()
}

/// What a server says about a command inside a script that the user may not run, without a code: before 7.2, and since.
const REFUSED_INSIDE: [&str; 2] = ["The user executing the script", "ACL failure in script"];

/// The error code; also that of a command inside a script, which servers mention only in the text: before 7.0 any, and later
/// that of a refusal.
fn code_of(error: &RedisError) -> Option<&str> {
    let code = error.code()?;
    // Where a script returns such an error, 6.2 puts the place in the script first.
    if code != "ERR" && !code.starts_with('@') {
        return Some(code);
    }
    let text = error.detail().unwrap_or_default();
    if text.contains("max number of clients") {
        return Some("MAXCLIENTS");
    }
    if text.contains("cannot be used with replica instances") {
        return Some("READONLY");
    }
    if REFUSED_INSIDE.iter().any(|refused| text.contains(refused)) {
        return Some("NOPERM");
    }
    let mut words = text.split_whitespace().filter_map(|word| word.strip_prefix('-'));
    words.find(|word| PASSING.iter().any(|(passing, _)| passing == word)).or(Some(code))
}

/// The error for users, without secrets.
pub(crate) fn explain(operation: Operation, error: RedisError) -> LockError {
    let Some(code) = code_of(&error) else { return explain_connection(operation, error) };
    let text = format!("the server says {code}: {}", error.detail().unwrap_or("no more"));
    let new = |kind| LockError::new(kind, operation).because(text);
    let explained = match code {
        "NOAUTH" | "WRONGPASS" => new(ErrorKind::Denied).remedy("check user and password"),
        "NOPERM" => {
            new(ErrorKind::Denied).remedy("give the user the permissions that docs/backends/redis.md lists")
        }
        "MOVED" | "ASK" | "TRYAGAIN" => new(ErrorKind::Server)
            .remedy("the cluster moves its hash slots: wait; without redis+cluster://, use that")
            .retryable(),
        "WRONGTYPE" => {
            new(ErrorKind::Server).remedy("another program uses these keys: choose another prefix")
        }
        "LAYOUT" => new(ErrorKind::Unsupported)
            .remedy("a newer version of distlock uses this lock: update this one, or use another prefix"),
        code => match PASSING.iter().find(|(passing, _)| *passing == code) {
            Some((_, remedy)) => new(ErrorKind::Server).remedy(*remedy).retryable(),
            None => new(ErrorKind::Server),
        },
    };
    explained.caused_by(error)
}

fn explain_connection(operation: Operation, error: RedisError) -> LockError {
    let new = |kind, cause: String| LockError::new(kind, operation).because(cause);
    let explained = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => {
            new(ErrorKind::Denied, "the server refused the password".to_owned())
                .remedy("check user and password")
        }
        redis::ErrorKind::InvalidClientConfig => new(ErrorKind::InvalidOption, error.to_string())
            .remedy("check the files that the options ca, cert and key name"),
        redis::ErrorKind::Io if operation == Operation::Connect && is_about_tls(&error) => new(
            ErrorKind::Unreachable,
            format!("TLS failed: {error}"),
        )
        .remedy(
            "check that the server speaks TLS, its certificate and name, and the files of ca, cert and key",
        ),
        redis::ErrorKind::Io if error.is_timeout() => no_answer(operation),
        redis::ErrorKind::Io => unreachable(operation, error.to_string()),
        _ => new(ErrorKind::Server, format!("the reply is invalid: {error}"))
            .remedy("check that a Redis server listens there"),
    };
    explained.caused_by(error)
}

/// Whether the TLS library has found something wrong in its input, usually in a certificate. That does not pass by itself.
fn is_about_tls(error: &RedisError) -> bool {
    let shared = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let io = shared.and_then(|shared| shared.downcast_ref::<io::Error>());
    io.is_some_and(|io| io.kind() == io::ErrorKind::InvalidData)
}

/// The error for a grant or a release that fewer replicas have than the option `durable` wants.
pub(crate) fn too_few(operation: Operation, count: u64, needed: u64) -> LockError {
    let new = |kind| LockError::new(kind, operation).because(format!("{count} of {needed} replicas have it"));
    if operation == Operation::Release {
        // Repeating it would keep the owner waiting, and not make it more certain.
        return new(ErrorKind::Unconfirmed)
            .remedy("the lock is free; after a failover it may be held again until its lease ends");
    }
    new(ErrorKind::Server).remedy("check the replicas, or lower durable").retryable()
}

/// The error for a reply that no script gives.
pub(crate) fn nonsense(operation: Operation, what: impl std::fmt::Display) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because(format!("the server's reply is invalid: {what}"))
        .remedy("check that no other program uses the keys, or choose another prefix")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the client crate makes of an error reply.
    fn reply(text: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    #[test]
    fn a_command_that_is_refused_inside_a_script_is_denied() {
        for text in [
            // 6.2
            "ERR Error running script (call to f_5e): @user_script:8: @user_script: 8: The user executing the script can't run \
             this command or subcommand",
            "@user_script: 8: The user executing the script can't access at least one of the keys mentioned in the command \
             arguments",
            // 7.0
            "ERR The user executing the script can't run this command or subcommand script: 5e, on @user_script:8.",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments \
             script: 5e, on @user_script:8.",
            // 7.2 and newer, Valkey
            "ERR ACL failure in script: User app has no permissions to run the 'del' command script: 5e, on @user_script:8.",
            "ERR ACL failure in script: No permissions to access a key script: 5e, on @user_script:8.",
            // Outside of scripts
            "NOPERM this user has no permissions to access one of the keys used as arguments",
        ] {
            let error = reply(text);
            assert!(is_refused(&error), "{text}");
            let explained = explain(Operation::Release, error);
            assert_eq!(explained.kind(), ErrorKind::Denied, "{text}");
            assert!(!explained.is_retryable() && explained.to_string().contains("redis.md"), "{explained}");
        }
    }

    #[test]
    fn a_passing_state_inside_a_script_may_be_retried() {
        for text in [
            // 6.2
            "ERR Error running script (call to f_5e): @user_script:8: -OOM command not allowed when used memory > 'maxmemory'.",
            "@user_script: 3: -READONLY You can't write against a read only replica.",
            // 7.0 and newer
            "OOM command not allowed when used memory > 'maxmemory'. script: 5e, on @user_script:8.",
            "READONLY You can't write against a read only replica. script: 5e, on @user_script:8.",
            "ERR max number of clients reached",
            "ERR WAIT cannot be used with replica instances. Please also note that writes to replicas are just local.",
        ] {
            let error = reply(text);
            assert!(!is_refused(&error), "{text}");
            let explained = explain(Operation::Acquire, error);
            assert_eq!((explained.kind(), explained.is_retryable()), (ErrorKind::Server, true), "{text}");
        }
    }

    #[test]
    fn any_other_error_of_a_script_is_the_servers() {
        let explained = explain(Operation::Acquire, reply("ERR user_script:1: attempt to call a nil value"));
        assert_eq!((explained.kind(), explained.is_retryable()), (ErrorKind::Server, false));
    }
}
