//! The table of slots that are remembered.

use lock_core::{Memo, Operation};
use lock_sql::{Slots, comment, hex};

use crate::dialect::MySql;
use crate::parts::Parts;
use crate::statement::NOW;

const SLOTS: &str = "distlock_slots";

/// How many of them one statement removes.
const SWEPT_AT_ONCE: usize = 16;

impl Slots<Self> for MySql {
    fn create_slots() -> String {
        format!(
            "CREATE {} TABLE IF NOT EXISTS {SLOTS} (\
             name VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\
             id CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,\
             slot VARBINARY({}) NOT NULL,\
             writer CHAR(32) CHARACTER SET ascii NOT NULL,\
             kept_until BIGINT UNSIGNED NOT NULL,\
             PRIMARY KEY (name,id),\
             KEY (kept_until)\
             ) ENGINE=InnoDB",
            comment(Operation::Remember),
            Memo::MAX_LENGTH
        )
    }

    /// The assignments are made in order, so the second sees the outcome of the first.
    ///
    /// The reading locks the row, because only then does it see what the writing has seen. When `MariaDB` commits, a row is free to be
    /// locked a moment before snapshots show it: a plain reading would miss a row that the writing has just found.
    fn remember(key: &Parts, memo: &Memo, writer: &str, keep: u128) -> String {
        let (comment, name, slot) = (comment(Operation::Remember), &key.gate, hex(memo.slot().as_bytes()));
        format!(
            "INSERT {comment} INTO {SLOTS} (name,id,slot,writer,kept_until) \
             VALUES ('{name}','{}',x'{slot}','{writer}',{NOW}+{keep}) \
             ON DUPLICATE KEY UPDATE writer=IF(kept_until<={NOW},VALUES(writer),writer),\
             kept_until=IF(writer=VALUES(writer),{NOW}+{keep},kept_until);\
             {}",
            memo.key(),
            read(key, memo, "")
        )
    }

    fn recall(key: &Parts, memo: &Memo) -> String {
        read(key, memo, &format!("AND kept_until>{NOW} "))
    }

    fn forget(key: &Parts, memo: &Memo, writer: &str) -> String {
        let (comment, row, writer) = (comment(Operation::Remember), row(key, memo), hex(writer.as_bytes()));
        format!("DELETE {comment} {row} AND writer=x'{writer}'")
    }

    fn forget_slots() -> String {
        format!(
            "DELETE {} FROM {SLOTS} WHERE kept_until<={NOW} ORDER BY kept_until LIMIT {SWEPT_AT_ONCE}",
            comment(Operation::Remember)
        )
    }
}

fn read(key: &Parts, memo: &Memo, condition: &str) -> String {
    format!(
        "SELECT {} writer,CAST(kept_until AS CHAR),CAST({NOW} AS CHAR) {} {condition}LOCK IN SHARE MODE",
        comment(Operation::Remember),
        row(key, memo)
    )
}

fn row(key: &Parts, memo: &Memo) -> String {
    format!("FROM {SLOTS} WHERE name='{}' AND id='{}'", key.gate, memo.key())
}
