//! Renews the holds of a client, group by group, and declares lost what could not be renewed.
//!
//! A group has one task, which lives as long as the group has holds with a lease, and a little longer. The task sleeps
//! until the first of them is due and then renews all of them in one call, so that the holds of a group get the same
//! rhythm. The task reads the clock before the call; that moment is the anchor of the leases that the server
//! acknowledges. A call that takes longer than the interval between renewals is dropped and repeated: a lease has
//! time for few such calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::policy::groups::{Added, HeldGroups, Next};
use crate::policy::hold::HoldCore;
use crate::policy::log;
use crate::policy::metrics::{Headroom, Request};
use crate::policy::remote::Remote;
use crate::runtime::clock::Clock;
use crate::runtime::engine::contained;
use crate::runtime::race::{first_of, within};
use crate::spi::{GroupId, LeaseState};
use crate::types::error::Operation;
use crate::types::loss::LossReason;

/// Renews holds for as long as they last.
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

    /// Adds a new hold. Returns why its group is lost, if it is.
    pub(crate) fn register(&self, hold: &Arc<HoldCore>) -> Option<LossReason> {
        let Added { woken, end } = self.held.add(hold);
        if let Some(woken) = woken {
            let task = GroupTask {
                remote: Arc::downgrade(&self.remote),
                held: Arc::clone(&self.held),
                clock: self.remote.clock.clone(),
                group: hold.grant().group,
                failures: log::Failures::default(),
                headroom: self.remote.metrics.headroom(),
            };
            self.remote.engine.spawn(task.run(woken));
        }
        end
    }

    /// Removes a hold that has ended, or whose release begins.
    pub(crate) fn unregister(&self, hold: &Arc<HoldCore>) {
        self.held.remove(hold);
    }

    pub(crate) fn all_holds(&self) -> Vec<Arc<HoldCore>> {
        self.held.all_holds()
    }

    /// Waits until there are no holds.
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
        let due = self.held.leased(self.group).into_iter();
        let (holds, leases): (Vec<_>, Vec<_>) =
            due.filter_map(|hold| hold.lease().map(|lease| (hold, lease))).unzip();
        let interval = holds.iter().filter_map(|hold| hold.renewal_interval()).min().unwrap_or(Duration::MAX);
        let anchor = self.clock.now();
        let renewing = contained(Operation::Renew, remote.backend.renew(self.group, &leases));
        let answer = within(&self.clock, anchor.plus(interval), renewing).await;
        remote.metrics.renewed_in(self.clock.now().since(anchor));
        remote.metrics.request(Request::Renew, &answer);
        self.headroom.was(|| holds.iter().filter_map(|hold| hold.remaining()).min());
        let retry_at = self.clock.now().plus(interval / RETRIES_IN_AN_INTERVAL);
        let (mut states, why) = match answer {
            Some(Ok(states)) => (states, "the server has not said whether they are held".to_owned()),
            Some(Err(error)) => (Vec::new(), error.to_string()),
            None => (Vec::new(), format!("no answer within {interval:?}")),
        };
        states.resize(holds.len(), LeaseState::Unknown);
        let put_off = holds.iter().zip(&states).filter_map(|(hold, state)| {
            let renew_at = match state {
                LeaseState::Held | LeaseState::HeldFrom(_) => {
                    anchor.plus(hold.renewal_interval().unwrap_or(interval))
                }
                LeaseState::Lost(_) => return None,
                LeaseState::Unknown => retry_at,
            };
            Some((hold.number(), renew_at))
        });
        self.held.put_off(self.group, put_off);
        let mut failed = Vec::new();
        for (hold, state) in holds.iter().zip(states) {
            match state {
                LeaseState::Held => hold.renewed(anchor, &self.clock),
                LeaseState::HeldFrom(moment) => hold.renewed(moment.min(anchor), &self.clock),
                LeaseState::Lost(reason) => hold.declare_lost(reason),
                LeaseState::Unknown => {
                    hold.declare_suspect();
                    failed.push(hold.name());
                }
            }
        }
        self.failures.report(&failed, &why, &remote.server, self.clock.now());
    }
}
