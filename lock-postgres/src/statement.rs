//! The SQL statements, as text.
//!
//! Each begins with a comment that names its purpose, for operators who inspect the server and for tests. They contain no
//! text of users, except in comments.

use std::fmt::Write as _;

use lock_core::{LockError, Operation};
use serde::{Deserialize, Serialize};

use crate::failure::{nonsense, shared_session};
use crate::key::Key;
use crate::mark::Mark;
use crate::options::TokenSource;
use crate::server::{START, SessionId};

const COMMENT: &str = "/*distlock ";

/// The sequence of tokens that rise whatever the clock does.
const SEQUENCE: &str = "distlock_tokens";

/// The table of tokens that have to outlast a server.
const TABLE: &str = "distlock_tokens_of_locks";

/// Microseconds since the epoch, read when the expression is evaluated.
const NOW: &str = "(extract(epoch FROM clock_timestamp())*1000000)::bigint";

/// The operation that a statement of this crate is for, by its text; `None` for another program's statement.
///
/// For tests that sit between a client and its server.
pub fn operation_of(statement: &str) -> Option<Operation> {
    let (_, rest) = statement.split_once(COMMENT)?;
    let word = rest.split(|character: char| !character.is_ascii_lowercase()).next()?;
    OPERATIONS.iter().find(|(_, operation_word)| *operation_word == word).map(|(operation, _)| *operation)
}

const OPERATIONS: [(Operation, &str); 8] = [
    (Operation::Connect, "connect"),
    (Operation::Acquire, "acquire"),
    (Operation::Cancel, "cancel"),
    (Operation::Renew, "renew"),
    (Operation::Release, "release"),
    (Operation::Inspect, "inspect"),
    (Operation::Break, "break"),
    (Operation::Ping, "ping"),
];

fn word(operation: Operation) -> &'static str {
    OPERATIONS.iter().find(|(known, _)| *known == operation).map_or("other", |(_, word)| *word)
}

pub(crate) fn comment(operation: Operation) -> String {
    format!("{COMMENT}{}*/", word(operation))
}

/// Asks for a sign of life; the answer says whether the server is a standby.
pub(crate) fn ping() -> String {
    format!("{}SELECT pg_is_in_recovery()::text", comment(Operation::Ping))
}

/// A waiter's description of itself. It is part of its statement, which operators can see at the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
}

impl Waiter {
    /// Formats it as a comment that nothing in it can end early, or nest: the server knows comments in comments.
    fn comment(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        let text = text.replace('*', "\\u002a");
        format!("{COMMENT}{} {text}*/", word(Operation::Acquire))
    }

    /// Reads it from the text of a statement.
    pub(crate) fn of_statement(statement: &str) -> Option<Self> {
        let (_, rest) = statement.split_once(COMMENT)?;
        let (comment, _) = rest.split_once("*/")?;
        let (_, text) = comment.split_once(' ')?;
        serde_json::from_str(text).ok()
    }
}

/// The expression for the token of a grant, or for a number that stands for none.
fn token(tokens: TokenSource) -> String {
    match tokens {
        TokenSource::Clock => NOW.to_owned(),
        TokenSource::Sequence => format!("nextval('{SEQUENCE}')"),
        TokenSource::Table | TokenSource::None => "1::bigint".to_owned(),
    }
}

/// Evaluates the expression in the session with this mark alone, on a primary; NULL elsewhere.
fn guarded(mark: Mark, expression: &str) -> String {
    format!("SELECT (CASE WHEN {} AND NOT pg_is_in_recovery() THEN {expression} END)::text", mark.is_here())
}

/// Takes the lock if it is free. The server reads the clock when it has granted the lock.
pub(crate) fn take(key: Key, tokens: TokenSource, mark: Mark) -> String {
    let token = token(tokens);
    let take = format!("CASE WHEN pg_try_advisory_lock({key}) THEN {token} ELSE 0 END");
    format!("{}{}", comment(Operation::Acquire), guarded(mark, &take))
}

/// Waits for the lock, without a limit of the server. If that fails, the server takes the change of the limit back.
pub(crate) fn wait(key: Key, tokens: TokenSource, mark: Mark, waiter: &Waiter) -> String {
    let token = token(tokens);
    // The function returns nothing, which is not NULL.
    let wait = format!("CASE WHEN pg_advisory_lock({key}) IS NULL THEN 0 ELSE {token} END");
    format!("{}SET statement_timeout=0;{}", waiter.comment(), guarded(mark, &wait))
}

/// The server's answer to a request for a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The token, or 1 if none is minted with the lock.
    Granted(u64),
    /// Another client holds the lock.
    Refused,
    /// Another session has answered, or the server is a standby. Nothing is held.
    Elsewhere,
}

