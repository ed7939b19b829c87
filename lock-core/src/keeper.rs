//! Renews what a client holds, group by group, and declares what is lost.
//!
//! A group has one task, which lives as long as the group has holds with a lease, and a little longer. It sleeps until the first of them is
//! due and then renews all of them in one call, so that holds of a group come to be renewed together. The time is taken
//! before the call, and is the anchor of whatever the server acknowledges. A call that takes longer than the interval
//! between renewals is dropped and made again: it is one of the three that a lease has time for.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{GroupId, LeaseState};
use crate::client::ClientCore;
use crate::clock::{Clock, Moment};
use crate::engine::contained;
use crate::error::Operation;
use crate::hold::{HoldCore, Lasting, LossReason};
use crate::log;
use crate::sync::Mutex;

/// Everything that a client holds.
#[derive(Default)]
pub(crate) struct Keeper {
    groups: Mutex<HashMap<GroupId, Group>>,
    ended: Mutex<Ended>,
    emptied: Notify,
}

/// Groups that were lost, the last ones.
#[derive(Default)]
struct Ended {
    reasons: HashMap<GroupId, LossReason>,
    order: VecDeque<GroupId>,
}

/// So many lost groups are remembered. A grant that is on its way for longer than it takes a client to lose as many
/// connections does not arrive.
const MOST_ENDED: usize = 1 << 14;

impl Ended {
    fn add(&mut self, group: GroupId, reason: LossReason) {
        if self.reasons.insert(group, reason).is_some() {
            return;
        }
        self.order.push_back(group);
        if self.order.len() > MOST_ENDED
            && let Some(oldest) = self.order.pop_front()
        {
            self.reasons.remove(&oldest);
        }
    }
}

#[derive(Default)]
struct Group {
    holds: HashMap<usize, Kept>,
    /// Wakes the group's task, if it has one, because something is due earlier than it thinks.
    task: Option<Arc<Notify>>,
}

struct Kept {
    hold: Arc<HoldCore>,
    renew_at: Moment,
}

/// After a failure a renewal is sent again this many times in an interval.
const RETRIES_IN_AN_INTERVAL: u32 = 8;

impl Keeper {
    /// Takes up a new hold.
    pub(crate) fn register(&self, hold: &Arc<HoldCore>) {
        let renew_at = match hold.grant.lasting {
            Lasting::UntilReported => Moment::FOREVER,
            Lasting::Leased { anchor, validity } => anchor.plus(validity.interval()),
        };
        let mut groups = self.groups.lock();
        let group = groups.entry(hold.grant.group).or_default();
        let is_first_due = group.holds.values().all(|kept| renew_at < kept.renew_at);
        group.holds.insert(key(hold), Kept { hold: Arc::clone(hold), renew_at });
        if renew_at == Moment::FOREVER {
            return;
        }
        if let Some(task) = &group.task {
            if is_first_due {
                task.notify_one();
            }
            return;
        }
        let task = Arc::new(Notify::new());
        group.task = Some(Arc::clone(&task));
        drop(groups);
        let client = Arc::clone(hold.front.client());
        client.engine.spawn(keep(Arc::downgrade(&client), client.clock.clone(), hold.grant.group, task));
    }

    /// Remembers that a group is lost, for what is granted in it and not registered yet.
    pub(crate) fn end_group(&self, group: GroupId, reason: LossReason) {
        self.ended.lock().add(group, reason);
    }

    /// Why everything in the group is lost, if it is.
    pub(crate) fn end_of(&self, group: GroupId) -> Option<LossReason> {
        self.ended.lock().reasons.get(&group).copied()
    }

    /// Has everything in the group that has a lease renewed now.
    pub(crate) fn renew_now(&self, group: GroupId, now: Moment) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&group) else { return };
        for kept in group.holds.values_mut().filter(|kept| kept.renew_at != Moment::FOREVER) {
            kept.renew_at = kept.renew_at.min(now);
        }
        if let Some(task) = &group.task {
            task.notify_one();
        }
    }

    /// Lets go of a hold that has ended, or whose release begins.
    pub(crate) fn unregister(&self, hold: &Arc<HoldCore>) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.get_mut(&hold.grant.group) else {
            return;
        };
        let removed = group.holds.remove(&key(hold));
        // A group that has a task is left to it: the next hold comes sooner, more often than not.
        if group.holds.is_empty() && group.task.is_none() {
            groups.remove(&hold.grant.group);
        }
        let is_empty = groups.values().all(|group| group.holds.is_empty());
        drop(groups);
        drop(removed);
        if is_empty {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn holds_of(&self, group: GroupId) -> Vec<Arc<HoldCore>> {
        let groups = self.groups.lock();
        groups.get(&group).map(Group::all).unwrap_or_default()
    }

    pub(crate) fn all_holds(&self) -> Vec<Arc<HoldCore>> {
        self.groups.lock().values().flat_map(Group::all).collect()
    }

    pub(crate) fn holds_something(&self) -> bool {
        self.groups.lock().values().any(|group| !group.holds.is_empty())
    }

    /// Waits until nothing is held.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            if !self.holds_something() {
                return;
            }
            emptied.await;
        }
    }

    /// When the group's next renewal is due; `None` when there is nothing to renew, and its task ends.
    fn next_due(&self, id: GroupId) -> Option<Moment> {
        let mut groups = self.groups.lock();
        let group = groups.get_mut(&id)?;
        let due = group.holds.values().map(|kept| kept.renew_at).filter(|due| *due != Moment::FOREVER).min();
        if due.is_none() {
            group.task = None;
            if group.holds.is_empty() {
                groups.remove(&id);
            }
        }
        due
    }

    fn leased(&self, group: GroupId) -> Vec<Arc<HoldCore>> {
        let groups = self.groups.lock();
        let Some(group) = groups.get(&group) else {
            return Vec::new();
        };
        group
            .holds
            .values()
            .filter(|kept| kept.renew_at != Moment::FOREVER)
            .map(|kept| Arc::clone(&kept.hold))
            .collect()
    }

    fn put_off(&self, hold: &Arc<HoldCore>, renew_at: Moment) {
        let mut groups = self.groups.lock();
        if let Some(kept) =
            groups.get_mut(&hold.grant.group).and_then(|group| group.holds.get_mut(&key(hold)))
        {
            kept.renew_at = renew_at;
        }
    }
}

