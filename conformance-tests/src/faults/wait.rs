//! Waits for events that must happen.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use crate::{Failure, Outcome};

use crate::probe::ByHand;

/// No event that must happen takes this long, even on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first pause between two checks, short so that early events are seen early.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause: each check takes processor time from what it waits for.
const LONGEST_PAUSE: Duration = Duration::from_millis(30);

/// Returns the output of `future`.
///
/// # Errors
/// When it does not complete within [`PATIENCE`]; the failure names `what`.
///
/// # Cancel safety
/// Same as that of `future`, which is dropped with this one.
pub async fn soon<T>(what: impl fmt::Display, future: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(PATIENCE, future)
        .await
        .map_err(|_| Failure::new(format!("{what}: not within {PATIENCE:?}")))
}

/// Waits until the condition is true.
///
/// # Errors
/// An error of the condition; or the condition does not become true within [`PATIENCE`].
///
/// # Cancel safety
/// The future may be dropped at any time, if the condition may.
pub async fn until<F: Future<Output = Outcome<bool>>>(what: &str, condition: impl Fn() -> F) -> Outcome {
    let becomes_true = async {
        let mut pause = FIRST_PAUSE;
        while !condition().await? {
            tokio::time::sleep(pause).await;
            pause = (pause + FIRST_PAUSE).min(LONGEST_PAUSE);
        }
        Ok(())
    };
    soon(what, becomes_true).await?
}

/// Polls the future `polls` times, each time except the first after it was woken. Returns its output, if it completed.
///
/// # Errors
/// When it is not woken within [`PATIENCE`].
///
/// # Cancel safety
/// If this future is dropped, the other one has been polled fewer times.
pub async fn poll_times<F: Future>(future: Pin<&mut F>, polls: usize) -> Outcome<Option<F::Output>> {
    soon("the next poll", ByHand::new(future).poll_times(polls)).await
}

/// Polls `future` once, and drops it after `time`. What it began continues meanwhile, in other threads and at the
/// server.
///
/// The thread is kept busy instead of sleeping, because the relevant times are shorter than the shortest sleep.
///
/// # Errors
/// None are expected.
///
/// # Cancel safety
/// The future contains no await.
pub async fn drop_after(future: impl Future, time: Duration) -> Outcome {
    let mut future = pin!(future);
    let began = Instant::now();
    let _ = poll_times(future.as_mut(), 1).await?;
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_polled_by_number_goes_no_further() -> Outcome {
        for polls in 0..3 {
            let mut yields = Box::pin(async {
                tokio::task::yield_now().await;
                "an answer"
            });
            let expected = (polls == 2).then_some("an answer");
            assert_eq!(poll_times(yields.as_mut(), polls).await?, expected);
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_condition_that_fails_is_not_asked_again() {
        let refused = until("nothing", || async { Err(Failure::new("the server is gone")) }).await;
        assert_eq!(refused, Err(Failure::new("the server is gone")));
    }
}
