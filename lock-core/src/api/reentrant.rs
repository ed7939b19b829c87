//! The locks of a client: a local reentrant FIFO line in front of a backend. One type serves all modes: the mutex, which is also
//! the write side of a read-write lock, the read side, and permits of a semaphore.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::api::guard::LockGuard;
use crate::api::guard_origin::{GuardOrigin, id_of};
use crate::api::handle::Handle;
use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::{DistributedLock, endless_wait_ended};
use crate::api::mailbox::Reader;
use crate::api::publisher::Publisher;
use crate::api::scope;
use crate::api::self_wait::watched;
use crate::policy::acquire::Acquisition;
use crate::policy::entry::Entry;
use crate::runtime::clock::Clock;
use crate::spi::{Mode, Wait};
use crate::types::error::LockError;
use crate::types::name::LockName;
use crate::types::owner::Owner;

/// The main implementation of [`DistributedLock`].
#[derive(Clone)]
pub(crate) struct ReentrantLock {
    entry: Arc<Entry>,
    acquisition: Acquisition,
    publisher: Arc<Publisher>,
    /// Keeps the client in use.
    _handle: Arc<Handle>,
}

impl ReentrantLock {
    pub(crate) fn new(
        entry: Arc<Entry>,
        acquisition: Acquisition,
        publisher: Arc<Publisher>,
        handle: Arc<Handle>,
    ) -> Self {
        Self { entry, acquisition, publisher, _handle: handle }
    }

    /// Returns the same lock for another number of permits.
    pub(super) fn taking(&self, mode: Mode) -> Self {
        let mut lock = self.clone();
        lock.acquisition.mode = mode;
        lock
    }

    async fn enter(&self, wait: Wait) -> Result<bool, LockError> {
        let owner = scope::acting_owner(|owner| self.has_entered(owner))?;
        let entered = self.acquire_hold(owner, wait).await?;
        if let Some(hold) = &entered {
            scope::note_entry(owner, &GuardOrigin::Entry(Arc::clone(&self.entry)), hold);
        }
        Ok(entered.is_some())
    }

    async fn acquire_hold(&self, owner: Owner, wait: Wait) -> Result<Option<Hold>, LockError> {
        let acquiring = pin!(self.entry.acquire(&self.acquisition, owner, wait));
        let hold = watched(self.acquisition.mode, &self.entry, owner, wait, acquiring).await?;
        if let (Some(hold), Some(task)) = (&hold, scope::outside_of_scopes()) {
            hold.set_acquired_in(task);
        }
        Ok(hold.map(Hold))
    }

    async fn acquire_guard(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let hold = self.acquire_hold(owner, wait).await?;
        Ok(hold.map(|hold| LockGuard::new(GuardOrigin::Entry(Arc::clone(&self.entry)), owner, hold)))
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        self.entry.entered(owner, self.acquisition.mode).map(|(hold, entries)| (Hold(hold), entries))
    }
}

#[async_trait]
impl DistributedLock for ReentrantLock {
    fn name(&self) -> &LockName {
        self.entry.name()
    }

    fn clock(&self) -> &Clock {
        self.entry.clock()
    }

    fn server(&self) -> &str {
        self.entry.server()
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        self.acquire_guard(owner, wait).await
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        scope::note_exit(owner, (id_of(&self.entry), self.acquisition.mode));
        self.entry.release(owner, self.acquisition.mode, None).await
    }

    // The trait has default implementations of these. These versions box one future instead of two.
    async fn acquire(&self) -> Result<LockGuard, LockError> {
        let guard = self.acquire_guard(Owner::new(), Wait::Forever).await?;
        guard.ok_or_else(|| endless_wait_ended(self.name()))
    }

    async fn acquire_for(&self, duration: Duration) -> Result<LockGuard, LockError> {
        let wait = Wait::within(duration, self.clock().now());
        self.acquire_guard(Owner::new(), wait).await?.ok_or_else(|| self.busy())
    }

    async fn try_acquire(&self) -> Result<Option<LockGuard>, LockError> {
        self.acquire_guard(Owner::new(), Wait::Try).await
    }

    async fn try_acquire_for(&self, duration: Duration) -> Result<Option<LockGuard>, LockError> {
        self.acquire_guard(Owner::new(), Wait::within(duration, self.clock().now())).await
    }

    async fn lock(&self) -> Result<(), LockError> {
        self.enter(Wait::Forever).await.map(drop)
    }

    async fn try_lock(&self) -> Result<bool, LockError> {
        self.enter(Wait::Try).await
    }

    async fn try_lock_for(&self, duration: Duration) -> Result<bool, LockError> {
        self.enter(Wait::within(duration, self.clock().now())).await
    }

    async fn unlock(&self) -> Result<(), LockError> {
        let owner = scope::acting_owner(|owner| self.hold_of(owner).is_some())?;
        scope::note_exit(owner, (id_of(&self.entry), self.acquisition.mode));
        self.entry.release(owner, self.acquisition.mode, None).await
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        self.entry_of(owner).map(|(hold, _)| hold)
    }

    fn has_entered(&self, owner: Owner) -> bool {
        let mode = self.acquisition.mode;
        // A writer enters the read side without waiting.
        self.hold_of(owner).is_some()
            || mode == Mode::Shared && self.entry.entered(owner, Mode::Exclusive).is_some()
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        self.entry_of(owner).map_or(0, |(_, entries)| entries)
    }

    fn is_locked(&self) -> bool {
        self.entry.is_locked(self.acquisition.mode)
    }

    fn mode(&self) -> Mode {
        self.acquisition.mode
    }

    fn busy(&self) -> LockError {
        self.entry.busy(&self.acquisition.options)
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        let lock = (self.entry.name().clone(), self.acquisition.mode.kind());
        self.publisher.add(Some(lock), Reader::Listener(listener))
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ReentrantLock")
            .field("name", self.entry.name())
            .field("mode", &self.acquisition.mode)
            .finish_non_exhaustive()
    }
}
