//! Callers that wait for a lock that they hold themselves.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::scope;
use crate::policy::entry::Entry;
use crate::policy::hold::HoldCore;
use crate::spi::{Mode, Wait};
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::owner::Owner;

/// How long a caller waits for its own task before the log says so.
const PATIENT_FOR: Duration = Duration::from_secs(1);

/// What a caller that has to wait waits for.
enum WaitsFor {
    /// An owner that the caller acts for: while it waits, no code runs that could release the lock.
    ItsOwner,
    /// A guard that was made in the same task. It may have moved to another one since.
    ItsTask,
}

/// Completes `acquiring`, a wait of `owner`, unless the caller would wait for ever for itself. The caller pins it: a future
/// that is passed on takes its memory once more, for each waiter.
pub(crate) async fn watched<T>(
    mode: Mode,
    entry: &Entry,
    owner: Owner,
    wait: Wait,
    mut acquiring: Pin<&mut impl Future<Output = Result<T, LockError>>>,
) -> Result<T, LockError> {
    if mode == Mode::Exclusive && is_upgrade(entry, owner) {
        return Err(entry.no_upgrade());
    }
    let mut is_first = true;
    let outcome = poll_fn(|context| match acquiring.as_mut().poll(context) {
        Poll::Pending if std::mem::replace(&mut is_first, false) => {
            waits_for(mode, entry, owner).map_or(Poll::Pending, |itself| Poll::Ready(Err(itself)))
        }
        polled => polled.map(Ok),
    });
    match outcome.await {
        Ok(outcome) => outcome,
        Err(WaitsFor::ItsOwner) if wait == Wait::Forever => Err(deadlock(entry)),
        Err(_) => {
            // By another task, because the waiter is only to be woken with the lock.
            let _warning = entry
                .warn_after(PATIENT_FOR, "a task waits for a lock that it holds itself, under another owner");
            acquiring.await
        }
    }
}

/// Returns whether an owner around the caller reads, and none of them writes: however long the caller waits, it waits for itself.
fn is_upgrade(entry: &Entry, owner: Owner) -> bool {
    let mut sharers = entry.sharers().into_iter();
    sharers.any(|(holder, _)| holder != owner && scope::reaches(holder)) && entry.writer().is_none()
}

fn waits_for(mode: Mode, entry: &Entry, owner: Owner) -> Option<WaitsFor> {
    if let Some((holder, hold)) = entry.writer() {
        return waits_for_holder(holder, &hold, owner);
    }
    let found =
        entry.sharers().into_iter().find_map(|(holder, hold)| waits_for_holder(holder, &hold, owner))?;
    // What a caller shares with its own task, it may also get beside it.
    Some(if mode == Mode::Exclusive { found } else { WaitsFor::ItsTask })
}

fn waits_for_holder(holder: Owner, hold: &HoldCore, owner: Owner) -> Option<WaitsFor> {
    if holder == owner {
        // The grant has just come.
        return None;
    }
    if scope::reaches(holder) {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::fake::Fake;

    #[tokio::test]
    async fn a_grant_that_comes_while_its_waiter_looks_round_is_not_itself_waited_for() {
        let locks = Fake::default().client(ClientBuilder::new());
        let lock = locks.mutex("orders/42").unwrap();
        lock.lock().await.unwrap();
        let entry = locks.entry("orders/42").unwrap();
        let waits = |owner| waits_for(Mode::Exclusive, &entry, owner);
        assert!(waits(Owner::current().unwrap()).is_none());
        assert!(matches!(waits(Owner::new()), Some(WaitsFor::ItsOwner)));
    }
}