impl Answered {
    /// Reads the value of the last row.
    pub(crate) fn read(value: Option<&str>) -> Option<Self> {
        match value {
            None => Some(Self::Elsewhere),
            Some("0") => Some(Self::Refused),
            Some(token) => token.parse().ok().map(Self::Granted),
        }
    }
}

pub(crate) fn release(key: Key, mark: Mark, operation: Operation) -> String {
    let here = mark.is_here();
    format!("{}SELECT (CASE WHEN {here} THEN pg_advisory_unlock({key}) END)::text", comment(operation))
}

/// Asks whether this is still the session with the mark, on a primary: nothing else can have ended its holds. Before, it may
/// give the session a limit for statements, in milliseconds, which waits switch off.
pub(crate) fn check(mark: Mark, limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!("SET statement_timeout={limit};")).unwrap_or_default();
    format!(
        "{}{limit}SELECT concat_ws(' ',{},pg_is_in_recovery())",
        comment(Operation::Renew),
        mark.is_here()
    )
}

/// The state of a session with holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Held,
    /// The server is a standby, or is it again.
    Standby,
}

/// Reads the answer to [`check`].
pub(crate) fn checked(value: Option<&str>) -> Result<Checked, LockError> {
    match value {
        Some("t f") => Ok(Checked::Held),
        Some("t t") => Ok(Checked::Standby),
        Some("f f" | "f t") => Err(shared_session(Operation::Renew)),
        other => Err(nonsense(Operation::Renew, other.unwrap_or("nothing"))),
    }
}

/// The sessions with this id: one or none.
fn from_session(id: SessionId) -> String {
    format!("FROM pg_stat_get_activity({}) WHERE {START}={}", id.pid, id.start)
}

/// Cancels what a session waits for.
pub(crate) fn cancel(id: SessionId) -> String {
    format!("{}SELECT pg_cancel_backend(pid)::text {}", comment(Operation::Cancel), from_session(id))
}

/// Whether a session exists: a row, or none.
pub(crate) fn find(id: SessionId) -> String {
    format!("{}SELECT 1::text {}", comment(Operation::Cancel), from_session(id))
}

/// Ends a session; no row if it does not exist.
pub(crate) fn end(id: SessionId, operation: Operation) -> String {
    format!("{}SELECT pg_terminate_backend(pid)::text {}", comment(operation), from_session(id))
}

/// What these sessions do: their process, their start, and `advisory` if they wait for a lock.
pub(crate) fn waits(ids: &[SessionId]) -> String {
    let pids: Vec<_> = ids.iter().map(|id| id.pid.to_string()).collect();
    format!(
        "{}SELECT pid::text,{START}::text,CASE WHEN wait_event_type='Lock' THEN wait_event END \
         FROM pg_stat_get_activity(NULL) WHERE pid IN ({})",
        comment(Operation::Inspect),
        pids.join(",")
    )
}

/// Whether another session waits for the snapshot of one of these, and how many microseconds the server took to find out.
/// `CREATE INDEX CONCURRENTLY` and others wait for the lock of the transaction that has the snapshot.
pub(crate) fn waited_for(ids: &[SessionId]) -> String {
    let pids: Vec<_> = ids.iter().map(|id| id.pid.to_string()).collect();
    format!(
        "{}WITH held AS MATERIALIZED (SELECT virtualxid,pid,granted FROM pg_locks WHERE locktype='virtualxid') \
         SELECT EXISTS (SELECT FROM held AS ours JOIN held AS theirs USING (virtualxid) \
         WHERE ours.granted AND NOT theirs.granted AND ours.pid IN ({}))::text,\
         (extract(epoch FROM clock_timestamp()-statement_timestamp())*1000000)::bigint::text",
        comment(Operation::Inspect),
        pids.join(",")
    )
}

/// The condition on a row of `pg_locks` that it is about this lock.
fn is_of(key: Key) -> String {
    let (high, low) = key.halves();
    format!(
        "locktype='advisory' AND objsubid=1 AND classid={high}::oid AND objid={low}::oid \
         AND database=(SELECT oid FROM pg_database WHERE datname=current_database())"
    )
}

/// Who holds the lock and who waits for it, in order: the process, whether it waits, the start of its session, its name,
/// its address, its statement, and since when it waits.
pub(crate) fn participants(key: Key, operation: Operation) -> String {
    let (comment, condition) = (comment(operation), is_of(key));
    format!(
        "{comment}SELECT pid::text,granted::text,{START}::text,application_name,host(client_addr),query,\
         (extract(epoch FROM waitstart)*1000000)::bigint::text \
         FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE {condition} \
         ORDER BY granted DESC,waitstart"
    )
}

/// How many advisory locks a session has besides this one.
pub(crate) fn others(key: Key, id: SessionId) -> String {
    let (comment, condition) = (comment(Operation::Break), is_of(key));
    format!(
        "{comment}SELECT count(*)::text FROM pg_locks WHERE locktype='advisory' AND granted AND pid={} AND NOT ({condition})",
        id.pid
    )
}

