//! The SQL statements, as text.
//!
//! Each begins with a comment that names its purpose, for operators who inspect the server and for tests. Names of locks consist of
//! [plain](crate::options::is_plain) characters and need no escapes.

use std::fmt::Write as _;

use lock_core::{AttemptId, FencingToken, LeaseState, LockError, LossReason, Mode, Operation};
use lock_kit::ClientRecord;
use lock_sql::{COMMENT, comment, hex, nonsense, word_of};
use serde::{Deserialize, Serialize};

use crate::dialect::Claim;
use crate::parts::{Name, Parts};
use crate::run::Run;
use crate::session_tag::SessionTag;

/// How long a wait lasts at the server, in seconds: longer than a usual wait, and short enough for any server. A wait that reaches
/// this end starts again.
pub(crate) const LONGEST_WAIT: u32 = 24 * 60 * 60;

/// Whether the server is a replica, or was made one. Newer versions of `MariaDB` answer with a word.
pub(crate) const READ_ONLY: &str = "@@global.read_only";

/// Reads a server's answer to [`READ_ONLY`].
pub(crate) fn is_read_only(answer: &str) -> bool {
    !matches!(answer, "0" | "OFF")
}

/// The number of the session's tag, or zero.
pub(crate) const TAG: &str = "IFNULL(@distlock,0)";

/// The table of tokens that have to outlast a server.
pub(crate) const TABLE: &str = "distlock_locks";

/// The server's time when it evaluates this, in microseconds since the epoch.
pub(crate) const NOW: &str = "CAST(UNIX_TIMESTAMP(SYSDATE(6))*1000000 AS UNSIGNED)";

/// The names of the locks that a statement waits for, or what those of slots begin with, whatever its comment says.
pub(crate) fn waited_for(statement: &str) -> impl Iterator<Item = &str> {
    let behind = statement.split_once(COMMENT).and_then(|(_, rest)| rest.split_once("*/"));
    let calls = behind.map_or(statement, |(_, rest)| rest).split("_LOCK(").skip(1);
    let arguments = calls.map(|call| call.trim_start_matches("CONCAT("));
    arguments.filter_map(|text| Some(text.strip_prefix('\'')?.split_once('\'')?.0))
}

/// Whether a statement waits for this lock.
pub(crate) fn waits_for(statement: &str, parts: &Parts) -> bool {
    waited_for(statement).any(|name| parts.contain(name))
}

/// Calls a function for each of these locks. The answer has a word for each, behind those of `first`.
fn words<'a>(
    operation: Operation,
    first: &str,
    names: impl Iterator<Item = &'a str>,
    call: [&str; 2],
) -> String {
    let mut text = format!("SELECT {} CONCAT_WS(' '{first}", comment(operation));
    let [begin, end] = call;
    for name in names {
        // Writing to a string cannot fail.
        let _ = write!(text, ",IFNULL({begin}('{name}'),{end})");
    }
    text.push_str(")a");
    text
}

/// Releases locks. The answer is a word for each: 1 if it was this session's, 0 if it is another's, -1 if it is free or the statement
/// was interrupted.
pub(crate) fn release<'a>(names: impl Iterator<Item = &'a str>, operation: Operation) -> String {
    words(operation, "", names, ["RELEASE_LOCK", "-1"])
}

/// Asks which connections hold these locks, on a connection that has them.
pub(crate) fn check<'a>(names: impl Iterator<Item = &'a str>) -> String {
    words(Operation::Renew, &format!(",{TAG},{READ_ONLY}"), names, ["IS_USED_LOCK", "0"])
}

/// Reads the answer to [`check`] for `count` locks of a connection with this tag: the state of each, in the order of the question. All are
/// lost with the [session](LossReason::SessionClosed) if the server has become a replica.
pub(crate) fn checked(
    text: &str,
    connection: u64,
    tag: SessionTag,
    count: usize,
) -> Result<Vec<LeaseState>, LockError> {
    let broken = || nonsense(Operation::Renew, text);
    let words: Vec<_> = text.split(' ').collect();
    let [answering, read_only, holders @ ..] = words.as_slice() else { return Err(broken()) };
    let holders: Vec<u64> =
        holders.iter().map(|word| word.parse()).collect::<Result<_, _>>().map_err(|_| broken())?;
    let answering: u64 = answering.parse().map_err(|_| broken())?;
    if holders.len() != count {
        return Err(broken());
    }
    if answering != tag.number() {
        return Err(nonsense(
            Operation::Renew,
            "another session has answered, or other clients share this session",
        ));
    }
    if is_read_only(read_only) {
        return Ok(vec![LeaseState::Lost(LossReason::SessionClosed); count]);
    }
    let state = |holder: &u64| match *holder {
        0 => LeaseState::Lost(LossReason::Deleted),
        holder if holder == connection => LeaseState::Held,
        _ => LeaseState::Lost(LossReason::Taken),
    };
    Ok(holders.iter().map(state).collect())
}

