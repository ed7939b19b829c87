//! Renews the leases of a client, group by group, and declares lost what could not be renewed.
//!
//! A group has one task, which lives as long as the group has leases that are renewed, and a little longer. The task sleeps
//! until the first of them is due and then renews all of them in one call, so that the holds of a group get the same
//! rhythm. The task reads the clock before the call; that moment is the anchor of the leases that the server
//! acknowledges. A call that takes longer than the interval between renewals is dropped and repeated: a lease has
//! time for few such calls.

use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use crate::policy::context::ClientContext;
use crate::policy::groups::HeldLease;
use crate::policy::log;
use crate::runtime::{Clock, Headroom, Moment, race, within};
use crate::spi::{GroupId, LeaseState};

/// How often a failed renewal is repeated within one interval.
const RETRIES_IN_AN_INTERVAL: u32 = 8;

impl ClientContext {
    /// Starts the task of a group.
    pub(super) fn begin_renewing(self: &Arc<Self>, group: GroupId, woken: Arc<Notify>) {
        let task = GroupTask {
            client: Arc::downgrade(self),
            clock: self.clock.clone(),
            group,
            warns_from: Moment::default(),
            headroom: self.metrics.headroom(),
        };
        self.engine.spawn(task.run(woken));
    }
}

/// The task of one group.
///
/// While it sleeps it does not keep the client alive, so that a client whose last handle was dropped can end.
struct GroupTask {
    client: Weak<ClientContext>,
    clock: Clock,
    group: GroupId,
    /// From when on failed renewals are a warning again.
    warns_from: Moment,
    headroom: Headroom,
}

impl GroupTask {
    async fn run(mut self, woken: Arc<Notify>) {
        loop {
            let due = {
                let Some(client) = self.client.upgrade() else { return };
                let now = self.clock.now();
                let Some(due) = client.held.next_renewal(self.group, now) else { return };
                if due <= now {
                    self.renew(&client).await;
                    continue;
                }
                due
            };
            let _ = race(woken.notified(), self.clock.sleep_until(due)).await;
        }
    }

    async fn renew(&mut self, client: &ClientContext) {
        let mut due = client.held.of_group(self.group);
        due.retain(|held| held.renewal.is_some());
        // Without one there is nothing to renew any more, and nothing would limit the call.
        let Some(interval) = due.iter().filter_map(HeldLease::interval).min() else { return };
        let leases: Vec<_> = due.iter().map(|held| Arc::clone(&held.lease)).collect();
        let anchor = self.clock.now();
        let renewing = client.backend.renew(self.group, &leases);
        let answer = within(&self.clock, anchor.plus(interval), renewing).await;
        client.metrics.renewed_in(self.clock.now().since(anchor));
        let remaining = |held: &HeldLease| held.lock.look(|local| local.lease(held.number)?.hold.remaining());
        self.headroom.was(|| due.iter().filter_map(remaining).min());
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
        client.held.put_off(self.group, put_off);
        let mut failed = Vec::new();
        for (HeldLease { lock, number, .. }, state) in due.iter().zip(states) {
            match state {
                LeaseState::Held => lock.renewed(*number, anchor),
                LeaseState::HeldFrom(moment) => lock.renewed(*number, moment.min(anchor)),
                // Of one whose release has begun it says nothing: the release may have arrived before.
                LeaseState::Lost(reason) if lock.look(|local| local.lease(*number).is_some()) => {
                    lock.lose(*number, reason);
                }
                LeaseState::Lost(_) => {}
                LeaseState::Unknown => {
                    lock.suspect(*number);
                    failed.push(lock.name());
                }
            }
        }
        if !failed.is_empty() {
            log::renewals_failed(&mut self.warns_from, &failed, &why, &client.server, self.clock.now());
        }
    }
}
