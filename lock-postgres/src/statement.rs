//! The SQL statements, as text.
//!
//! Each begins with a comment that names its purpose, for operators who inspect the server and for tests. They contain no
//! text of users, except in comments.

use std::time::Duration;

use lock_core::{LockError, Mode, Operation};
use lock_sql::{comment, nonsense};

use crate::failure::shared_session;
use crate::key::Key;
use crate::options::TokenSource;
use crate::pg_locks::{KEY_OF_ROW, held_here};
use crate::server::{START, SessionId};
use crate::session_tag::SessionTag;
use crate::table;

/// The sequence of tokens that rise whatever the clock does.
const SEQUENCE: &str = "distlock_tokens";

/// Microseconds since the epoch, read when the expression is evaluated. `date_part` computes with floats, which are exact until 2041, and
/// later never fall while the clock rises. `extract` computes with decimals, which takes longer.
pub(crate) const NOW: &str = "(date_part('epoch',clock_timestamp())*1000000)::bigint";

/// The expression for the token of a grant that reserves `$2` of them, or for a number that stands for none.
fn tokens_from(tokens: TokenSource) -> String {
    let one = token(tokens);
    match tokens {
        // Another session gets some in between, for other locks.
        TokenSource::Sequence => format!(
            "CASE WHEN $2=1 THEN {one} ELSE \
             (SELECT min(number) FROM (SELECT {one} AS number FROM generate_series(1,$2)) AS reserved) END"
        ),
        _ => one,
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
pub(crate) fn in_session(tag: SessionTag, condition: &str) -> String {
    format!("SELECT (CASE WHEN {} THEN {condition} END)::text", tag.is_here())
}

/// What the name of a function ends with that takes or releases a lock.
fn suffix(mode: Mode) -> &'static str {
    if mode == Mode::Shared { "_shared" } else { "" }
}

/// Takes the lock with the key `$1` if it is free. The server reads the clock when it has granted the lock.
pub(crate) fn take(mode: Mode, tokens: TokenSource, tag: SessionTag) -> String {
    let (suffix, token) = (suffix(mode), tokens_from(tokens));
    on_primary(tag, &format!("CASE WHEN pg_try_advisory_lock{suffix}($1) THEN ({token})::text ELSE '0' END"))
}

/// Waits for the lock with the key `$1`. It follows what [`begins_wait`] says.
pub(crate) fn wait(mode: Mode, tokens: TokenSource, tag: SessionTag) -> String {
    let (suffix, token) = (suffix(mode), tokens_from(tokens));
    // The function returns nothing, which is not NULL.
    on_primary(
        tag,
        &format!("CASE WHEN pg_advisory_lock{suffix}($1) IS NULL THEN '0' ELSE ({token})::text END"),
    )
}

/// Begins the message of a wait: its comment says who waits; it switches off the limit for statements, if the session has one. If the wait
/// fails, the server takes that back.
pub(crate) fn begins_wait(comment: &str, is_limited: bool) -> String {
    format!("{comment}{}", if is_limited { "SET statement_timeout=0;" } else { "" })
}

/// Makes an exclusive lock of this session a shared one, without a gap. The session goes before those that wait, as they would
/// have to wait for it. Carried out again, it changes nothing.
pub(crate) fn downgrade(key: Key, tokens: TokenSource, tag: SessionTag, limit: Duration) -> String {
    let held = held_here(key);
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
        on_primary(tag, &downgrade)
    )
}

/// Releases whatever a session has of a lock or a semaphore.
pub(crate) fn clear(key: Key, tag: SessionTag, operation: Operation) -> String {
    let condition = held_here(key);
    let all = format!(
        "(SELECT count(CASE mode WHEN 'ShareLock' THEN pg_advisory_unlock_shared(key) ELSE pg_advisory_unlock(key) END)>0 \
         FROM (SELECT mode,{KEY_OF_ROW} AS key FROM pg_locks WHERE {condition} OFFSET 0) AS held)"
    );
    format!("{}{}", comment(operation), in_session(tag, &all))
}

/// Evaluates the expression in the session with this tag alone, on a primary; NULL elsewhere.
pub(crate) fn on_primary(tag: SessionTag, expression: &str) -> String {
    format!("SELECT CASE WHEN {} AND NOT pg_is_in_recovery() THEN {expression} END", tag.is_here())
}

/// Counts the entries of the table of locks that are taken, before what follows. The predicate locks of serializable transactions have
/// a table of their own, and the locks of the fast path are with their sessions.
pub(crate) const COUNT: &str =
    "SELECT count(*)::text FROM pg_locks WHERE mode<>'SIReadLock' AND NOT fastpath;";

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
    /// Another session has answered, or the server is a standby. Nothing is held.
    Elsewhere,
}

impl Answered {
    /// Reads the value of the last row.
    pub(crate) fn read(value: Option<&str>) -> Option<Self> {
        let Some(value) = value else { return Some(Self::Elsewhere) };
        let (word, rest) = value.split_once(' ').unwrap_or((value, ""));
        Some(match word {
            "few" => Self::AtHead,
            "passing" => Self::GateTaken,
            "0" => Self::Refused,
            "of" => Self::OtherNumber(rest.parse().ok()?),
            token => {
                let numbers = rest.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
                Self::Granted(token.parse().ok()?, numbers)
            }
        })
    }
}

/// Releases the lock with the key `$1`. The answer is whether the session had it, and NULL elsewhere.
pub(crate) fn release(mode: Mode, tag: SessionTag) -> String {
    in_session(tag, &format!("pg_advisory_unlock{}($1)", suffix(mode)))
}

