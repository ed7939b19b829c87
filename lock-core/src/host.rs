//! What the core offers to a backend.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::GroupId;
use crate::clock::Clock;
use crate::engine::BackendTasks;
use crate::error::LockError;
use crate::hold::LossReason;
use crate::janitor::Janitor;
use crate::keeper::Keeper;
use crate::status::HolderInfo;
use crate::validity::Validity;

/// What the core offers to a backend: its clock, its engine, and a way to report on a whole group. Cheap to clone.
#[derive(Clone)]
pub struct Host {
    pub(crate) clock: Clock,
    pub(crate) tasks: Arc<BackendTasks>,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) janitor: Arc<Janitor>,
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
        self.janitor.contact_lost();
        for hold in self.keeper.holds_of(group) {
            hold.declare_suspect();
        }
    }

    /// Contact has returned for the group: what has a lease is renewed now instead of after the next pause. After
    /// [`Host::group_suspect`], what is to be released or undone is tried again now, too.
    pub fn group_restored(&self, group: GroupId) {
        self.janitor.contact_returned();
        self.keeper.renew_now(group, self.clock.now());
    }

    /// Everything in the group is lost, and so is whatever is granted in it from now on: its number is not to be used
    /// again.
    pub fn group_lost(&self, group: GroupId, reason: LossReason) {
        self.keeper.end_group(group, reason);
        for hold in self.keeper.holds_of(group) {
            hold.declare_lost(reason);
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Host").field("clock", &self.clock).finish_non_exhaustive()
    }
}
