//! Two backends that pass distlock's conformance suite, as their authors write them. The smallest is a shelf in the memory of a
//! program that says which attempt has which lock; [`folder`] is one over a store with conditional writes.
//!
//! * **Holding**: the shelf names an attempt's id for each lock that is held. An attempt that asks again finds itself.
//! * **Waiting**: each change wakes all who wait, and the first that looks gets the lock. So there is no order, and none is declared.
//! * **Loss**: only the shelf's owner takes a lock away, which the next renewal finds out.
//! * **Failure**: none. The shelf always answers, and is gone with the program.
#![forbid(unsafe_code)]

pub mod folder;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{
    AcquireRequest, AttemptId, Backend, Capabilities, CharacterSet, ClientBuilder, Grant, GroupId,
    LeaseState, LockClient, LockError, LossReason, NameRules, Reach, Released, Term, Wait,
};
use tokio::sync::Notify;

/// Says who has which lock.
#[derive(Debug, Default)]
pub struct Shelf {
    locks: Mutex<HashMap<String, Lock>>,
    changed: Notify,
}

/// What the shelf knows of a lock that an attempt has or waits for.
#[derive(Debug, Default)]
struct Lock {
    holder: Option<AttemptId>,
    waiters: HashSet<AttemptId>,
}

impl Shelf {
    fn locks(&self) -> MutexGuard<'_, HashMap<String, Lock>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the locks that are held or waited for.
    pub fn in_use(&self) -> Vec<String> {
        self.locks().keys().cloned().collect()
    }

    /// Returns how many attempts wait for a lock.
    pub fn waiting(&self, name: &str) -> usize {
        self.locks().get(name).map_or(0, |lock| lock.waiters.len())
    }

    /// Makes a client of this shelf.
    ///
    /// # Errors
    /// Those of [`ClientBuilder::build`].
    pub fn client(self: &Arc<Self>, builder: ClientBuilder) -> Result<LockClient, LockError> {
        let names = NameRules::new(CharacterSet::ANY, 512);
        let capabilities = Capabilities::new("shelf", Reach::Process, names);
        builder.build(|_| Ok(ShelfBackend { shelf: Arc::clone(self), capabilities }))
    }

    /// Whether the attempt has the lock now. If not, it is a waiter if it waits.
    fn take(&self, name: &str, id: AttemptId, wait: Wait) -> bool {
        let mut locks = self.locks();
        let lock = locks.entry(name.to_owned()).or_default();
        let has = *lock.holder.get_or_insert(id) == id;
        if has {
            lock.waiters.remove(&id);
        } else if wait != Wait::Try {
            lock.waiters.insert(id);
        }
        has
    }

    /// Undoes what the attempt has. Whether that was the lock.
    fn put_back(&self, name: &str, id: AttemptId) -> bool {
        let mut locks = self.locks();
        let Some(lock) = locks.get_mut(name) else { return false };
        lock.waiters.remove(&id);
        let had = lock.holder.take_if(|holder| *holder == id).is_some();
        if lock.holder.is_none() && lock.waiters.is_empty() {
            locks.remove(name);
        }
        drop(locks);
        self.changed.notify_waiters();
        had
    }
}

#[derive(Debug)]
struct ShelfBackend {
    shelf: Arc<Shelf>,
    capabilities: Capabilities,
}

#[derive(Debug)]
struct Lease {
    name: String,
    id: AttemptId,
}

impl Backend for ShelfBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        let (name, id) = (request.physical().to_string(), request.id());
        loop {
            let changed = self.shelf.changed.notified();
            if self.shelf.take(&name, id, request.wait()) {
                return Ok(Some(Grant::new(Lease { name, id }, GroupId::new(0), Term::UntilReported)));
            }
            if request.wait() == Wait::Try {
                return Ok(None);
            }
            request.queued();
            changed.await;
        }
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.shelf.put_back(&request.physical().to_string(), request.id());
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        let locks = self.shelf.locks();
        let state = |lease: &Arc<Lease>| match locks.get(&lease.name) {
            Some(lock) if lock.holder == Some(lease.id) => LeaseState::Held,
            _ => LeaseState::Lost(LossReason::Deleted),
        };
        Ok(leases.iter().map(state).collect())
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let was_held = self.shelf.put_back(&lease.name, lease.id);
        Ok(if was_held { Released::Clean } else { Released::WasLost(LossReason::Deleted) })
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}