impl Group {
    fn all(&self) -> Vec<Arc<HoldCore>> {
        self.holds.values().map(|kept| Arc::clone(&kept.hold)).collect()
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Keeper").field("groups", &self.groups.lock().len()).finish_non_exhaustive()
    }
}

fn key(hold: &Arc<HoldCore>) -> usize {
    Arc::as_ptr(hold).addr()
}

/// The task of one group.
///
/// While it sleeps it keeps nothing alive, so that a client whose last handle goes can end.
async fn keep(client: Weak<ClientCore>, clock: Clock, group: GroupId, woken: Arc<Notify>) {
    let mut said = log::Renewals::default();
    loop {
        let due = {
            let Some(client) = client.upgrade() else { return };
            let Some(due) = client.keeper.next_due(group) else { return };
            if clock.now() >= due {
                renew(&client, group, &mut said).await;
                continue;
            }
            due
        };
        first_of(clock.sleep_until(due), woken.notified()).await;
    }
}

async fn renew(client: &ClientCore, group: GroupId, said: &mut log::Renewals) {
    let due = client.keeper.leased(group).into_iter();
    let (holds, leases): (Vec<_>, Vec<_>) =
        due.filter_map(|hold| hold.lease().map(|lease| (hold, lease))).unzip();
    let interval = holds.iter().filter_map(|hold| interval(hold)).min().unwrap_or(Duration::MAX);
    let anchor = client.clock.now();
    let renewing = contained(Operation::Renew, client.backend.renew(group, &leases));
    let answer = within(&client.clock, anchor.plus(interval), renewing).await;
    let retry_at = client.clock.now().plus(interval / RETRIES_IN_AN_INTERVAL);
    let (states, why) = match answer {
        Some(Ok(states)) => (states, "the server has not said whether they are held".to_owned()),
        Some(Err(error)) => (Vec::new(), error.to_string()),
        None => (Vec::new(), format!("no answer within {interval:?}")),
    };
    let mut failed = Vec::new();
    let states = states.into_iter().chain(std::iter::repeat(LeaseState::Unknown));
    for (hold, state) in holds.iter().zip(states) {
        let next = anchor.plus(self::interval(hold).unwrap_or(interval));
        match state {
            LeaseState::Held => {
                client.keeper.put_off(hold, next);
                hold.renewed(anchor);
            }
            LeaseState::HeldFrom(moment) => {
                client.keeper.put_off(hold, next);
                hold.renewed(moment.min(anchor));
            }
            LeaseState::Lost(reason) => hold.declare_lost(reason),
            LeaseState::Unknown => {
                client.keeper.put_off(hold, retry_at);
                hold.declare_suspect();
                failed.push(hold);
            }
        }
    }
    said.failed(client, &failed, &why);
}

fn interval(hold: &HoldCore) -> Option<Duration> {
    match hold.grant.lasting {
        Lasting::UntilReported => None,
        Lasting::Leased { validity, .. } => Some(validity.interval()),
    }
}

/// `future`, if it completes before `deadline`.
pub(crate) async fn within<T>(clock: &Clock, deadline: Moment, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(clock.sleep_until(deadline));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Waits for whichever completes first.
pub(crate) async fn first_of(one: impl Future, other: impl Future) {
    let mut one = pin!(one);
    let mut other = pin!(other);
    std::future::poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lost_groups_of_a_long_life_are_not_all_remembered() {
        let keeper = Keeper::default();
        let groups = 3 * MOST_ENDED as u64;
        for number in 0..groups {
            keeper.end_group(GroupId::new(number), LossReason::ConnectionLost);
            keeper.end_group(GroupId::new(number), LossReason::SessionClosed);
        }
        let ended = keeper.ended.lock();
        assert_eq!((ended.reasons.len(), ended.order.len()), (MOST_ENDED, MOST_ENDED));
        drop(ended);
        assert_eq!(keeper.end_of(GroupId::new(groups - 1)), Some(LossReason::SessionClosed));
        assert_eq!(keeper.end_of(GroupId::new(0)), None);
    }
}