/// Cancels what a connection waits for.
pub(crate) fn cancel(connection: u64) -> String {
    format!("KILL {} QUERY {connection}", comment(Operation::Cancel))
}

/// Ends a connection if it has this lock, at which the server looks when it carries out the command. No connection has the number 0.
pub(crate) fn end(connection: u64, name: &str, operation: Operation) -> String {
    let comment = comment(operation);
    format!("KILL {comment} CONNECTION IF(IS_USED_LOCK('{name}')={connection},{connection},0)")
}

/// The same, if the newest record of the connection for one of these parts has this token: the server's KILL cannot read the table, so
/// the record is read just before, in the same message.
pub(crate) fn end_of(
    connection: u64,
    name: &str,
    token: FencingToken,
    parts: &[Name],
    operation: Operation,
) -> String {
    format!(
        "SET {} @distlock_newest=(SELECT MAX(token) FROM {TABLE} WHERE name IN ({}) AND connection={connection});\
         KILL CONNECTION IF(IS_USED_LOCK('{name}')={connection} AND @distlock_newest={token},{connection},0)",
        comment(operation),
        quoted(parts)
    )
}

fn quoted(names: &[Name]) -> String {
    names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",")
}

/// What a connection does; no row if it does not exist.
pub(crate) fn state_of(connection: u64, operation: Operation) -> String {
    format!(
        "SELECT {} IFNULL(STATE,'') FROM information_schema.PROCESSLIST WHERE ID={connection}",
        comment(operation)
    )
}

/// Which connections hold these locks, in order and separated by spaces; 0 for a free lock. The server's cost depends on the number
/// of names, not on the number of its connections.
pub(crate) fn holders<'a>(names: impl Iterator<Item = &'a str>, operation: Operation) -> String {
    words(operation, "", names, ["IS_USED_LOCK", "0"])
}

/// The waiters for a part of this lock: since which second, and with which statement.
pub(crate) fn waiters(parts: &Parts) -> String {
    let (gate, stem) = (&parts.gate, parts.stem());
    format!("{} AND (LOCATE('GET_LOCK(''{gate}'',',INFO)>0 OR LOCATE('(''{stem}',INFO)>0)", all_waiters())
}

/// The same of all locks.
fn all_waiters() -> String {
    format!(
        "SELECT {} CAST(ID AS CHAR),CAST(UNIX_TIMESTAMP()-TIME AS CHAR),INFO FROM information_schema.PROCESSLIST \
         WHERE STATE='User lock'",
        comment(Operation::Inspect)
    )
}

/// The address from which a connection comes.
pub(crate) fn peer(connection: u64) -> String {
    format!(
        "SELECT {} HOST FROM information_schema.PROCESSLIST WHERE ID={connection}",
        comment(Operation::Inspect)
    )
}

/// The layout of what these clients keep in their table, and of the names of their locks: the comment on the table. All clients of a table
/// have the same, so that each understands what another one has written, and no writer looks at fewer slots than there are readers.
pub(crate) const LAYOUT: &str = "layout=1 readers=16";

pub(crate) fn create_table() -> String {
    format!(
        "CREATE {} TABLE IF NOT EXISTS {TABLE} (\
         name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,\
         token BIGINT UNSIGNED NOT NULL,\
         attempt CHAR(32) CHARACTER SET ascii NOT NULL,\
         connection BIGINT UNSIGNED NOT NULL,\
         run VARCHAR(200) CHARACTER SET ascii NOT NULL,\
         since BIGINT UNSIGNED NOT NULL,\
         holder BLOB NOT NULL\
         ) ENGINE=InnoDB COMMENT='{LAYOUT}'",
        comment(Operation::Connect)
    )
}

/// Whether the table exists and the user may read and write it; its layout. Changes nothing.
pub(crate) fn probe_table() -> String {
    let columns = "name,token,attempt,connection,run,since,holder";
    format!(
        "INSERT {} INTO {TABLE} ({columns}) SELECT {columns} FROM (SELECT * FROM {TABLE} WHERE name='') AS nothing \
         ON DUPLICATE KEY UPDATE token=VALUES(token);\
         SELECT TABLE_COMMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA=DATABASE() AND TABLE_NAME='{TABLE}'",
        comment(Operation::Connect)
    )
}

