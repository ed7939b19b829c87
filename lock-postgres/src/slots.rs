//! The table of slots that are remembered.

use lock_core::{LockError, Memo, Operation};
use lock_sql::{Row, Slots, comment, newer_layout};

use crate::dialect::Postgres;
use crate::key::Key;
use crate::statement::NOW;
use crate::table::{describe, is_newer, text};

const SLOTS: &str = "distlock_slots";

/// How many slots whose time is over are removed at once.
const SWEPT_AT_ONCE: u32 = 100;

impl Slots<Self> for Postgres {
    fn create_slots() -> String {
        let comment = comment(Operation::Remember);
        format!(
            "{comment}CREATE TABLE IF NOT EXISTS {SLOTS} (key bigint,id text,name text NOT NULL,slot text NOT NULL,\
             writer text NOT NULL,kept_until bigint NOT NULL,PRIMARY KEY (key,id));\
             CREATE INDEX IF NOT EXISTS {SLOTS}_by_end ON {SLOTS} (kept_until);{}",
            describe(SLOTS)
        )
    }

    fn remember(key: &Key, memo: &Memo, writer: &str, keep: u128) -> String {
        let (comment, id) = (comment(Operation::Remember), memo.key());
        let (name, slot) = (text(memo.name().as_str()), text(memo.slot()));
        format!(
            "{comment}INSERT INTO {SLOTS} AS kept (key,id,name,slot,writer,kept_until) \
             VALUES ({key},'{id}',{name},{slot},'{writer}',{NOW}+{keep}) \
             ON CONFLICT (key,id) DO UPDATE SET writer=excluded.writer,kept_until=excluded.kept_until \
             WHERE kept.kept_until<={NOW};{}",
            read(*key, memo)
        )
    }

    fn recall(key: &Key, memo: &Memo) -> String {
        format!("{}{} AND kept_until>{NOW}", comment(Operation::Remember), read(*key, memo))
    }

    fn forget(key: &Key, memo: &Memo, writer: &str) -> String {
        let (comment, row, writer) = (comment(Operation::Remember), row(*key, memo), text(writer));
        format!("{comment}DELETE {row} AND writer={writer}")
    }

    fn check_slot(row: &Row) -> Result<(), LockError> {
        let is_newer = is_newer(row.get(3).and_then(Option::as_deref));
        if is_newer { Err(newer_layout(Operation::Remember, SLOTS)) } else { Ok(()) }
    }

    fn forget_slots() -> String {
        format!(
            "{}DELETE FROM {SLOTS} WHERE (key,id) IN (SELECT key,id FROM {SLOTS} WHERE kept_until<={NOW} \
             ORDER BY kept_until LIMIT {SWEPT_AT_ONCE} FOR UPDATE SKIP LOCKED)",
            comment(Operation::Remember)
        )
    }
}

/// Also reads the description of the table.
fn read(key: Key, memo: &Memo) -> String {
    format!(
        "SELECT writer,kept_until::text,{NOW}::text,obj_description('{SLOTS}'::regclass,'pg_class') {}",
        row(key, memo)
    )
}

fn row(key: Key, memo: &Memo) -> String {
    format!("FROM {SLOTS} WHERE key={key} AND id='{}'", memo.key())
}
