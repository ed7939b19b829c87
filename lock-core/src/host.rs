//! What the core offers to a backend.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::GroupId;
use crate::clock::Clock;
use crate::error::LockError;
use crate::hold::LossReason;
use crate::keeper::Keeper;
use crate::status::HolderInfo;
use crate::validity::Validity;

/// What the core offers to a backend: its clock, its engine, and a way to report on a whole group. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    pub(crate) clock: Clock,
    pub(crate) runtime: Handle,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) abort_margin: Duration,
}

impl Host {
    /// The clock that all moments are taken from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs `future` on the engine, until it ends or the client does.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(future);
    }

    /// What this client tells the server about itself.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.holder
    }

    /// Checks that leases of `length` leave time to renew them, before the first is taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption), with a text that says which option to change.
    pub fn check_lease(&self, length: Duration) -> Result<(), LockError> {
        Validity::new(length, self.abort_margin).map(drop)
    }

    /// Contact is lost for everything in the group; it still stands.
    pub fn group_suspect(&self, group: GroupId) {
        for hold in self.keeper.holds_of(group) {
            hold.declare_suspect();
        }
    }

    /// Everything in the group is lost.
    pub fn group_lost(&self, group: GroupId, reason: LossReason) {
        for hold in self.keeper.holds_of(group) {
            hold.declare_lost(reason);
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Host")
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
