//! Waiting for what has to happen.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Outcome};
use crate::probe::ByHand;

/// Nothing that has to happen takes that long, on the slowest machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The first pause between two looks. What comes soon is seen soon.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest of them: a look takes a part of the processor that it waits for.
const LONGEST_PAUSE: Duration = Duration::from_millis(15);

/// The output of `future`.
///
/// # Errors
/// It has not come within [`PATIENCE`]; the failure names `what` was waited for.
///
/// # Cancel safety
/// As that of `future`, which is dropped with this one.
pub async fn soon<T>(what: impl fmt::Display, future: impl Future<Output = T>) -> Outcome<T> {
    tokio::time::timeout(PATIENCE, future)
        .await
        .map_err(|_| Failure::new(format!("{what}: not within {PATIENCE:?}")))
}

/// Waits until the condition is true.
///
/// # Errors
/// That of the condition; or it has not become true within [`PATIENCE`].
///
/// # Cancel safety
/// May be dropped at any time, if the condition may.
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

/// Polls `polls` times, each time but the first after it was woken. Answers what it was ready with, if it was.
///
/// # Errors
/// It was not woken within [`PATIENCE`].
///
/// # Cancel safety
/// When this future is dropped the other one has been polled fewer times.
pub async fn poll_times<F: Future>(future: Pin<&mut F>, polls: usize) -> Outcome<Option<F::Output>> {
    soon("the next poll", ByHand::new(future).poll_times(polls)).await
}

/// Polls `future` once, and drops it after so much time: what it began goes on meanwhile, in other threads and at the server.
///
/// The thread is kept busy rather than let sleep, as the times that matter are shorter than the shortest sleep.
///
/// # Errors
/// None that is to be expected.
///
/// # Cancel safety
/// It has no point at which it could be dropped.
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
