//! The side of a lock that is shared: the read side of a read-write lock, or permits of a semaphore.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::announcer::Announcer;
use crate::api::guard::LockGuard;
use crate::api::handle::Handle;
use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::DistributedLock;
use crate::api::options::LockOptions;
use crate::api::scope;
use crate::api::self_wait::{Rivals, watched_against};
use crate::policy::acquire::Acquisition;
use crate::policy::entry::Entry;
use crate::policy::lanes::Shared;
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
    pub(super) gate: Arc<Entry>,
    pub(super) mode: Mode,
    pub(super) acquisition: Acquisition,
    pub(super) announcer: Arc<Announcer>,
    /// Keeps the client in use.
    pub(super) _handle: Arc<Handle>,
}

impl SharedLock {
    pub(crate) fn new(gate: Arc<Entry>, mode: Mode, announcer: Arc<Announcer>, handle: Arc<Handle>) -> Self {
        let acquisition = Acquisition::new(Arc::clone(gate.terms()));
        Self { gate, mode, acquisition, announcer, _handle: handle }
    }

    /// Returns the same lock with options for its holds.
    pub(super) fn with(self, options: LockOptions, capabilities: &Capabilities) -> Result<Self, LockError> {
        let acquisition = options.shared_acquisition(self.gate.terms(), capabilities);
        Ok(Self { acquisition: acquisition.map_err(|error| self.gate.about(error))?, ..self })
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        let (hold, entries) = self.gate.lane_of(owner, self.mode)?.local.held_by(owner)?;
        let hold = Hold(hold);
        (!matches!(hold.end(), Some(HoldEnd::Lost(_)))).then_some((hold, entries))
    }
}

#[async_trait]
impl DistributedLock for SharedLock {
    fn name(&self) -> &LockName {
        self.gate.name()
    }

    fn clock(&self) -> &Clock {
        self.gate.clock()
    }

    fn server(&self) -> &str {
        self.gate.server()
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let acquiring = self.gate.acquire_shared(self.mode, &self.acquisition, owner, wait);
        let shared = watched_against(Rivals::OfShared, &self.gate, owner, wait, acquiring).await?;
        Ok(shared.map(|Shared { lane, hold }| {
            if let Some(task) = scope::outside_of_scopes() {
                hold.set_acquired_in(task);
            }
            LockGuard::of_entry(lane, owner, Hold(hold))
        }))
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        let Some(lane) = self.gate.lane_of(owner, self.mode) else { return Err(self.gate.not_owner(owner)) };
        scope::note_exit(owner, &lane);
        lane.release(owner, None).await
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        self.entry_of(owner).map(|(hold, _)| hold)
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        self.entry_of(owner).map_or(0, |(_, entries)| entries)
    }

    fn is_locked(&self) -> bool {
        self.gate.sharers().iter().any(|(_, hold)| hold.grant().mode == self.mode)
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn busy(&self) -> LockError {
        self.gate.busy(&self.acquisition.terms)
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.announcer.add(Some((self.gate.name().clone(), self.mode.kind())), listener)
    }
}

impl fmt::Debug for SharedLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SharedLock")
            .field("name", self.gate.name())
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
