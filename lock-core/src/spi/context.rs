//! What the core provides to a backend.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{GroupId, Validity};
use crate::runtime::{BackendTasks, Clock};
use crate::types::{HolderInfo, LockError, LossReason};

/// What a backend reports about a whole group.
#[derive(Clone, Copy)]
pub(crate) enum GroupReport {
    Suspect,
    Restored,
    RenewNow,
    Lost(LossReason),
}

/// What the core provides to a backend: its clock, its engine, and a way to report on a whole group. It is cheap to
/// clone.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::{BackendContext, GroupId, LockError, LossReason};
///
/// const LEASE: Duration = Duration::from_secs(30);
///
/// /// Keeps the session alive with which the locks of `group` are held.
/// fn keep_alive<F>(context: &BackendContext, group: GroupId, send_heartbeat: F) -> Result<(), LockError>
/// where
///     F: Fn(&str) -> bool + Send + 'static,
/// {
///     context.check_lease(LEASE)?; // refuses one that leaves no time to renew it
///     let (engine, interval) = (context.clone(), context.renewal_interval(LEASE)?);
///     let client = format!("{} stops within {:?}", context.holder().host, context.abort_margin());
///     context.spawn(async move {
///         while send_heartbeat(&client) {
///             engine.clock().sleep_until(engine.clock().now().plus(interval)).await;
///         }
///         engine.group_lost(group, LossReason::SessionClosed);
///     });
///     Ok(())
/// }
/// ```
#[derive(Clone)]
pub struct BackendContext {
    pub(crate) clock: Clock,
    pub(crate) tasks: Arc<BackendTasks>,
    pub(crate) holder: Arc<HolderInfo>,
    pub(crate) report: Arc<dyn Fn(GroupId, GroupReport) + Send + Sync>,
    pub(crate) abort_margin: Duration,
}

impl BackendContext {
    /// Returns the clock that all moments are taken from.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Runs `future` on the engine, until the future or the client ends.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(future);
    }

    /// Returns what this client tells the server about itself.
    pub fn holder(&self) -> &Arc<HolderInfo> {
        &self.holder
    }

    /// Returns how long a holder needs to stop after it learns of a loss, for backends that publish it to other
    /// clients.
    pub fn abort_margin(&self) -> Duration {
        self.abort_margin
    }

    /// Checks that leases of `length` leave enough time to renew them, before the first one is acquired.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption), with a text that says which option to change.
    pub fn check_lease(&self, length: Duration) -> Result<(), LockError> {
        self.renewal_interval(length).map(drop)
    }

    /// Returns how often the core renews leases of `length`. Waiters send their heartbeats at the same interval.
    ///
    /// # Errors
    /// Same as [`BackendContext::check_lease`].
    pub fn renewal_interval(&self, length: Duration) -> Result<Duration, LockError> {
        Validity::new(length, self.abort_margin).map(|validity| validity.interval())
    }

    /// Reports that contact is lost for every hold of the group. The holds still stand.
    pub fn group_suspect(&self, group: GroupId) {
        (self.report)(group, GroupReport::Suspect);
    }

    /// Reports that contact has returned for the group: its leases are renewed now instead of after the next pause,
    /// and the client's pending releases and cancels are repeated now, too.
    ///
    /// ```
    /// use lock_core::{BackendContext, GroupId};
    ///
    /// fn connection_changed(context: &BackendContext, session: GroupId, is_connected: bool) {
    ///     if is_connected {
    ///         context.group_restored(session);
    ///     } else {
    ///         context.group_suspect(session);
    ///     }
    /// }
    /// ```
    pub fn group_restored(&self, group: GroupId) {
        (self.report)(group, GroupReport::Restored);
    }

    /// Renews the leases of the group now instead of after the next pause, for a backend that wants to know earlier whether
    /// they stand. It says nothing about contact.
    pub fn renew_now(&self, group: GroupId) {
        (self.report)(group, GroupReport::RenewNow);
    }

    /// Reports that every hold of the group is lost, and so is every later grant in it: its number must not be used
    /// again.
    pub fn group_lost(&self, group: GroupId, reason: LossReason) {
        (self.report)(group, GroupReport::Lost(reason));
    }
}

impl fmt::Debug for BackendContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BackendContext").field("clock", &self.clock).finish_non_exhaustive()
    }
}
