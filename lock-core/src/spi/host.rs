//! What the core offers to a backend.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{GroupId, Validity};
use crate::runtime::clock::Clock;
use crate::runtime::engine::BackendTasks;
use crate::types::error::LockError;
use crate::types::loss::LossReason;
use crate::types::status::HolderInfo;

/// What a backend reports of a whole group.
pub(crate) trait Groups: Send + Sync {
    fn suspect(&self, group: GroupId);
    fn restored(&self, group: GroupId);
    fn lost(&self, group: GroupId, reason: LossReason);
}

/// What the core offers to a backend: its clock, its engine, and a way to report on a whole group. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    pub(crate) clock: Clock,
    pub(crate) tasks: Arc<BackendTasks>,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) groups: Arc<dyn Groups>,
    pub(crate) abort_margin: Duration,
}

impl Host {
    /// The clock that all moments are taken from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs `future` on the engine, until it ends or the client does.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(future);
    }

    /// What this client tells the server about itself.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.holder
    }

    /// How long a holder needs to stop after it has been told of a loss: for backends that let others know.
    pub fn abort_margin(&self) -> Duration {
        self.abort_margin
    }

    /// Checks that leases of `length` leave time to renew them, before the first is taken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption), with a text that says which option to change.
    pub fn check_lease(&self, length: Duration) -> Result<(), LockError> {
        self.renewal_interval(length).map(drop)
    }

    /// How often the core renews leases of `length`; the rhythm for a waiter's heartbeats as well.
    ///
    /// # Errors
    /// As [`Host::check_lease`].
    pub fn renewal_interval(&self, length: Duration) -> Result<Duration, LockError> {
        Validity::new(length, self.abort_margin).map(|validity| validity.interval())
    }

    /// Contact is lost for everything in the group; it still stands.
    pub fn group_suspect(&self, group: GroupId) {
        self.groups.suspect(group);
    }

    /// Contact has returned for the group: what has a lease is renewed now instead of after the next pause. After
    /// [`Host::group_suspect`], what is to be released or undone is tried again now, too.
    pub fn group_restored(&self, group: GroupId) {
        self.groups.restored(group);
    }

    /// Everything in the group is lost, and so is whatever is granted in it from now on: its number is not to be used
    /// again.
    pub fn group_lost(&self, group: GroupId, reason: LossReason) {
        self.groups.lost(group, reason);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Host").field("clock", &self.clock).finish_non_exhaustive()
    }
}
