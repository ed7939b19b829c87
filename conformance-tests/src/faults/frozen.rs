//! Clients whose clock stands still until the case advances it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lock_core::{ClientBuilder, Clock, LockGuard, ManualClock};

use super::wait::{soon, until};
use crate::Outcome;

/// Returns the settings of a client whose clock stands still, and what advances it: nothing that the client does by its clock
/// is due before, neither a heartbeat nor the end of a wait.
#[must_use]
pub fn frozen() -> (ClientBuilder, ManualClock) {
    let (clock, time) = Clock::manual();
    (ClientBuilder::new().clock(clock).connect_timeout(Duration::ZERO), time)
}

/// Returns the output of `future`, and meanwhile advances the clock in small steps, so that what is due in between is
/// done in its turn.
///
/// # Errors
/// When it does not complete within [`PATIENCE`](super::PATIENCE); the failure names `what`.
///
/// # Cancel safety
/// Same as that of `future`, which is dropped with this one; the clock has advanced.
pub async fn as_time_passes<T>(
    time: &ManualClock,
    what: impl fmt::Display,
    future: impl Future<Output = T>,
) -> Outcome<T> {
    let passing = async {
        loop {
            time.advance(Duration::from_millis(100));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        biased;
        output = soon(what, future) => output,
        never = passing => never,
    }
}

/// How many intervals [`outlast`] lets pass: more than any lease lasts without a renewal.
pub const INTERVALS: u32 = 5;

/// Lets the leases of these holds end by a clock that stands still otherwise, unless they are renewed in each `interval`: waits
/// for each renewal. Calls `before_each` before it is due.
///
/// # Errors
/// An error of `before_each`; or a hold is not renewed within [`PATIENCE`](super::PATIENCE).
///
/// # Cancel safety
/// Same as that of the future of `before_each`; the clock has advanced.
pub async fn outlast<'a>(
    time: &ManualClock,
    interval: Duration,
    holds: impl IntoIterator<Item = &'a LockGuard> + Clone,
    before_each: impl AsyncFn() -> Outcome,
) -> Outcome {
    let of = |guard: &LockGuard| guard.hold().remaining().unwrap_or_default();
    let left = || holds.clone().into_iter().map(of).min().unwrap_or_default();
    let whole = left();
    for _ in 0..INTERVALS {
        before_each().await?;
        time.advance(interval);
        // The client has looked at its clock when the renewal was due, or when all of the time had passed.
        until("all are renewed", || async { Ok(left() + interval / 2 > whole) }).await?;
    }
    Ok(())
}
