//! Takes a slot: work that runs once for each slot, under the lock of its name.

use std::pin::Pin;

use distlock::{ErrorKind, Hold, LockError, Once};
use tokio::sync::oneshot;

use crate::event::Event;
use crate::exit::Failure;
use crate::signals::Signals;
use crate::wait::{Attempt, Waited};

/// What became of a slot.
pub(crate) enum Slot {
    /// It is taken, and its lock is held.
    Taken(Hold, Releasing),
    /// It has run before.
    HasRun,
}

/// Releases a lock when it is awaited.
pub(crate) type Releasing = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

/// Waits for the lock, and takes the slot.
///
/// The library's body only waits here: it would be dropped at a loss, and the command has to be ended with its grace.
pub(crate) async fn take(
    once: Once,
    attempt: &Attempt<'_>,
    signals: &mut Signals,
) -> Result<Waited<Slot>, Failure> {
    let (taken, mut is_taken) = oneshot::channel();
    let (end, ended) = oneshot::channel::<()>();
    let body = async move |hold: Hold| {
        let _ = taken.send(hold);
        let _ = ended.await;
        Ok::<_, LockError>(())
    };
    let remaining = attempt.remaining();
    let mut running = Box::pin(async move {
        match remaining {
            None => once.run(body).await,
            Some(remaining) => once.run_within(remaining, body).await,
        }
    });
    let taking = async {
        let hold = tokio::select! {
            biased;
            ran = &mut running => match ran {
                Err(error) if error.kind() == ErrorKind::Busy => return Ok(None),
                ran => return ran.map(|_| Some(None)),
            },
            Ok(hold) = &mut is_taken => hold,
        };
        Ok(Some(Some(hold)))
    };
    Ok(match attempt.acquire_by(taking, signals).await? {
        Waited::Acquired(None) => Waited::Acquired(Slot::HasRun),
        Waited::Acquired(Some(hold)) => {
            attempt.report.event(attempt.name, &Event::Acquired { token: hold.token() });
            let releasing = async move {
                let _ = end.send(());
                running.await.map(drop)
            };
            Waited::Acquired(Slot::Taken(hold, Box::pin(releasing)))
        }
        Waited::Ended(ending) => Waited::Ended(ending),
    })
}
