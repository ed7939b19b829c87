//! Slots of locks that are remembered, in a table of their own.
//!
//! One statement adds a row, or takes over a row whose time is over, and a second one in the same text reads whose row it is
//! now. A statement that is carried out twice finds its own row. Both see the newest row, not a snapshot.

use std::time::Duration;

use lock_core::spi::within;
use lock_core::{ErrorKind, LockError, Memo, Operation, Remembered};

use crate::backend::MySqlBackend;
use crate::failure::{no_answer, nonsense};
use crate::session::Row;
use crate::statement;

/// How often the server may give up a statement because of others, or lack the table or the row.
const MOST_ROUNDS: usize = 4;

pub(crate) async fn remember(
    backend: &MySqlBackend,
    memo: &Memo,
    keep: Duration,
) -> Result<Remembered, LockError> {
    let clock = backend.context.clock();
    let settings = &backend.settings;
    let limit = settings.time_to_connect() + settings.time_for(Operation::Remember) * 2;
    let asked = within(clock, clock.now().plus(limit), ask(backend, memo, keep)).await;
    let remembered = asked.unwrap_or_else(|| Err(no_answer(Operation::Remember)))?;
    if remembered == Remembered::Now {
        sweep(backend);
    }
    Ok(remembered)
}

async fn ask(backend: &MySqlBackend, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
    let writer = random()?;
    let name = backend.name(memo.physical());
    let statement = statement::remember(&name, memo, &writer, keep);
    let mut round = 0;
    loop {
        round += 1;
        match backend.auxiliary.try_to_ask(Operation::Remember, statement.clone()).await {
            // Its time was over between the two statements, and another client has removed it.
            Ok(answer) if answer.rows.is_empty() && round < MOST_ROUNDS => {}
            Ok(answer) => {
                let remembered = answer.rows.first().and_then(|row| read(row, &writer));
                return remembered
                    .ok_or_else(|| nonsense(Operation::Remember, "it does not say what it remembers"));
            }
            // The server gives a statement a second for its locks; all of them together have the time of the caller.
            Err(failure) if failure.is_locked_out() => round -= 1,
            Err(failure) if round >= MOST_ROUNDS => return Err(failure.into_error()),
            Err(failure) if failure.is_missing_table() => {
                backend.auxiliary.ask(Operation::Remember, statement::create_slots()).await?;
            }
            // The server has undone the statement.
            Err(failure) if failure.is_deadlock() => {}
            Err(failure) => return Err(failure.into_error()),
        }
    }
}

/// Reads the row that the slot has now: its writer, the end of its time, and the server's time, in microseconds.
fn read(row: &Row, writer: &str) -> Option<Remembered> {
    let [found, until, now] = row.as_slice() else { return None };
    if found.as_deref()? == writer {
        return Some(Remembered::Now);
    }
    let (until, now): (u64, u64) = (until.as_deref()?.parse().ok()?, now.as_deref()?.parse().ok()?);
    Some(Remembered::Already { remaining: Duration::from_micros(until.saturating_sub(now).max(1)) })
}

/// Removes some rows whose time is over, in the background. A later call removes more.
fn sweep(backend: &MySqlBackend) {
    let auxiliary = std::sync::Arc::clone(&backend.auxiliary);
    backend.context.spawn(async move {
        match auxiliary.ask(Operation::Remember, statement::forget_slots()).await {
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
        let row = |words: [&str; 3]| words.map(|word| Some(word.to_owned())).to_vec();
        let already = |micros| Some(Remembered::Already { remaining: Duration::from_micros(micros) });
        assert_eq!(read(&row(["a", "9", "5"]), "a"), Some(Remembered::Now));
        assert_eq!(read(&row(["b", "9", "5"]), "a"), already(4));
        assert_eq!(read(&row(["b", "5", "5"]), "a"), already(1));
        assert_eq!(read(&row(["b", "x", "5"]), "a"), None);
        assert_eq!(read(&vec![None, None, None], "a"), None);
    }
}
