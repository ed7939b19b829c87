//! The table of tokens and of those who hold locks, and what it has in common with that of [slots](crate::slots): both outlast sessions.

use lock_core::Operation;
use lock_kit::ClientRecord;
use lock_sql::{ascii_json, comment, hex};

use crate::dialect::Claim;
use crate::key::Key;
use crate::pg_locks::is_of;
use crate::server::SessionId;
use crate::statement::NOW;

/// The table of tokens that have to outlast a server, and of those who hold locks.
pub(crate) const TOKENS: &str = "distlock_tokens_of_locks";

/// The version of what the tables contain, which stands in their descriptions.
const LAYOUT: u32 = 1;

const LAYOUT_WORDS: &str = "distlock layout ";

/// The SQL expression for what the table says of a holder.
fn holder_text(holder: &ClientRecord) -> String {
    text(&ascii_json(holder))
}

/// The SQL expression for this text. As hexadecimal digits it needs no escape. The server keeps no NUL.
pub(crate) fn text(text: &str) -> String {
    let decoded = |digits: &str| format!("convert_from(decode({digits},'hex'),'UTF8')");
    let text = text.replace('\0', "\u{fffd}");
    let plain = |text: &str| decoded(&format!("'{}'", hex(text.as_bytes())));
    if text.is_ascii() {
        return plain(&text);
    }
    // A database in another encoding may lack a character. The expression is never constant: the server would evaluate it in advance.
    let all = decoded(&format!("'{}'||left(clock_timestamp()::text,0)", hex(text.as_bytes())));
    let escaped: String = text
        .chars()
        .flat_map(|character| match character {
            character if character.is_ascii() => character.to_string().chars().collect::<Vec<_>>(),
            character => character.escape_unicode().collect(),
        })
        .collect();
    format!("CASE WHEN getdatabaseencoding()='UTF8' THEN {all} ELSE {} END", plain(&escaped))
}

pub(crate) fn create_tokens() -> String {
    format!(
        "{}CREATE TABLE IF NOT EXISTS {TOKENS} (key bigint PRIMARY KEY,token bigint NOT NULL,name text NOT NULL,\
         attempt text,process integer,session bigint,since bigint,holder text);{}",
        comment(Operation::Connect),
        describe(TOKENS)
    )
}

/// Whether it exists and the user may use it; the answer is its description. Changes nothing.
pub(crate) fn probe_tokens() -> String {
    format!(
        "{}INSERT INTO {TOKENS} AS kept (key,token,name) SELECT key,token,name FROM {TOKENS} WHERE false \
         ON CONFLICT (key) DO UPDATE SET token=kept.token;{}",
        comment(Operation::Connect),
        description(TOKENS)
    )
}

pub(crate) fn describe(table: &str) -> String {
    format!("COMMENT ON TABLE {table} IS '{LAYOUT_WORDS}{LAYOUT}'")
}

/// The statement for the description of a table.
fn description(table: &str) -> String {
    format!("SELECT obj_description('{table}'::regclass,'pg_class')")
}

/// Whether a table with this description is one of a later release.
pub(crate) fn is_newer(description: Option<&str>) -> bool {
    let layout = description.and_then(|words| words.strip_prefix(LAYOUT_WORDS)?.parse::<u32>().ok());
    layout.is_some_and(|layout| layout > LAYOUT)
}