/// What the table records about a hold: its holder, as text that only this crate reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    /// The name that the user gave the lock.
    pub(crate) lock: String,
    #[serde(flatten)]
    pub(crate) client: ClientRecord,
    /// The mode, unless it is exclusive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<String>,
    /// Whether this is an attempt that has the gate and waits for what is behind it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) waits: bool,
}

impl Holder {
    /// What the table says of an attempt, if there is a table.
    pub(crate) fn of(claim: &Claim) -> Option<Self> {
        let client = ClientRecord::clone(claim.holder.as_deref()?);
        Some(Self { lock: claim.name.as_str().to_owned(), client, mode: word_of(claim.mode), waits: false })
    }

    /// The text for the table, in hexadecimal digits.
    fn digits(&self) -> String {
        hex(&serde_json::to_vec(self).unwrap_or_default())
    }
}

/// Mints the token of a hold in the table, and records its holder. The answer is the token. An exclusive hold also
/// mints those of the sections that follow; its row has the last one. Others are beside each other: their tokens rise with each grant, and
/// each is recorded in the row of its first slot.
///
/// The token also depends on the clock, because a server that replaces another one may lack its last rows.
pub(crate) fn mint(claim: &Claim, first: &str, run: &Run, holder: &Holder) -> String {
    let (gate, id) = (&claim.key.gate, claim.id);
    let new = format!("LAST_INSERT_ID({NOW})");
    let next = format!("LAST_INSERT_ID(GREATEST(token+1,{NOW}))");
    let minting = if claim.mode == Mode::Exclusive {
        let more = match claim.sections.get() - 1 {
            0 => String::new(),
            more => format!("+{more}"),
        };
        record(gate, [&(new + &more), &(next + &more)], id, run, holder)
    } else {
        format!(
            "INSERT {} INTO {TABLE} (name,token,attempt,connection,run,since,holder) \
             VALUES ('{gate}',{new},'',0,'',0,'') ON DUPLICATE KEY UPDATE token={next};{}",
            comment(Operation::Acquire),
            record(first, ["LAST_INSERT_ID()"; 2], id, run, holder)
        )
    };
    minting + ";SELECT CAST(LAST_INSERT_ID() AS CHAR)"
}

/// Records an attempt that waits behind the gate, in the row of the gate. Changes no token.
pub(crate) fn note(gate: &str, attempt: AttemptId, run: &Run, holder: &Holder) -> String {
    record(gate, ["0", "token"], attempt, run, holder)
}

/// Writes a row with one token if it is new, and another one if it is not.
fn record(name: &str, [new, next]: [&str; 2], attempt: AttemptId, run: &Run, holder: &Holder) -> String {
    let (comment, bytes) = (comment(Operation::Acquire), holder.digits());
    format!(
        "INSERT {comment} INTO {TABLE} (name,token,attempt,connection,run,since,holder) \
         VALUES ('{name}',{new},'{attempt}',CONNECTION_ID(),'{run}',{NOW},x'{bytes}') \
         ON DUPLICATE KEY UPDATE token={next},attempt=VALUES(attempt),\
         connection=VALUES(connection),run=VALUES(run),since=VALUES(since),holder=VALUES(holder)"
    )
}

/// A token that is not minted with a lock.
pub(crate) const NUMBER: &str = "SELECT /*distlock acquire*/ CAST(UUID_SHORT() AS CHAR)";

/// Replaces what the table says of a holder, if its connection still has the lock and the row is still its own. The answer is a
/// row for each such row.
pub(crate) fn describe(claim: &Claim, connection: u64, holder: &Holder) -> String {
    let (name, attempt) = (&claim.key.gate, claim.id);
    let (comment, bytes) = (comment(Operation::Describe), holder.digits());
    let own = format!(
        "WHERE name='{name}' AND attempt='{attempt}' AND connection={connection} \
         AND IS_USED_LOCK('{name}')={connection}"
    );
    format!(
        "UPDATE {comment} {TABLE} SET holder=x'{bytes}' {own};\
         SELECT {comment} '1' FROM {TABLE} {own}"
    )
}

/// What the table says of the last holders of these parts, by name.
pub(crate) fn last_holders(names: &[Name], operation: Operation) -> String {
    format!("SELECT {} {RECORD} FROM {TABLE} WHERE name IN ({})", comment(operation), quoted(names))
}

/// The columns of the table's record of a holder, behind the name.
const RECORD: &str = "name,CAST(token AS CHAR),attempt,CAST(connection AS CHAR),run,CAST(since AS CHAR),CONVERT(holder USING utf8mb4)";

