//! Renews the leases of a client, group by group, and declares lost what could not be renewed.
//!
//! A group has one task, which lives as long as the group has leases that are renewed, and a little longer. The task sleeps
//! until the first of them is due and then renews all of them in one call, so that the holds of a group get the same
//! rhythm. The task reads the clock before the call; that moment is the anchor of the leases that the server
//! acknowledges. A call that takes longer than the interval between renewals is dropped and repeated: a lease has
//! time for few such calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::policy::entry::Entry;
use crate::policy::groups::{Added, Held, HeldGroups, Next};
use crate::policy::local::Number;
use crate::policy::log;
use crate::policy::remote::Remote;
use crate::runtime::clock::Clock;
use crate::runtime::metrics::Headroom;
use crate::runtime::race::{first_of, within};
use crate::spi::{GroupId, LeaseState};
use crate::types::loss::LossReason;

/// Renews leases for as long as they last.
pub(crate) struct Renewer {
    remote: Arc<Remote>,
    held: Arc<HeldGroups>,
}

/// How often a failed renewal is repeated within one interval.
const RETRIES_IN_AN_INTERVAL: u32 = 8;

impl Renewer {
    pub(crate) fn new(remote: Arc<Remote>, held: Arc<HeldGroups>) -> Self {
        Self { remote, held }
    }

    /// Adds a lease. Returns why its group is lost, if it is.
    pub(crate) fn register(&self, group: GroupId, held: Held) -> Option<LossReason> {
        let Added { woken, end } = self.held.add(group, held);
        if let Some(woken) = woken {
            let task = GroupTask {
                remote: Arc::downgrade(&self.remote),
                held: Arc::clone(&self.held),
                clock: self.remote.clock.clone(),
                group,
                failures: log::Failures::default(),
                headroom: self.remote.metrics.headroom(),
            };
            self.remote.engine.spawn(task.run(woken));
        }
        end
    }

    /// Removes a lease that has ended, or whose release begins.
    pub(crate) fn unregister(&self, group: GroupId, entry: &Arc<Entry>, number: Number) {
        self.held.remove(group, entry, number);
    }

    pub(crate) fn holds_something(&self) -> bool {
        self.held.holds_something()
    }

    pub(crate) fn all(&self) -> Vec<Held> {
        self.held.all()
    }

    /// Waits until there are no leases.
    pub(crate) async fn empty(&self) {
        self.held.empty().await;
    }
}

/// The task of one group.
///
/// While it sleeps it does not keep the client alive, so that a client whose last handle was dropped can end.
struct GroupTask {
    remote: Weak<Remote>,
    held: Arc<HeldGroups>,
    clock: Clock,
    group: GroupId,
    failures: log::Failures,
    headroom: Headroom,
}

impl GroupTask {
    async fn run(mut self, woken: Arc<Notify>) {
        loop {
            let due = {
                let Some(remote) = self.remote.upgrade() else { return };
                match self.held.next(self.group, self.clock.now()) {
                    Next::Renew => {
                        self.renew(&remote).await;
                        continue;
                    }
                    Next::Sleep(due) => due,
                    Next::End => return,
                }
            };
            first_of(self.clock.sleep_until(due), woken.notified()).await;
        }
    }

    async fn renew(&mut self, remote: &Remote) {
        let due = self.held.renewable(self.group);
        let leases: Vec<_> = due.iter().map(|held| Arc::clone(&held.lease)).collect();
        let interval = due.iter().filter_map(Held::interval).min().unwrap_or(Duration::MAX);
        let anchor = self.clock.now();
        let renewing = remote.backend.renew(self.group, &leases);
        let answer = within(&self.clock, anchor.plus(interval), renewing).await;
        remote.metrics.renewed_in(self.clock.now().since(anchor));
        self.headroom.was(|| due.iter().filter_map(|held| held.entry.remaining(held.number)).min());
        let retry_at = self.clock.now().plus(interval / RETRIES_IN_AN_INTERVAL);
        let (mut states, why) = match answer {
            Some(Ok(states)) => (states, "the server has not said whether they are held".to_owned()),
            Some(Err(error)) => (Vec::new(), error.to_string()),
            None => (Vec::new(), format!("no answer within {interval:?}")),
        };
        states.resize(due.len(), LeaseState::Unknown);
        let put_off = due.iter().zip(&states).filter_map(|(held, state)| {
            let renew_at = match state {
                LeaseState::Held | LeaseState::HeldFrom(_) => {
                    anchor.plus(held.interval().unwrap_or(interval))
                }
                LeaseState::Lost(_) => return None,
                LeaseState::Unknown => retry_at,
            };
            Some((held, renew_at))
        });
        self.held.put_off(self.group, put_off);
        let mut failed = Vec::new();
        for (Held { entry, number, .. }, state) in due.iter().zip(states) {
            match state {
                LeaseState::Held => entry.renewed(*number, anchor),
                LeaseState::HeldFrom(moment) => entry.renewed(*number, moment.min(anchor)),
                LeaseState::Lost(reason) => entry.not_renewed(*number, reason),
                LeaseState::Unknown => {
                    entry.suspect(*number);
                    failed.push(entry.name());
                }
            }
        }
        self.failures.report(&failed, &why, &remote.server, self.clock.now());
    }
}
