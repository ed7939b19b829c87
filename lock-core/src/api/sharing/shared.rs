//! The side of a lock that is shared: the read side of a read-write lock, or permits of a semaphore.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::guard::LockGuard;
use crate::api::guard_origin::GuardOrigin;
use crate::api::handle::Handle;
use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::DistributedLock;
use crate::api::options::LockOptions;
use crate::api::publisher::Publisher;
use crate::api::scope;
use crate::api::self_wait::{Rivals, watched_against};
use crate::policy::acquire::Acquisition;
use crate::policy::entry::Entry;
use crate::policy::shared_entries::Shared;
use crate::runtime::clock::Clock;
use crate::spi::{Mode, Wait};
use crate::types::capabilities::Capabilities;
use crate::types::error::LockError;
use crate::types::loss::HoldEnd;
use crate::types::name::LockName;
use crate::types::owner::Owner;

/// A lock whose holders do not exclude each other, or not all of them.
#[derive(Clone)]
pub(crate) struct SharedLock {
    pub(super) main: Arc<Entry>,
    pub(super) mode: Mode,
    pub(super) acquisition: Acquisition,
    pub(super) publisher: Arc<Publisher>,
    /// Keeps the client in use.
    pub(super) _handle: Arc<Handle>,
}

impl SharedLock {
    pub(crate) fn new(main: Arc<Entry>, mode: Mode, publisher: Arc<Publisher>, handle: Arc<Handle>) -> Self {
        let acquisition = Acquisition::new(Arc::clone(main.options()));
        Self { main, mode, acquisition, publisher, _handle: handle }
    }

    /// Returns the same lock with options for its holds.
    pub(super) fn with(self, options: LockOptions, capabilities: &Capabilities) -> Result<Self, LockError> {
        let acquisition = options.shared_acquisition(self.main.options(), capabilities);
        Ok(Self { acquisition: acquisition.map_err(|error| self.main.about(error))?, ..self })
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        let (hold, entries) = self.main.shared_entry_of(owner, self.mode)?.local.held_by(owner)?;
        let hold = Hold(hold);
        (!matches!(hold.end(), Some(HoldEnd::Lost(_)))).then_some((hold, entries))
    }
}

#[async_trait]
impl DistributedLock for SharedLock {
    fn name(&self) -> &LockName {
        self.main.name()
    }

    fn clock(&self) -> &Clock {
        self.main.clock()
    }

    fn server(&self) -> &str {
        self.main.server()
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let acquiring = pin!(self.main.acquire_shared(self.mode, &self.acquisition, owner, wait));
        let shared = watched_against(Rivals::OfShared, &self.main, owner, wait, acquiring).await?;
        Ok(shared.map(|Shared { entry, hold }| {
            if let Some(task) = scope::outside_of_scopes() {
                hold.set_acquired_in(task);
            }
            LockGuard::new(GuardOrigin::Entry(entry), owner, Hold(hold))
        }))
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        let Some(entry) = self.main.shared_entry_of(owner, self.mode) else {
            return Err(self.main.not_owner(owner));
        };
        scope::note_exit(owner, &entry);
        entry.release(owner, None).await
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        self.entry_of(owner).map(|(hold, _)| hold)
    }

    fn has_entered(&self, owner: Owner) -> bool {
        let writes = || self.mode == Mode::Shared && self.main.local.held_by(owner).is_some();
        self.hold_of(owner).is_some() || writes()
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        self.entry_of(owner).map_or(0, |(_, entries)| entries)
    }

    fn is_locked(&self) -> bool {
        self.main.sharers().iter().any(|(_, hold)| hold.grant().mode == self.mode)
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn busy(&self) -> LockError {
        self.main.busy(&self.acquisition.options)
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.publisher.add(Some((self.main.name().clone(), self.mode.kind())), listener)
    }
}

impl fmt::Debug for SharedLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SharedLock")
            .field("name", self.main.name())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
