//! The SQL statements, as text.
//!
//! Each begins with a comment that names its purpose, for operators who inspect the server and for tests. They contain no
//! text of users, except in comments.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use lock_core::{LockError, Operation};
use lock_kit::ClientRecord;
use lock_sql::{Answer, nonsense};
use lock_sql::{COMMENT, comment, word};
use serde::{Deserialize, Serialize};

use crate::claim::{Claim, Has, Wanted};
use crate::failure::shared_session;
use crate::key::Key;
use crate::options::TokenSource;
use crate::permits::{self, Gate};
use crate::pg_locks::{Looked, held_here};
use crate::prepared::filled_in;
use crate::server::{START, SessionId};
use crate::session_tag::SessionTag;
use crate::table;

/// The sequence of tokens that rise whatever the clock does.
const SEQUENCE: &str = "distlock_tokens";

/// Microseconds since the epoch, read when the expression is evaluated.
pub(crate) const NOW: &str = "(extract(epoch FROM clock_timestamp())*1000000)::bigint";

/// Asks for a sign of life; the answer says whether the server is a standby.
pub(crate) fn ping() -> String {
    format!("{}SELECT pg_is_in_recovery()::text", comment(Operation::Ping))
}

/// The value as JSON with escapes for everything that a database in any encoding may lack.
pub(crate) fn ascii_json(value: &impl Serialize) -> String {
    let mut json = String::new();
    for character in serde_json::to_string(value).unwrap_or_default().chars() {
        if character.is_ascii() {
            json.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(json, "\\u{unit:04x}");
            }
        }
    }
    json
}

/// A waiter's description of itself. It is part of its statement, which operators can see at the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) id: String,
    #[serde(flatten)]
    pub(crate) client: ClientRecord,
    /// How many permits it wants, and of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permits: Option<(u32, u32)>,
}

