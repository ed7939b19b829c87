//! Slots of locks that are remembered, in a table of their own.
//!
//! One statement adds a row, or takes over a row whose time is over, and a second one in the same message reads whose row it is
//! now. A message that is carried out twice finds its own row. Another one removes the row that was read, of its writer alone: if it is
//! carried out twice, it spares what a later writer has remembered in between.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::random_bytes;
use lock_core::{LockError, LockKind, Memo, Operation, Recall, Remembered};

use crate::control::Control;
use crate::dialect::Dialect;
use crate::failure::{Failure, Why, nonsense};
use crate::session::Row;

/// How often the server may give up a statement because of others, or lack the table or the row.
const MOST_ROUNDS: usize = 4;

/// Longer than any use of a slot, and within the numbers of the servers.
const LONGEST_MEMORY: Duration = Duration::from_hours(24 * 365 * 1000);

/// Makes a slot this call's unless its time is not over, with a connection for writes to tables.
///
/// # Errors
/// Why it is not known whose slot it is.
///
/// # Cancel safety
/// The slot may be remembered.
pub(crate) async fn remember<D: Dialect>(
    auxiliary: &Arc<Control<D>>,
    memo: &Memo,
    keep: Duration,
) -> Result<Remembered, LockError> {
    let settings = auxiliary.settings();
    let limit = settings.time_to_connect() + settings.time_for(Operation::Remember) * 2;
    let asking = ask(auxiliary, memo, keep);
    let remembered = settings.in_time(limit, Operation::Remember, asking).await?;
    if remembered == Remembered::Now {
        sweep(auxiliary);
    }
    Ok(remembered)
}

async fn ask<D: Dialect>(
    auxiliary: &Control<D>,
    memo: &Memo,
    keep: Duration,
) -> Result<Remembered, LockError> {
    let writer = format!("{:032x}", u128::from_ne_bytes(random_bytes(Operation::Remember)?));
    let keep = keep.min(LONGEST_MEMORY).as_nanos().div_ceil(1000);
    let statement = D::remember(&key_of(auxiliary, memo)?, memo, &writer, keep);
    let mut round = 0;
    loop {
        round += 1;
        let failure = match auxiliary.try_to_ask(Operation::Remember, statement.clone(), None).await {
            // Its time was over between the two statements, and another client has removed it.
            Ok((_, answer)) if answer.rows.is_empty() && round < MOST_ROUNDS => continue,
            Ok((_, answer)) => {
                let row = answer.rows.first();
                row.map_or(Ok(()), D::check_slot)?;
                let remembered = row.and_then(|row| read(row, &writer));
                return remembered
                    .ok_or_else(|| nonsense(Operation::Remember, "it does not say what it remembers"));
            }
            Err(failure) => failure,
        };
        match failure.why() {
            // The server gives a statement a second for its locks; all of them together have the time of the caller.
            Some(Why::LockedOut) => round -= 1,
            Some(Why::MissingTable) if round < MOST_ROUNDS => {
                // If another client creates it at the same moment, this may fail, and the table is there.
                let created = auxiliary.ask(Operation::Remember, D::create_slots()).await;
                if round + 1 >= MOST_ROUNDS {
                    created?;
                }
            }
            // The server has undone the statement.
            Some(Why::Conflict) if round < MOST_ROUNDS => {}
            _ => return Err(failure.into_error()),
        }
    }
}

/// Returns for how much longer a slot is remembered, and removes its row if it is to be forgotten.
///
/// # Errors
/// Why it is not known.
///
/// # Cancel safety
/// The slot may be forgotten.
pub(crate) async fn recall<D: Dialect>(
    auxiliary: &Control<D>,
    memo: &Memo,
    recall: Recall,
) -> Result<Option<Duration>, LockError> {
    let settings = auxiliary.settings();
    let key = key_of(auxiliary, memo)?;
    let asking = async {
        let answer = match auxiliary.try_to_ask(Operation::Remember, D::recall(&key, memo), None).await {
            Err(failure) if failure.why() == Some(Why::MissingTable) => return Ok(None),
            said => said.map_err(Failure::into_error)?.1,
        };
        let Some(row) = answer.rows.first() else { return Ok(None) };
        D::check_slot(row)?;
        if let (Recall::Forget, Some(Some(writer))) = (recall, row.first()) {
            auxiliary.ask(Operation::Remember, D::forget(&key, memo, writer)).await?;
        }
        Ok(left(row))
    };
    let limit = settings.time_to_connect() + settings.time_for(Operation::Remember) * 2;
    settings.in_time(limit, Operation::Remember, asking).await
}

fn key_of<D: Dialect>(auxiliary: &Control<D>, memo: &Memo) -> Result<D::Key, LockError> {
    auxiliary.settings().dialect.key(memo.name(), memo.physical(), LockKind::Lock)
}

/// Reads the row that the slot has now: its writer, the end of its time, and the server's time, in microseconds.
fn read(row: &Row, writer: &str) -> Option<Remembered> {
    if row.first()?.as_deref()? == writer {
        return Some(Remembered::Now);
    }
    left(row).map(|remaining| Remembered::Already { remaining })
}

fn left(row: &Row) -> Option<Duration> {
    let [_, until, now, ..] = row.as_slice() else { return None };
    let (until, now): (u64, u64) = (until.as_deref()?.parse().ok()?, now.as_deref()?.parse().ok()?);
    Some(Duration::from_micros(until.saturating_sub(now).max(1)))
}

/// Removes some rows whose time is over, in the background. A later call removes more.
fn sweep<D: Dialect>(auxiliary: &Arc<Control<D>>) {
    let this = Arc::clone(auxiliary);
    auxiliary.settings().context.spawn(async move {
        match this.ask(Operation::Remember, D::forget_slots()).await {
            Err(error) if !error.is_retryable() => {
                tracing::warn!(target: "distlock", %error, "slots whose time is over stay in the table");
            }
            _ => {}
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_of_another_writer_is_remembered_already() {
        let row = |words: [&str; 4]| words.map(|word| Some(word.to_owned())).to_vec();
        let already = |micros| Some(Remembered::Already { remaining: Duration::from_micros(micros) });
        assert_eq!(read(&row(["a", "9", "5", ""]), "a"), Some(Remembered::Now));
        assert_eq!(read(&row(["b", "9", "5", ""]), "a"), already(4));
        assert_eq!(read(&row(["b", "5", "5", ""]), "a"), already(1));
        assert_eq!(read(&row(["b", "x", "5", ""]), "a"), None);
        assert_eq!(read(&vec![None, None, None], "a"), None);
    }
}
