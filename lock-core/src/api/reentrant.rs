//! The locks of a client: a local reentrant FIFO line in front of a backend. One type serves all modes: the mutex, which is also
//! the write side of a read-write lock, the read side, and permits of a semaphore.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::client::LockClient;
use crate::api::guard::{LockGuard, Origin};
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::{DistributedLock, endless_wait_ended};
use crate::api::mailbox::Reader;
use crate::api::publisher::Topic;
use crate::api::scope;
use crate::policy::acquire::Acquisition;
use crate::policy::client_lock::ClientLock;
use crate::policy::hold::Hold;
use crate::runtime::Clock;
use crate::spi::{Mode, Wait};
use crate::types::{LockError, LockName, Owner};

/// The main implementation of [`DistributedLock`].
#[derive(Clone)]
pub(crate) struct ReentrantLock {
    /// Kept in use by each of its locks.
    pub(super) client: LockClient,
    pub(super) of_client: Arc<ClientLock>,
    pub(super) acquisition: Acquisition,
}

impl ReentrantLock {
    pub(super) async fn acquire_guard(
        &self,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<LockGuard>, LockError> {
        let Some(hold) = self.of_client.acquire(&self.acquisition, owner, wait).await? else {
            return Ok(None);
        };
        if let Some(task) = scope::outside_of_scopes() {
            let _ = hold.0.acquired_in.set(task);
        }
        Ok(Some(LockGuard::new(Origin::One(Arc::clone(&self.of_client)), owner, hold)))
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        self.of_client.entered(owner, self.acquisition.mode)
    }
}

#[async_trait]
impl DistributedLock for ReentrantLock {
    fn name(&self) -> &LockName {
        self.of_client.name()
    }

    fn clock(&self) -> &Clock {
        self.of_client.clock()
    }

    fn server(&self) -> &str {
        self.of_client.server()
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        self.acquire_guard(owner, wait).await
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        let mode = self.acquisition.mode;
        scope::forget(owner, |guard| guard.is_of(&self.of_client) && guard.hold().mode() == mode);
        self.of_client.release(owner, mode, None).await
    }

    /// The same as that of the trait, which boxes two futures.
    async fn acquire(&self) -> Result<LockGuard, LockError> {
        let guard = self.acquire_guard(Owner::new(), Wait::Forever).await?;
        guard.ok_or_else(|| endless_wait_ended(self.name()))
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        self.entry_of(owner).map(|(hold, _)| hold)
    }

    fn has_entered(&self, owner: Owner) -> bool {
        let mode = self.acquisition.mode;
        // A writer enters the read side without waiting.
        self.hold_of(owner).is_some()
            || mode == Mode::Shared && self.of_client.entered(owner, Mode::Exclusive).is_some()
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        self.entry_of(owner).map_or(0, |(_, entries)| entries)
    }

    fn is_locked(&self) -> bool {
        self.of_client.is_locked(self.acquisition.mode)
    }

    fn mode(&self) -> Mode {
        self.acquisition.mode
    }

    fn busy(&self) -> LockError {
        self.of_client.busy(&self.acquisition.options)
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        let lock = Topic::Lock(self.of_client.name().clone(), self.acquisition.mode.kind());
        self.client.publisher().add(lock, Reader::Listener(listener))
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReentrantLock")
            .field("name", self.of_client.name())
            .field("mode", &self.acquisition.mode)
            .finish_non_exhaustive()
    }
}
