//! What the server's view `pg_locks` says of a lock: which rows are about it, who holds it, and who waits for it.

use lock_core::{LockKind, Operation};
use lock_sql::{Row, comment};

use crate::key::{Key, SEMAPHORE_KEYS};
use crate::options::TokenSource;
use crate::server::{START, SessionId};
use crate::session_tag::is_of_a_tag;
use crate::statement::end;
use crate::table;

/// The condition on a row of `pg_locks` that it is about this database.
const HERE: &str = "database=(SELECT oid FROM pg_database WHERE datname=current_database())";

/// The condition on a row of `pg_locks` that it is about this lock, or about any lock of this semaphore.
pub(crate) fn is_of(key: Key) -> String {
    let (high, low) = key.halves();
    let last = low + key.count() - 1;
    format!(
        "locktype='advisory' AND objsubid=1 AND classid={high}::oid AND objid BETWEEN {low}::oid AND {last}::oid AND {HERE}"
    )
}

/// The SQL expression for the key in a row of `pg_locks`.
pub(crate) const KEY_OF_ROW: &str = "(classid::bigint<<32|objid::bigint)";

/// The condition on a row of `pg_locks` that this session has it.
pub(crate) fn held_here(key: Key) -> String {
    format!("{} AND granted AND pid=pg_backend_pid()", is_of(key))
}

/// Who holds the lock and who waits for it, in order; after it, what the table says of a holder. To acquire, only the holders matter.
///
/// Of each session: the process, whether it has the lock, the start of its session, its name, its address, its statement, since when it
/// waits, the mode, how many keys after the first one this one is, and four columns for a record.
///
/// A statement reads the table as it was when the statement began, and the locks as they are when it comes to them: one for both would
/// take the record of a hold that has ended for that of the next one. A session ends the record of its last hold before it asks for
/// the lock again. So a record that is read after the locks is about that hold, or about one that came later.
pub(crate) fn participants(key: Key, tokens: TokenSource, operation: Operation) -> String {
    let has_record = tokens == TokenSource::Table && key.kind() == LockKind::Lock;
    let record = if has_record { table::record(key) } else { String::new() };
    let granted = if operation == Operation::Acquire { " AND granted" } else { "" };
    let offset = format!("(objid::bigint-{})::text", key.halves().1);
    parties(operation, &offset, &(is_of(key) + granted)) + &record
}

/// Reads the rows of both statements: those of the first, with the record in that of the session that it names.
pub(crate) fn with_record(mut rows: Vec<Row>) -> Vec<Row> {
    let Some(record) = rows.pop_if(|row| row.len() == table::COLUMNS_OF_RECORD) else { return rows };
    let [process, session, said @ ..] = record.as_slice() else { return rows };
    let is_holder = |row: &&mut Row| {
        let of = |column: usize| row.get(column).and_then(Option::as_deref);
        of(0) == process.as_deref()
            && of(1) == Some("true")
            && of(2) == session.as_deref()
            && of(7) == Some("ExclusiveLock")
    };
    if let Some(row) = rows.iter_mut().find(is_holder) {
        row.truncate(row.len() - said.len());
        row.extend_from_slice(said);
    }
    rows
}

/// The same of all locks, with its own key in place of how many keys after the first one it is; and what the table says of each. The locks
/// of a semaphore are behind its key.
pub(crate) fn all() -> String {
    let advisory = format!("locktype='advisory' AND objsubid=1 AND {HERE}");
    let keys = |key: &str| format!("SELECT {key} AS key FROM pg_locks WHERE {advisory}");
    let of_semaphores = keys(&format!("{KEY_OF_ROW}&(-{SEMAPHORE_KEYS})"));
    let names = table::named(&format!("{} UNION {of_semaphores}", keys(KEY_OF_ROW)));
    parties(Operation::Inspect, &format!("{KEY_OF_ROW}::text"), &advisory) + &names
}

/// The columns of those who have or want locks under a condition.
fn parties(operation: Operation, offset: &str, condition: &str) -> String {
    format!(
        "{}SELECT pid::text,granted::text,{START}::text,application_name,host(client_addr),query,\
         (extract(epoch FROM waitstart)*1000000)::bigint::text,mode,{offset},\
         NULL::text,NULL::text,NULL::text,NULL::text FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) \
         WHERE {condition} ORDER BY granted DESC,waitstart,pid",
        comment(operation)
    )
}

/// Ends a session that has the lock; no row if it does not. With the id of an acquisition, that has to be the holder still: the session
/// may have released it meanwhile, and have other locks by now.
pub(crate) fn end_holder(key: Key, id: SessionId, acquisition: Option<&str>) -> String {
    let held = format!("EXISTS (SELECT FROM pg_locks WHERE {} AND granted AND pid={})", is_of(key), id.pid);
    let recorded = acquisition.map(|attempt| format!(" AND {}", table::records(key, attempt, id)));
    format!("{} AND {held}{}", end(id, Operation::Break), recorded.unwrap_or_default())
}

/// How many advisory locks a session has besides this one and that of its tag.
pub(crate) fn others(key: Key, id: SessionId) -> String {
    let (comment, lock, tag) = (comment(Operation::Break), is_of(key), is_of_a_tag());
    format!(
        "{comment}SELECT count(*)::text FROM pg_locks WHERE locktype='advisory' AND granted AND pid={} \
         AND NOT ({lock}) AND NOT ({tag})",
        id.pid
    )
}