/// Asks whether this is still the session with the tag, on a primary: nothing else can have ended its holds. Before, it may
/// give the session a limit for statements, in milliseconds, which waits switch off.
pub(crate) fn check(tag: SessionTag, limit: Option<u64>) -> String {
    let limit = limit.map(|limit| format!("SET statement_timeout={limit};")).unwrap_or_default();
    format!("{}{limit}SELECT concat_ws(' ',{},pg_is_in_recovery())", comment(Operation::Renew), tag.is_here())
}

/// Reads the answer to [`check`]: whether the server is a primary, and not a standby, or one again.
pub(crate) fn checked(value: Option<&str>) -> Result<bool, LockError> {
    match value {
        Some("t f") => Ok(true),
        Some("t t") => Ok(false),
        Some("f f" | "f t") => Err(shared_session(Operation::Renew)),
        other => Err(nonsense(Operation::Renew, other.unwrap_or("nothing"))),
    }
}

/// The sessions with this id: one or none. One that shows its tag is none when it no longer does.
fn from_session(id: SessionId) -> String {
    let shown = id
        .shows
        .map(|tag| format!(" AND EXISTS (SELECT FROM pg_locks WHERE {} AND pid={})", tag.is_shown(), id.pid));
    format!("FROM pg_stat_get_activity({}) WHERE {START}={}{}", id.pid, id.start, shown.unwrap_or_default())
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

/// What a session does: `advisory` if it waits for a lock, `active` if it carries out a statement; no row if it does not exist.
pub(crate) fn wait_of(id: SessionId) -> String {
    format!(
        "{}SELECT CASE WHEN wait_event_type='Lock' AND wait_event='advisory' THEN wait_event ELSE state END {}",
        comment(Operation::Inspect),
        from_session(id)
    )
}

/// How many transactions may have begun since the snapshot of a wait: `VACUUM` removes nothing that they have left behind.
const OLDEST_SNAPSHOT: u32 = 50_000;

/// Whether a session waits for the snapshot of any wait for an advisory lock of this database, or one of these sessions waits with an old
/// snapshot.
/// `CREATE INDEX CONCURRENTLY` and others wait for the lock of the transaction that has the snapshot, and for one after the
/// other: so that all of them begin anew together, it does not matter whose it is.
pub(crate) fn are_in_the_way(ids: &[SessionId]) -> String {
    let pids: Vec<_> = ids.iter().map(|id| id.pid.to_string()).collect();
    format!(
        "{}WITH seen AS MATERIALIZED (SELECT locktype,database,virtualxid,pid,granted FROM pg_locks WHERE locktype='virtualxid' OR NOT granted) \
         SELECT (EXISTS (SELECT FROM seen AS waits JOIN seen AS theirs USING (virtualxid) \
         WHERE waits.granted AND NOT theirs.granted \
         AND waits.pid IN (SELECT pid FROM seen JOIN pg_database ON oid=database \
         WHERE locktype='advisory' AND datname=current_database())) \
         OR EXISTS (SELECT FROM pg_stat_activity WHERE pid IN ({}) AND wait_event='advisory' \
         AND age(backend_xmin)>{OLDEST_SNAPSHOT}))::text",
        comment(Operation::Inspect),
        pids.join(",")
    )
}

/// What the tokens come from: whether it exists and the user may use it, which changes nothing but a number of the sequence, and how it is
/// created.
pub(crate) fn probe_and_create(tokens: TokenSource) -> Option<[String; 2]> {
    let comment = comment(Operation::Connect);
    match tokens {
        TokenSource::Clock | TokenSource::None => None,
        TokenSource::Sequence => Some([
            format!("{comment}SELECT nextval('{SEQUENCE}')::text"),
            format!("{comment}CREATE SEQUENCE IF NOT EXISTS {SEQUENCE}"),
        ]),
        TokenSource::Table => Some([table::probe_tokens(), table::create_tokens()]),
    }
}

#[cfg(test)]
mod tests {
    use lock_sql::operation_of;

    use super::*;

    fn tag() -> SessionTag {
        SessionTag::new(10)
    }

    fn key() -> Key {
        Key::of("", "orders/42")
    }

    #[test]
    fn a_statement_says_what_it_is_for() {
        let id = SessionId::new(7, 8);
        for (statement, operation) in [
            (clear(key(), tag(), Operation::Cancel), Operation::Cancel),
            (downgrade(key(), TokenSource::Clock, tag(), Duration::from_secs(1)), Operation::Downgrade),
            (check(tag(), Some(7)), Operation::Renew),
            (cancel(id), Operation::Cancel),
            (end(id, Operation::Break), Operation::Break),
        ] {
            assert_eq!(operation_of(&statement), Some(operation), "{statement}");
        }
        assert_eq!(operation_of("SELECT 1"), None);
        assert_eq!(operation_of("/*distlock dance*/SELECT 1"), None);
    }

    #[test]
    fn a_session_is_distinguished_from_a_later_one_of_the_same_process_id() {
        let id = SessionId::new(7, 8);
        for statement in [cancel(id), find(id), end(id, Operation::Break), wait_of(id)] {
            let condition = format!("FROM pg_stat_get_activity(7) WHERE {START}=8");
            assert!(statement.ends_with(&condition), "{statement}");
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
        assert!(checked(Some("t f")).unwrap() && !checked(Some("t t")).unwrap());
        assert!(checked(Some("f f")).unwrap_err().to_string().contains("pooler"));
        assert!(checked(None).is_err());
    }
}
