//! Callers that wait for a lock that they hold themselves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::scope;
use crate::policy::entry::Entry;
use crate::runtime::race::within;
use crate::spi::Wait;
use crate::types::error::{ErrorKind, LockError, Operation};

/// How long a caller waits for its own task before the log says so.
const PATIENT_FOR: Duration = Duration::from_secs(1);

/// What a caller that has to wait waits for.
enum WaitsFor {
    /// An owner that the caller acts for: while it waits, no code runs that could release the lock.
    ItsOwner,
    /// A guard that was made in the same task. It may have moved to another one since.
    ItsTask,
}

/// Completes `acquiring`, unless the caller would wait for ever for itself.
pub(crate) async fn watched<T>(
    entry: &Entry,
    wait: Wait,
    acquiring: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let mut acquiring = pin!(acquiring);
    let mut is_first = true;
    let outcome = poll_fn(|context| match acquiring.as_mut().poll(context) {
        Poll::Pending if std::mem::replace(&mut is_first, false) => {
            waits_for(entry).map_or(Poll::Pending, |itself| Poll::Ready(Err(itself)))
        }
        polled => polled.map(Ok),
    });
    match outcome.await {
        Ok(outcome) => outcome,
        Err(WaitsFor::ItsOwner) if wait == Wait::Forever => Err(deadlock(entry)),
        Err(_) => {
            let clock = entry.clock();
            let warn_at = clock.now().plus(PATIENT_FOR);
            if let Some(outcome) = within(clock, warn_at, acquiring.as_mut()).await {
                return outcome;
            }
            tracing::warn!(
                target: "distlock", lock = %entry.name(),
                "a task waits for a lock that it holds itself, under another owner"
            );
            acquiring.await
        }
    }
}

fn waits_for(entry: &Entry) -> Option<WaitsFor> {
    let (owner, hold) = entry.local.holder()?;
    if scope::reaches(owner) {
        return Some(WaitsFor::ItsOwner);
    }
    (hold.acquired_in().is_some() && hold.acquired_in() == scope::outside_of_scopes())
        .then_some(WaitsFor::ItsTask)
}

fn deadlock(entry: &Entry) -> LockError {
    let error = LockError::new(ErrorKind::Deadlock, Operation::Acquire)
        .because("a guard has an owner of its own, and does not enter again")
        .remedy("call lock() or with_lock(), which enter again, or release the lock first");
    entry.about(error)
}
