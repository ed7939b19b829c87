//! Callers that wait for a lock that they hold themselves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::api::reentrant::ReentrantLock;
use crate::api::scope;
use crate::policy::entry::Entry;
use crate::policy::hold::Hold;
use crate::spi::{Mode, Wait};
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::owner::Owner;

/// How long a caller waits for its own task before the log says so.
const PATIENT_FOR: Duration = Duration::from_secs(1);

/// What a caller that has to wait waits for.
#[derive(PartialEq)]
enum WaitsFor {
    /// An owner around the caller that reads, while the caller wants to write: however long it waits, it waits for itself.
    Upgrade,
    /// An owner that the caller acts for: while it waits, no code runs that could release the lock.
    ItsOwner,
    /// A guard that was made in the same task. It may have moved to another one since.
    ItsTask,
}

impl ReentrantLock {
    /// Acquires the lock, unless the caller would wait for ever for itself.
    pub(super) async fn acquire_watched(&self, owner: Owner, wait: Wait) -> Result<Option<Hold>, LockError> {
        let (entry, mode) = (&self.entry, self.acquisition.mode);
        let mut acquiring = pin!(entry.acquire(&self.acquisition, owner, wait));
        let mut is_first = true;
        let outcome = poll_fn(|context| {
            let polled = acquiring.as_mut().poll(context);
            if !std::mem::replace(&mut is_first, false) || matches!(polled, Poll::Ready(Ok(Some(_)) | Err(_)))
            {
                return polled.map(Ok);
            }
            match waits_for(mode, entry, owner) {
                Some(itself) if polled.is_pending() || itself == WaitsFor::Upgrade => {
                    Poll::Ready(Err(itself))
                }
                _ => polled.map(Ok),
            }
        });
        match outcome.await {
            Ok(outcome) => outcome,
            Err(WaitsFor::Upgrade) => Err(entry.no_upgrade()),
            Err(WaitsFor::ItsOwner) if wait == Wait::Forever => Err(deadlock(entry)),
            Err(_) => {
                // By another task, because the waiter is only to be woken with the lock.
                let _warning = entry.warn_after(
                    PATIENT_FOR,
                    "a task waits for a lock that it holds itself, under another owner",
                );
                acquiring.await
            }
        }
    }
}

fn waits_for(mode: Mode, entry: &Entry, owner: Owner) -> Option<WaitsFor> {
    let holders = entry.holders();
    if let Some((writer, hold)) = holders.iter().find(|(_, hold)| hold.mode() == Mode::Exclusive) {
        return waits_for_holder(*writer, hold, owner);
    }
    let found = holders.iter().filter_map(|(holder, hold)| waits_for_holder(*holder, hold, owner));
    let found: Vec<_> = found.collect();
    if mode == Mode::Exclusive && found.contains(&WaitsFor::ItsOwner) {
        return Some(WaitsFor::Upgrade);
    }
    // What a caller shares with its own task, it may also get beside it.
    found.first().map(|_| WaitsFor::ItsTask)
}

fn waits_for_holder(holder: Owner, hold: &Hold, owner: Owner) -> Option<WaitsFor> {
    if holder == owner {
        // The grant has just come.
        return None;
    }
    if scope::reaches(holder) {
        return Some(WaitsFor::ItsOwner);
    }
    let acquired_in = hold.0.acquired_in.get().copied();
    (acquired_in.is_some() && acquired_in == scope::outside_of_scopes()).then_some(WaitsFor::ItsTask)
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
    use crate::api::options::LockOptions;
    use crate::api::tests::fake::Fake;

    #[tokio::test]
    async fn a_grant_that_comes_while_its_waiter_looks_round_is_not_itself_waited_for() {
        let locks = Fake::default().client(ClientBuilder::new());
        let lock = locks.mutex("orders/42").unwrap();
        lock.lock().await.unwrap();
        let entry = locks.lock_in(Mode::Exclusive, "orders/42", LockOptions::new()).unwrap().entry;
        let waits = |owner| waits_for(Mode::Exclusive, &entry, owner);
        assert!(waits(Owner::current().unwrap()).is_none());
        assert!(matches!(waits(Owner::new()), Some(WaitsFor::ItsOwner)));
    }
}
