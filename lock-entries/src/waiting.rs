//! The wait of an attempt that has a place in the line.

use std::future::Future;
use std::time::Duration;

use lock_core::{AcquireRequest, Backoff, Clock, LockError, Operation};

use crate::claim::{Failed, Outcome};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Whether an attempt still has its place in the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Its entry exists.
    Kept,
    /// Its entry is gone or broken, or its session is over: it has to begin anew.
    Lost,
}

/// An attempt in the line, as its store sees it. [`wait`] asks it in turn.
///
/// Its futures may be dropped at every await.
pub trait Waiting: Send {
    /// Why a request fails.
    type Failure: Failed;

    /// Looks at what is in the way, and watches it. Returns [`Place::Kept`] when nothing is any more, the entry certainly exists, and its
    /// session lasts; `None` if the attempt has to wait.
    fn look(&mut self) -> impl Future<Output = Result<Option<Place>, Self::Failure>> + Send;

    /// Waits until it has to look again.
    fn until_changed(&mut self) -> impl Future<Output = Result<Place, Self::Failure>> + Send;

    /// Waits for contact after a failed request: what was seen before may no longer be true.
    fn in_contact(&mut self) -> impl Future<Output = Result<Place, LockError>> + Send;
}

/// Waits until nothing is in the way of an attempt any more, or its place is lost. After a failed request it goes on when the next
/// one may succeed.
///
/// # Errors
/// A failure that waiting cannot cure.
///
/// # Cancel safety
/// The future may be dropped at every await; the entry stays.
pub async fn wait<W: Waiting>(
    waiting: &mut W,
    request: &AcquireRequest,
    clock: &Clock,
) -> Result<Place, LockError> {
    let new_backoff = || Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut backoff = new_backoff();
    loop {
        let failure = match waiting.look().await {
            Ok(Some(place)) => return Ok(place),
            Ok(None) => {
                request.queued();
                match waiting.until_changed().await {
                    Ok(Place::Kept) => {
                        // Not after a look alone: a store may answer it, and refuse each watch.
                        backoff = new_backoff();
                        continue;
                    }
                    Ok(Place::Lost) => return Ok(Place::Lost),
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        let outcome = failure.outcome();
        let error = failure.explain(Operation::Acquire);
        if outcome == Outcome::Refused {
            return Err(error);
        }
        request.unreachable(error);
        if outcome == Outcome::EndsWithSession {
            return Ok(Place::Lost);
        }
        clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
        if waiting.in_contact().await? == Place::Lost {
            return Ok(Place::Lost);
        }
    }
}