/// Mints a token in the table, and those of the sections that follow; the row has the last one. They also depend on the
/// clock, because a server that replaces another one may lack its last rows. An exclusive holder is written down; others are
/// beside each other, and leave no row.
pub(crate) fn mint(claim: &Claim, session: SessionId) -> String {
    let (key, name) = (claim.key, text(claim.name.as_str()));
    let [more, less] = match claim.sections.get() - 1 {
        0 => [String::new(), String::new()],
        more => [format!("+{more}"), format!("-{more}")],
    };
    let record = match &claim.holder {
        Some(holder) => {
            format!("'{}',{},{},{NOW},{}", claim.id, session.pid, session.start, holder_text(holder))
        }
        None => "NULL,NULL,NULL,NULL,NULL".to_owned(),
    };
    format!(
        "{}INSERT INTO {TOKENS} AS kept (key,token,name,attempt,process,session,since,holder) \
         VALUES ({key},{NOW}{more},{name},{record}) ON CONFLICT (key) DO UPDATE SET \
         token=greatest(kept.token+1{more},excluded.token),name=excluded.name,attempt=excluded.attempt,\
         process=excluded.process,session=excluded.session,since=excluded.since,holder=excluded.holder \
         RETURNING (token{less})::text",
        comment(Operation::Acquire)
    )
}

/// Ends what the table says of this session's last hold of a lock, before the session asks for the lock again: otherwise the row
/// would seem to be about the next hold until that has its token. It need not be on the disk: a crash ends the session, too. Both
/// statements are one transaction without a `BEGIN`, which a statement that is cancelled would leave open, and failed.
pub(crate) fn end_record(key: Key, session: SessionId) -> String {
    format!(
        "{}SET LOCAL synchronous_commit=off;\
         UPDATE {TOKENS} SET attempt=NULL WHERE key={key} AND process={} AND session={}",
        comment(Operation::Acquire),
        session.pid,
        session.start
    )
}

/// What the table says of a holder in a row of `pg_locks`: the attempt, the token, since when, and what it says of itself.
pub(crate) const RECORD: &str = "kept.attempt,kept.token::text,kept.since::text,kept.holder";

/// How many columns a row with a record has: the process and the start of its session, and what it says.
pub(crate) const COLUMNS_OF_RECORD: usize = 6;

/// Another statement, for the names, keys and records of those locks whose keys this query has.
pub(crate) fn named(keys: &str) -> String {
    format!(
        ";SELECT name,key::text,process::text,session::text,{RECORD} FROM {TOKENS} AS kept JOIN ({keys}) AS used USING (key)"
    )
}

/// Another statement, for the record of a lock, if there is one.
pub(crate) fn record(key: Key) -> String {
    format!(
        ";SELECT process::text,session::text,{RECORD} FROM {TOKENS} AS kept WHERE key={key} AND attempt IS NOT NULL"
    )
}

/// The condition that the table says so of this attempt. Until the end of the statement, the session cannot end the record, and so
/// not ask for the lock again.
pub(crate) fn records(key: Key, attempt: &str, session: SessionId) -> String {
    format!(
        "EXISTS (SELECT FROM {TOKENS} WHERE key={key} AND attempt={} AND process={} AND session={} FOR SHARE)",
        text(attempt),
        session.pid,
        session.start
    )
}

/// Replaces what the table says of a holder, if it still holds the lock: a row, or none.
pub(crate) fn update(claim: &Claim, session: SessionId, holder: &ClientRecord) -> String {
    let (key, attempt) = (claim.key, claim.id);
    let held = format!("{} AND granted AND mode='ExclusiveLock' AND pid={}", is_of(key), session.pid);
    format!(
        "{}UPDATE {TOKENS} SET holder={} WHERE key={key} AND attempt='{attempt}' AND process={} AND session={} \
         AND EXISTS (SELECT FROM pg_locks WHERE {held}) RETURNING 1::text",
        comment(Operation::Describe),
        holder_text(holder),
        session.pid,
        session.start
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_later_release_is_distinguished_from_ours() {
        for (description, newer) in [
            (None, false),
            (Some("made by hand"), false),
            (Some("distlock layout 1"), false),
            (Some("distlock layout 2"), true),
        ] {
            assert_eq!(is_newer(description), newer, "{description:?}");
        }
    }

    #[test]
    fn a_text_needs_no_escape() {
        assert_eq!(text("a'\\"), "convert_from(decode('61275c','hex'),'UTF8')");
        let either = text("é\0");
        assert!(either.contains("c3a9efbfbd") && either.contains("5c757b65397d"), "{either}");
    }
}