impl Waiter {
    /// Formats it as a comment that nothing in it can end early, or nest: the server knows comments in comments.
    pub(crate) fn comment(&self) -> String {
        let text = ascii_json(self).replace('*', "\\u002a");
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

/// The expression for the token of a grant that reserves so many, or for a number that stands for none.
pub(crate) fn tokens_from(tokens: TokenSource, sections: NonZeroU32) -> String {
    match (tokens, sections.get()) {
        // Another session gets some in between, for other locks.
        (TokenSource::Sequence, count @ 2..) => format!(
            "(SELECT min(one) FROM (SELECT nextval('{SEQUENCE}') AS one FROM generate_series(1,{count})) AS reserved)"
        ),
        _ => token(tokens),
    }
}

/// The same for one token.
pub(crate) fn token(tokens: TokenSource) -> String {
    match tokens {
        TokenSource::Clock => NOW.to_owned(),
        TokenSource::Sequence => format!("nextval('{SEQUENCE}')"),
        TokenSource::Table | TokenSource::None => "1::bigint".to_owned(),
    }
}

/// The statement whose answer is this condition in the session with the tag, and NULL elsewhere.
pub(crate) fn answered(tag: SessionTag, operation: Operation, condition: &str) -> String {
    format!("{}{}", comment(operation), in_session(tag, condition))
}

pub(crate) fn in_session(tag: SessionTag, condition: &str) -> String {
    format!("SELECT (CASE WHEN {} THEN {condition} END)::text", tag.is_here())
}

/// What the name of a function ends with that takes or releases a lock.
fn suffix(shared: Wanted) -> &'static str {
    if shared == Wanted::Shared { "_shared" } else { "" }
}

/// Takes the lock if it is free, or permits. The server reads the clock when it has granted the lock.
///
/// `limit` is the most entries of the table of locks that may be taken, if the server has to count them; then the second column
/// is their number.
pub(crate) fn take(claim: &Claim, tokens: TokenSource, tag: SessionTag, limit: Option<u64>) -> String {
    let comment = comment(Operation::Acquire);
    if let Wanted::Permits(permits) = claim.wanted {
        let take = permits::take(Gate::Try, tokens, tag, limit);
        return format!("{comment}{}", filled_in(take, &permits::arguments(claim.key, permits)));
    }
    let token = tokens_from(tokens, claim.sections);
    let take = take_lock(claim.wanted, &claim.key.to_string(), &token);
    format!("{comment}{}", within_limit(tag, limit, &take))
}

/// The same without a count, for a key `$1`.
pub(crate) fn take_again(wanted: Wanted, tokens: TokenSource, tag: SessionTag) -> String {
    within_limit(tag, None, &take_lock(wanted, "$1", &token(tokens)))
}

fn take_lock(wanted: Wanted, key: &str, token: &str) -> String {
    format!("CASE WHEN pg_try_advisory_lock{}({key}) THEN ({token})::text ELSE '0' END", suffix(wanted))
}

/// Waits for the lock. It follows what [`begins_wait`] says.
pub(crate) fn wait(claim: &Claim, tokens: TokenSource, tag: SessionTag, limit: Option<u64>) -> String {
    if let Wanted::Permits(permits) = claim.wanted {
        let take = permits::take(Gate::Wait, tokens, tag, limit);
        return filled_in(take, &permits::arguments(claim.key, permits));
    }
    let token = tokens_from(tokens, claim.sections);
    within_limit(tag, limit, &wait_for_lock(claim.wanted, &claim.key.to_string(), &token))
}

/// The same without a count, for a key `$1`.
pub(crate) fn wait_again(wanted: Wanted, tokens: TokenSource, tag: SessionTag) -> String {
    within_limit(tag, None, &wait_for_lock(wanted, "$1", &token(tokens)))
}

fn wait_for_lock(wanted: Wanted, key: &str, token: &str) -> String {
    // The function returns nothing, which is not NULL.
    format!("CASE WHEN pg_advisory_lock{}({key}) IS NULL THEN '0' ELSE ({token})::text END", suffix(wanted))
}

/// Begins the message of a wait: it says who waits, and switches off the limit for statements, if the session has one. If the wait
/// fails, the server takes that back.
pub(crate) fn begins_wait(waiter: &Waiter, is_limited: bool) -> String {
    format!("{}{}", waiter.comment(), if is_limited { "SET statement_timeout=0;" } else { "" })
}

/// Makes an exclusive lock of this session a shared one, without a gap. The session goes before those that wait, as they would
/// have to wait for it. Carried out again, it changes nothing.
pub(crate) fn downgrade(key: Key, tokens: TokenSource, tag: SessionTag, limit: Duration) -> String {
    let held = held_here(Looked::Lock(key));
    let share = format!(
        "CASE WHEN EXISTS (SELECT FROM pg_locks WHERE {held} AND mode='ShareLock') THEN true \
         ELSE pg_advisory_lock_shared({key}) IS NOT NULL END"
    );
    let unlock = format!("pg_advisory_unlock({key}) IS NOT NULL");
    let downgrade =
        format!("CASE WHEN {share} THEN CASE WHEN {unlock} THEN ({})::text END END", token(tokens));
    format!(
        "{}SET LOCAL lock_timeout={};{}",
        comment(Operation::Downgrade),
        limit.as_millis(),
        within_limit(tag, None, &downgrade)
    )
}

/// The condition on a row of `pg_locks` that it is an entry of the table of locks. The predicate locks of serializable transactions
/// have a table of their own, and the locks of the fast path are with their sessions.
const IN_TABLE: &str = "mode<>'SIReadLock' AND NOT fastpath";

/// Evaluates the expression in the session with this tag alone, on a primary; NULL elsewhere. If there is a limit, it counts the
/// entries of the table of locks that are taken before, and says so if they are more.
pub(crate) fn within_limit(tag: SessionTag, limit: Option<u64>, expression: &str) -> String {
    let is_here = tag.is_here();
    match limit {
        None => format!("SELECT CASE WHEN {is_here} AND NOT pg_is_in_recovery() THEN {expression} END"),
        Some(limit) => format!(
            "SELECT CASE WHEN {is_here} AND NOT pg_is_in_recovery() THEN \
             CASE WHEN taken>{limit} THEN 'full '||taken ELSE {expression} END END,taken::text \
             FROM (SELECT count(*) AS taken FROM pg_locks WHERE {IN_TABLE}) AS counted"
        ),
    }
}

/// How many entries of the table of locks are taken, if the server has counted.
pub(crate) fn counted(answer: &Answer) -> Option<u64> {
    answer.rows.first()?.get(1)?.as_deref()?.parse().ok()
}

/// The server's answer to a request for a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The token, or 1 if none is minted with the lock, and the permits.
    Granted(u64, Vec<u32>),
    /// Others hold the lock, perhaps this one.
    Refused,
    /// Another session has the gate of the semaphore.
    GateTaken,
    /// The session has the gate of the semaphore, and no permits.
    AtHead,
    /// Those who use the semaphore use it with this number of permits.
    OtherNumber(u32),
    /// So many entries of the table of locks are taken, which is too many.
    Full(u64),
    /// Another session has answered, or the server is a standby. Nothing is held.
    Elsewhere,
}