/// Creates what the tokens come from.
pub(crate) fn create(tokens: TokenSource) -> Option<String> {
    let comment = comment(Operation::Connect);
    match tokens {
        TokenSource::Clock | TokenSource::None => None,
        TokenSource::Sequence => Some(format!("{comment}CREATE SEQUENCE IF NOT EXISTS {SEQUENCE}")),
        TokenSource::Table => Some(format!(
            "{comment}CREATE TABLE IF NOT EXISTS {TABLE} (key bigint PRIMARY KEY,token bigint NOT NULL,name text NOT NULL)"
        )),
    }
}

/// Whether it exists and the user may use it. Changes nothing but a number of the sequence.
pub(crate) fn probe(tokens: TokenSource) -> Option<String> {
    let comment = comment(Operation::Connect);
    match tokens {
        TokenSource::Clock | TokenSource::None => None,
        TokenSource::Sequence => Some(format!("{comment}SELECT nextval('{SEQUENCE}')::text")),
        TokenSource::Table => Some(format!(
            "{comment}INSERT INTO {TABLE} AS kept (key,token,name) SELECT key,token,name FROM {TABLE} WHERE false \
             ON CONFLICT (key) DO UPDATE SET token=kept.token"
        )),
    }
}

/// Mints a token in the table. It also depends on the clock, because a server that replaces another one may lack its last
/// rows.
pub(crate) fn mint(key: Key, name: &str) -> String {
    // As hexadecimal digits, the name needs no escape. The server keeps no NUL.
    let name = name.replace('\0', "\u{fffd}");
    let mut bytes = String::with_capacity(name.len() * 2);
    for byte in name.bytes() {
        // Writing to a string cannot fail.
        let _ = write!(bytes, "{byte:02x}");
    }
    format!(
        "{}INSERT INTO {TABLE} AS kept (key,token,name) VALUES ({key},{NOW},convert_from('\\x{bytes}','UTF8')) \
         ON CONFLICT (key) DO UPDATE SET token=greatest(kept.token+1,excluded.token),name=excluded.name \
         RETURNING token::text",
        comment(Operation::Acquire)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        Mark::new(10)
    }

    fn key() -> Key {
        Key::of("", "orders/42")
    }

    fn waiter(label: &str) -> Waiter {
        Waiter { id: "ff".to_owned(), host: "h".to_owned(), pid: 1, label: Some(label.to_owned()) }
    }

    #[test]
    fn a_statement_says_what_it_is_for() {
        let id = SessionId { pid: 7, start: 8 };
        for (statement, operation) in [
            (take(key(), TokenSource::Clock, mark()), Operation::Acquire),
            (wait(key(), TokenSource::None, mark(), &waiter("x")), Operation::Acquire),
            (release(key(), mark(), Operation::Cancel), Operation::Cancel),
            (release(key(), mark(), Operation::Release), Operation::Release),
            (check(mark(), Some(7)), Operation::Renew),
            (cancel(id), Operation::Cancel),
            (end(id, Operation::Break), Operation::Break),
            (ping(), Operation::Ping),
        ] {
            assert_eq!(operation_of(&statement), Some(operation), "{statement}");
        }
        assert_eq!(operation_of("SELECT 1"), None);
        assert_eq!(operation_of("/*distlock dance*/SELECT 1"), None);
    }

    #[test]
    fn nothing_that_a_waiter_is_called_leaves_its_comment() {
        for label in
            ["plain", "*/ DROP TABLE x; /*", "'quoted\\", "\u{1F512} \0 */*/", "*\\/", "/*/*", "/*/", "*/*"]
        {
            let statement = wait(key(), TokenSource::Clock, mark(), &waiter(label));
            let count = |part: &str| statement.matches(part).count();
            assert_eq!((count("*/"), count("/*")), (1, 1), "{statement}");
            assert_eq!(Waiter::of_statement(&statement), Some(waiter(label)));
        }
    }

    #[test]
    fn what_is_granted_is_told_from_what_is_not() {
        for (value, read) in [
            (Some("1700000000000000"), Some(Answered::Granted(1_700_000_000_000_000))),
            (Some("0"), Some(Answered::Refused)),
            (None, Some(Answered::Elsewhere)),
            (Some("x"), None),
            (Some("-1"), None),
        ] {
            assert_eq!(Answered::read(value), read, "{value:?}");
        }
    }

    #[test]
    fn what_is_held_is_told_from_what_is_not() {
        assert_eq!(checked(Some("t f")).unwrap(), Checked::Held);
        assert_eq!(checked(Some("t t")).unwrap(), Checked::Standby);
        assert!(checked(Some("f f")).unwrap_err().to_string().contains("pooler"));
        assert!(checked(None).is_err());
    }
}
