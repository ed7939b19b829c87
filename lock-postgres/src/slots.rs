//! Slots of locks that are remembered, in a table of their own.
//!
//! One statement adds a row, or takes over a row whose time is over, and a second one in the same message reads whose row it is
//! now. A message that is carried out twice finds its own row.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{ErrorKind, LockError, LockKind, Memo, Operation, Remembered};

use crate::backend::PostgresBackend;
use crate::failure::{newer_layout, no_answer, nonsense};
use crate::session::Row;
use crate::table;

/// How often the server may give up a statement because of others, or lack the table or the row.
const MOST_ROUNDS: usize = 4;

pub(crate) async fn remember(
    backend: &PostgresBackend,
    memo: &Memo,
    keep: Duration,
) -> Result<Remembered, LockError> {
    let clock = backend.context.clock();
    let limit = backend.settings.time_to_connect() + backend.settings.request_timeout * 2;
    let asked = within(clock, clock.now().plus(limit), ask(backend, memo, keep)).await;
    let remembered = asked.unwrap_or_else(|| Err(no_answer(Operation::Remember)))?;
    if remembered == Remembered::Now {
        sweep(backend);
    }
    Ok(remembered)
}

async fn ask(backend: &PostgresBackend, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
    let writer = random()?;
    let key = backend.key(memo.name(), LockKind::Lock)?;
    let statement = table::remember(key, memo, &writer, keep);
    let mut round = 0;
    loop {
        round += 1;
        match backend.auxiliary.try_to_ask(Operation::Remember, statement.clone()).await {
            // Its time was over between the two statements, and another client has removed it.
            Ok(answer) if answer.rows.is_empty() && round < MOST_ROUNDS => {}
            Ok(answer) => {
                let row = answer.rows.first();
                if table::is_newer(row.and_then(|row| row.get(3)?.as_deref())) {
                    return Err(newer_layout(Operation::Remember, table::SLOTS));
                }
                let remembered = row.and_then(|row| read(row, &writer));
                return remembered
                    .ok_or_else(|| nonsense(Operation::Remember, "it does not say what it remembers"));
            }
            Err(failure) if round >= MOST_ROUNDS => return Err(failure.into_error()),
            Err(failure) if failure.is_missing_table() => {
                // If another client creates it at the same moment, this fails, and the table is there.
                let created = backend.auxiliary.try_to_ask(Operation::Remember, table::create_slots()).await;
                if let Err(failure) = created
                    && round + 1 >= MOST_ROUNDS
                {
                    return Err(failure.into_error());
                }
            }
            // The server has undone the statement.
            Err(failure) if failure.is_conflict() => {}
            Err(failure) => return Err(failure.into_error()),
        }
    }
}

/// Reads the row that the slot has now: its writer, the end of its time, and the server's time, in microseconds.
fn read(row: &Row, writer: &str) -> Option<Remembered> {
    let [found, until, now, _] = row.as_slice() else { return None };
    if found.as_deref()? == writer {
        return Some(Remembered::Now);
    }
    let (until, now): (u64, u64) = (until.as_deref()?.parse().ok()?, now.as_deref()?.parse().ok()?);
    Some(Remembered::Already { remaining: Duration::from_micros(until.saturating_sub(now).max(1)) })
}

/// Removes some rows whose time is over, in the background. A later call removes more.
fn sweep(backend: &PostgresBackend) {
    let auxiliary = Arc::clone(&backend.auxiliary);
    backend.context.spawn(async move {
        match auxiliary.ask(Operation::Remember, table::forget_slots()).await {
            Err(error) if !error.is_retryable() => {
                tracing::warn!(target: "distlock", %error, "slots whose time is over stay in the table");
            }
            _ => {}
        }
    });
}

fn random() -> Result<String, LockError> {
    let mut number = [0; 16];
    getrandom::fill(&mut number).map_err(|error| {
        LockError::new(ErrorKind::Internal, Operation::Remember)
            .because(format!("the system has no random numbers: {error}"))
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(number)))
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
        assert_eq!(read(&vec![None, None, None, None], "a"), None);
    }
}
