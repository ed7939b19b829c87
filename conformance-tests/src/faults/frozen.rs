//! Clients whose clock stands still until the case advances it.

use std::fmt;
use std::future::Future;
use std::time::{Duration, Instant};

use lock_core::{LockGuard, LossReason, ManualClock};

use super::event_recorder::EventRecorder;
use super::wait::soon;
use crate::{Failure, Outcome, ensure};

const INSTANT: Duration = Duration::from_nanos(1);

/// Advances the clock of a client that hears nothing to the deadline of its hold: one nanosecond earlier the hold is
/// valid, and by then its loss is reported. Returns the time of the report.
///
/// # Errors
/// The hold ends earlier or not at all, or has no deadline.
///
/// # Cancel safety
/// If the future is dropped, the clock may have advanced.
pub async fn lost_at_its_deadline(
    time: &ManualClock,
    guard: &LockGuard,
    recorder: &EventRecorder,
) -> Outcome<Instant> {
    let left = guard.hold().remaining().ok_or_else(|| Failure::new("a hold without a deadline"))?;
    time.advance(left.saturating_sub(INSTANT));
    ensure!(guard.hold().remaining() == Some(INSTANT) && recorder.aborts() == 0, "{:?}", recorder.events());
    time.advance(INSTANT);
    ensure!(!guard.hold().is_valid(), "valid at its deadline");
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "{reason:?}: {:?}", recorder.events());
    Ok(aborted)
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
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        biased;
        output = soon(what, future) => output,
        never = passing => never,
    }
}