impl Answered {
    /// Reads the value of the last row.
    pub(crate) fn read(value: Option<&str>) -> Option<Self> {
        let Some(value) = value else { return Some(Self::Elsewhere) };
        let (word, rest) = value.split_once(' ').unwrap_or((value, ""));
        Some(match word {
            "elsewhere" => Self::Elsewhere,
            "few" => Self::AtHead,
            "passing" => Self::GateTaken,
            "0" => Self::Refused,
            "of" => Self::OtherNumber(rest.parse().ok()?),
            "full" => Self::Full(rest.parse().ok()?),
            token => {
                let numbers = rest.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
                Self::Granted(token.parse().ok()?, numbers)
            }
        })
    }
}

/// Releases what a session has of a lock, or may have.
pub(crate) fn release(key: Key, has: &Has, tag: SessionTag, operation: Operation) -> String {
    match has {
        Has::Exclusive | Has::Shared | Has::Either => {
            answered(tag, operation, &unlocks(&key.to_string(), has))
        }
        Has::Permits { .. } | Has::PartOfSemaphore => permits::clear(key, tag, operation),
    }
}

/// The same for a lock with the key `$1`, without a comment.
pub(crate) fn release_again(has: &Has, tag: SessionTag) -> String {
    in_session(tag, &unlocks("$1", has))
}

/// The condition that the session had the lock, which it has no longer when the server has evaluated it.
fn unlocks(key: &str, has: &Has) -> String {
    match has {
        Has::Exclusive => format!("pg_advisory_unlock({key})"),
        Has::Shared => format!("pg_advisory_unlock_shared({key})"),
        _ => format!("true=ANY(ARRAY[pg_advisory_unlock({key}),pg_advisory_unlock_shared({key})])"),
    }
}

/// Asks whether this is still the session with the tag, on a primary: nothing else can have ended its holds. Before, it may
/// give the session a limit for statements, in milliseconds, which waits switch off.
pub(crate) fn check(tag: SessionTag, limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!("SET statement_timeout={limit};")).unwrap_or_default();
    format!("{}{limit}SELECT concat_ws(' ',{},pg_is_in_recovery())", comment(Operation::Renew), tag.is_here())
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

/// What these sessions do: their process, their start, and `advisory` if they wait for a lock, `active` if they carry out a
/// statement.
pub(crate) fn waits(ids: &[SessionId]) -> String {
    let pids: Vec<_> = ids.iter().map(|id| id.pid.to_string()).collect();
    format!(
        "{}SELECT pid::text,{START}::text,\
         CASE WHEN wait_event_type='Lock' AND wait_event='advisory' THEN wait_event ELSE state END \
         FROM pg_stat_get_activity(NULL) WHERE pid IN ({})",
        comment(Operation::Inspect),
        pids.join(",")
    )
}

/// How many transactions may have begun since the snapshot of a wait: `VACUUM` removes nothing that they have left behind.
const OLDEST_SNAPSHOT: u32 = 50_000;

/// Whether a session waits for the snapshot of any wait for an advisory lock, or one of these sessions waits with an old snapshot.
/// `CREATE INDEX CONCURRENTLY` and others wait for the lock of the transaction that has the snapshot, and for one after the
/// other: so that all of them begin anew together, it does not matter whose it is.
pub(crate) fn are_in_the_way(ids: &[SessionId]) -> String {
    let pids: Vec<_> = ids.iter().map(|id| id.pid.to_string()).collect();
    format!(
        "{}WITH seen AS MATERIALIZED (SELECT locktype,virtualxid,pid,granted FROM pg_locks WHERE locktype='virtualxid' OR NOT granted) \
         SELECT (EXISTS (SELECT FROM seen AS waits JOIN seen AS theirs USING (virtualxid) \
         WHERE waits.granted AND NOT theirs.granted \
         AND waits.pid IN (SELECT pid FROM seen WHERE locktype='advisory')) \
         OR EXISTS (SELECT FROM pg_stat_activity WHERE pid IN ({}) AND wait_event='advisory' \
         AND age(backend_xmin)>{OLDEST_SNAPSHOT}))::text",
        comment(Operation::Inspect),
        pids.join(",")
    )
}

