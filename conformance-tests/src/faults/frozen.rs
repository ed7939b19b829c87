//! Clients whose clock stands still until the case advances it.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lock_core::ManualClock;

use super::wait::soon;
use crate::Outcome;

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
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        output = soon(what, future) => output,
        never = passing => never,
    }
}
