//! The locks of one client by name: all locks of one name share one entry.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::api::publisher::{LockKey, Publisher};
use crate::policy::context::ClientContext;
use crate::policy::entry::Entry;
use crate::runtime::sync::Mutex;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::name::LockName;

#[derive(Default)]
pub(crate) struct Registry(Mutex<Locks>);

#[derive(Default)]
struct Locks {
    by_name: HashMap<LockKey, Weak<Entry>>,
    closed: Option<LockError>,
}

impl Registry {
    /// Returns the entry of this name, which is created if none is in use, with this publisher of its events.
    pub(crate) fn get(
        &self,
        lock: LockKey,
        context: &Arc<ClientContext>,
        publisher: &Arc<Publisher>,
    ) -> Result<Arc<Entry>, LockError> {
        refuse_reserved(&lock.0).map_err(|error| error.of(lock.1))?;
        let mut locks = self.0.lock();
        if let Some(error) = &locks.closed {
            return Err(error.clone().on(&lock.0).of(lock.1));
        }
        if let Some(entry) = locks.by_name.get(&lock).and_then(Weak::upgrade) {
            return Ok(entry);
        }
        let observer: Arc<Publisher> = Arc::clone(publisher);
        let entry = Arc::new(Entry::new(lock.0.clone(), lock.1, Arc::clone(context), observer));
        locks.forget_unused();
        locks.by_name.insert(lock, Arc::downgrade(&entry));
        Ok(entry)
    }

    /// Fails once [`close`](Self::close) was called.
    pub(crate) fn refuse_when_closed(&self) -> Result<(), LockError> {
        self.0.lock().closed.clone().map_or(Ok(()), Err)
    }

    /// Makes acquisitions fail with this error from now on, including those that already wait.
    pub(crate) fn close(&self, error: &LockError) {
        let entries: Vec<_> = {
            let mut locks = self.0.lock();
            locks.closed = Some(error.clone());
            locks.by_name.values().filter_map(Weak::upgrade).collect()
        };
        for entry in entries {
            entry.close(error);
        }
    }
}

impl Locks {
    /// Removes unused names before the map grows, so that they never take more memory than the names in use.
    fn forget_unused(&mut self) {
        if self.by_name.len() == self.by_name.capacity() {
            self.by_name.retain(|_, entry| entry.strong_count() > 0);
            self.by_name.shrink_to(2 * self.by_name.len());
        }
    }
}

/// Refuses names that belong to the inside of a semaphore: some servers keep a semaphore below its name.
fn refuse_reserved(name: &LockName) -> Result<(), LockError> {
    let inside = ["/locks", "/leases"].into_iter().find(|inside| name.as_str().ends_with(inside));
    let Some(inside) = inside else { return Ok(()) };
    Err(LockError::new(ErrorKind::InvalidName, Operation::Configure)
        .on(name)
        .because(format!("names that end with {inside:?} are reserved for semaphores"))
        .remedy("choose another last part"))
}