/// What the table says of the last holders of those of this prefix's locks that are held, by name, and which connection holds each; and
/// who waits for any lock.
pub(crate) fn held(prefix: &str) -> String {
    // A semicolon is next to the colon.
    let ours = if prefix.is_empty() {
        String::new()
    } else {
        format!("name>='{prefix}:' AND name<'{prefix};' AND ")
    };
    format!(
        "SELECT {} {RECORD},CAST(IS_USED_LOCK(name) AS CHAR) FROM {TABLE} \
         WHERE {ours}holder<>'' AND IS_USED_LOCK(name) IS NOT NULL;{}",
        comment(Operation::Inspect),
        all_waiters()
    )
}

/// Which other locks of the table a connection holds, by the names that their users gave them.
pub(crate) fn also_held(connection: u64, name: &str) -> String {
    format!(
        "SELECT {} CONVERT(holder USING utf8mb4) FROM {TABLE} WHERE connection={connection} \
         AND name<>'{name}' AND IS_USED_LOCK(name)={connection}",
        comment(Operation::Break)
    )
}

#[cfg(test)]
mod tests {
    use lock_core::LockKind;
    use lock_sql::operation_of;

    use super::*;

    /// Other versions read it.
    #[test]
    fn the_stored_form_is_what_it_was() {
        let client = ClientRecord { host: "h".to_owned(), pid: 7, ..ClientRecord::default() };
        let holder = Holder { lock: "a/b".to_owned(), client, mode: None, waits: false };
        let waiter = Holder { mode: Some("1/3".to_owned()), waits: true, ..holder.clone() };
        for (record, stored) in [
            (holder, r#"{"lock":"a/b","host":"h","pid":7}"#),
            (waiter, r#"{"lock":"a/b","host":"h","pid":7,"mode":"1/3","waits":true}"#),
        ] {
            assert_eq!(record.digits(), hex(stored.as_bytes()));
            assert_eq!(serde_json::from_str::<Holder>(stored).unwrap(), record);
        }
    }

    #[test]
    fn the_layout_says_how_many_slots_there_are() {
        assert!(LAYOUT.ends_with(&format!("={}", crate::parts::READER_SLOTS)));
    }

    #[test]
    fn a_statement_says_what_it_is_for() {
        for (statement, operation) in [
            (release(["a"].into_iter(), Operation::Cancel), Operation::Cancel),
            (release(["a"].into_iter(), Operation::Release), Operation::Release),
            (check(["a"].into_iter()), Operation::Renew),
            (cancel(1), Operation::Cancel),
            (end(1, "a", Operation::Break), Operation::Break),
        ] {
            assert_eq!(operation_of(&statement), Some(operation), "{statement}");
        }
        assert_eq!(operation_of("SELECT 1"), None);
        assert_eq!(operation_of("SELECT /*distlock dance*/ 1"), None);
    }

    #[test]
    fn a_waiter_is_known_by_its_statement_and_not_by_its_comment() {
        let [a, b] = ["a", "b"].map(|name| Parts::new(name.into(), LockKind::Lock));
        for comment in ["/*distlock acquire GET_LOCK('b',*/", "/*distlock acquire*/", ""] {
            for name in ["'a'", "'a|7'", "CONCAT('a|',@distlock_count)"] {
                let statement = format!("SELECT {comment} GET_LOCK({name},9)");
                assert!(waits_for(&statement, &a) && !waits_for(&statement, &b), "{statement}");
            }
        }
    }

    #[test]
    fn what_is_held_is_distinguished_from_what_is_not() {
        let (connection, tag) = (7, SessionTag::new(10));
        let checked = |text, count| checked(text, connection, tag, count);
        let (held, lost) = (LeaseState::Held, LeaseState::Lost);
        assert_eq!(
            checked("5 0 7 0 8", 3).unwrap(),
            [held, lost(LossReason::Deleted), lost(LossReason::Taken)]
        );
        assert_eq!(checked("5 1 7", 1).unwrap(), [lost(LossReason::SessionClosed)]);
        assert_eq!(checked("5 OFF 7", 1).unwrap(), [held]);
        assert_eq!(checked("5 NO_LOCK_NO_ADMIN 7", 1).unwrap(), [lost(LossReason::SessionClosed)]);
        for text in ["", "5", "5 0", "5 0 7 7", "5 0 x"] {
            assert!(checked(text, 1).is_err(), "{text}");
        }
        let text = checked("9 0 7", 1).err().unwrap().to_string();
        assert!(text.contains("another session"), "{text}");
    }
}