/// Creates what the tokens come from.
pub(crate) fn create(tokens: TokenSource) -> Option<String> {
    match tokens {
        TokenSource::Clock | TokenSource::None => None,
        TokenSource::Sequence => {
            Some(format!("{}CREATE SEQUENCE IF NOT EXISTS {SEQUENCE}", comment(Operation::Connect)))
        }
        TokenSource::Table => Some(table::create_tokens()),
    }
}

/// Whether it exists and the user may use it. Changes nothing but a number of the sequence.
pub(crate) fn probe(tokens: TokenSource) -> Option<String> {
    match tokens {
        TokenSource::Clock | TokenSource::None => None,
        TokenSource::Sequence => {
            Some(format!("{}SELECT nextval('{SEQUENCE}')::text", comment(Operation::Connect)))
        }
        TokenSource::Table => Some(table::probe_tokens()),
    }
}

#[cfg(test)]
mod tests {
    use lock_sql::operation_of;

    use super::*;
    use crate::permits::Permits;

    fn tag() -> SessionTag {
        SessionTag::new(10)
    }

    fn key() -> Key {
        Key::of("", "orders/42")
    }

    fn waiter(label: &str) -> Waiter {
        Waiter {
            id: "ff".to_owned(),
            client: ClientRecord {
                host: "h".to_owned(),
                pid: 1,
                label: Some(label.to_owned()),
                ..ClientRecord::default()
            },
            permits: None,
        }
    }

    fn claim(wanted: Wanted) -> Claim {
        let name = lock_core::LockName::new("orders/42").unwrap();
        Claim {
            key: key(),
            name,
            id: lock_core::AttemptId::new(1),
            wanted,
            holder: None,
            sections: NonZeroU32::MIN,
        }
    }

    #[test]
    fn a_statement_says_what_it_is_for() {
        let id = SessionId { pid: 7, start: 8 };
        let permits = Wanted::Permits(Permits { take: 1, of: 2 });
        for (statement, operation) in [
            (take(&claim(Wanted::Shared), TokenSource::Clock, tag(), None), Operation::Acquire),
            (take(&claim(permits), TokenSource::Clock, tag(), Some(7)), Operation::Acquire),
            (begins_wait(&waiter("x"), true), Operation::Acquire),
            (release(key(), &Has::Either, tag(), Operation::Cancel), Operation::Cancel),
            (release(key(), &Has::Exclusive, tag(), Operation::Release), Operation::Release),
            (downgrade(key(), TokenSource::Clock, tag(), Duration::from_secs(1)), Operation::Downgrade),
            (check(tag(), Some(7)), Operation::Renew),
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
            let claim = claim(Wanted::Exclusive);
            let statement =
                begins_wait(&waiter(label), true) + &wait(&claim, TokenSource::Clock, tag(), None);
            let count = |part: &str| statement.matches(part).count();
            assert_eq!((count("*/"), count("/*")), (1, 1), "{statement}");
            assert_eq!(Waiter::of_statement(&statement), Some(waiter(label)));
        }
    }

    #[test]
    fn what_is_granted_is_distinguished_from_what_is_not() {
        for (value, read) in [
            (Some("1700000000000000"), Some(Answered::Granted(1_700_000_000_000_000, Vec::new()))),
            (Some("17 0 4"), Some(Answered::Granted(17, vec![0, 4]))),
            (Some("0"), Some(Answered::Refused)),
            (Some("few"), Some(Answered::AtHead)),
            (Some("passing"), Some(Answered::GateTaken)),
            (Some("of 3"), Some(Answered::OtherNumber(3))),
            (Some("full 6400"), Some(Answered::Full(6400))),
            (Some("elsewhere"), Some(Answered::Elsewhere)),
            (None, Some(Answered::Elsewhere)),
            (Some("x"), None),
            (Some("-1"), None),
            (Some("17 x"), None),
        ] {
            assert_eq!(Answered::read(value), read, "{value:?}");
        }
    }

    #[test]
    fn what_is_held_is_distinguished_from_what_is_not() {
        assert_eq!(checked(Some("t f")).unwrap(), Checked::Held);
        assert_eq!(checked(Some("t t")).unwrap(), Checked::Standby);
        assert!(checked(Some("f f")).unwrap_err().to_string().contains("pooler"));
        assert!(checked(None).is_err());
    }
}
