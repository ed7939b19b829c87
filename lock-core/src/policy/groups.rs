//! The leases of a client, by group, and when each of them has to be renewed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::policy::client_lock::ClientLock;
use crate::policy::local::Number;
use crate::runtime::{Clock, Moment, Mutex, NumberMap, Outstanding};
use crate::spi::{AnyLease, GroupId, GroupReport};
use crate::types::LossReason;

/// All leases of a client.
pub(crate) struct HeldGroups {
    groups: Mutex<Groups>,
    /// How many leases there are in all groups.
    pub(crate) leases: Outstanding,
    /// Notified when contact with the server returns.
    pub(crate) contact: Notify,
    clock: Clock,
}

#[derive(Default)]
struct Groups {
    by_id: NumberMap<GroupId, Group>,
    /// An empty group, whose memory the next new one gets.
    spare: Option<Group>,
    /// The groups that were lost most recently: later groups have higher numbers.
    lost: BTreeMap<GroupId, LossReason>,
}

/// How many lost groups are remembered. A grant that takes longer to arrive than a client takes to lose this many
/// connections never arrives.
const MOST_LOST: usize = 1 << 14;

#[derive(Default)]
struct Group {
    leases: NumberMap<Number, HeldLease>,
    task: Option<Task>,
}

/// The task that renews a group.
struct Task {
    /// Wakes it, because a renewal is due earlier than it looks.
    woken: Arc<Notify>,
    /// When it looks next by itself. Until then it stays, even if there is nothing to renew.
    looks_at: Moment,
}

/// A renewal that is due within this part of its interval is sent with one that is due now, or when the task looks
/// anyway: so the task looks no more often than this, however many leases come and go.
const LOOKS_IN_AN_INTERVAL: u32 = 16;

/// A lease that is held.
#[derive(Clone)]
pub(crate) struct HeldLease {
    pub(crate) lock: Arc<ClientLock>,
    pub(crate) number: Number,
    pub(crate) lease: AnyLease,
    /// When it is to be renewed, and how long after a renewal the next one is due; `None` if it is not renewed.
    pub(crate) renewal: Option<(Moment, Duration)>,
}

impl HeldLease {
    pub(super) fn interval(&self) -> Option<Duration> {
        self.renewal.map(|(_, interval)| interval)
    }
}

impl HeldGroups {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { groups: Mutex::default(), leases: Outstanding::default(), contact: Notify::new(), clock }
    }

    /// Adds a lease, or changes when it is renewed. Returns what wakes the task of the group, if the caller has to start that, and
    /// why the group is lost, if it is. A group that is lost at the same moment is lost before, or for this lease, too.
    pub(super) fn add(&self, id: GroupId, held: HeldLease) -> (Option<Arc<Notify>>, Option<LossReason>) {
        let renew_at = held.renewal.map(|(first, _)| first);
        let mut groups = self.groups.lock();
        let Groups { by_id, spare, lost } = &mut *groups;
        let group = by_id.entry(id).or_insert_with(|| spare.take().unwrap_or_default());
        if group.leases.insert(held.number, held).is_none() {
            self.leases.add();
        }
        (renew_at.and_then(|renew_at| group.task_to_start(renew_at)), lost.get(&id).copied())
    }

    /// Removes a lease that has ended, or whose release begins. It runs foreign code.
    pub(super) fn remove(&self, id: GroupId, number: Number) {
        let mut groups = self.groups.lock();
        let Groups { by_id, spare, .. } = &mut *groups;
        let Some(group) = by_id.get_mut(&id) else { return };
        let Some(removed) = group.leases.remove(&number) else { return };
        // If a group has a task, that task removes it: usually the next lease comes sooner.
        if group.leases.is_empty() && group.task.is_none() {
            *spare = by_id.remove(&id);
        }
        drop(groups);
        drop(removed);
        self.leases.subtract();
    }

    pub(super) fn of_group(&self, group: GroupId) -> Vec<HeldLease> {
        let groups = self.groups.lock();
        groups.by_id.get(&group).map(|group| group.leases.values().cloned().collect()).unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<HeldLease> {
        self.groups.lock().by_id.values().flat_map(|group| group.leases.values().cloned()).collect()
    }

    /// Returns when the task of the group has to renew leases: at the latest now, if it is to do that now. If there is nothing to
    /// renew, the group has no task any more.
    pub(super) fn next_renewal(&self, id: GroupId, now: Moment) -> Option<Moment> {
        let mut groups = self.groups.lock();
        let group = groups.by_id.get_mut(&id)?;
        let renewals = group.leases.values().filter_map(|held| held.renewal);
        let first = renewals.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
        let Some((due, interval)) = first else {
            group.task = None;
            if group.leases.is_empty() {
                groups.by_id.remove(&id);
            }
            return None;
        };
        if due.minus(interval / LOOKS_IN_AN_INTERVAL) <= now {
            return Some(now);
        }
        if let Some(task) = &mut group.task {
            task.looks_at = due;
        }
        Some(due)
    }

    /// Sets when leases of the group are to be renewed.
    pub(super) fn put_off<'h>(&self, group: GroupId, leases: impl Iterator<Item = (&'h HeldLease, Moment)>) {
        let mut groups = self.groups.lock();
        let Some(group) = groups.by_id.get_mut(&group) else { return };
        for (held, renew_at) in leases {
            let kept = group.leases.get_mut(&held.number);
            if let Some((due, _)) = kept.and_then(|held| held.renewal.as_mut()) {
                *due = renew_at;
            }
        }
    }
}

/// What backends report.
impl HeldGroups {
    /// Forwards a report on a group to all its leases.
    pub(crate) fn report(&self, group: GroupId, report: GroupReport) {
        match report {
            GroupReport::Suspect => {
                self.of_group(group).iter().for_each(|held| held.lock.suspect(held.number));
            }
            GroupReport::Restored => {
                self.contact.notify_waiters();
                self.renew_now(group);
            }
            GroupReport::RenewNow => self.renew_now(group),
            GroupReport::Lost(reason) => {
                self.remember(group, reason);
                for held in self.of_group(group) {
                    held.lock.lose(held.number, reason);
                }
            }
        }
    }

    /// Remembers that a group is lost, for grants in it that are not registered yet.
    fn remember(&self, group: GroupId, reason: LossReason) {
        let lost = &mut self.groups.lock().lost;
        // Room is made first: this group may be older than all that are remembered.
        if lost.len() >= MOST_LOST && !lost.contains_key(&group) {
            lost.pop_first();
        }
        lost.insert(group, reason);
    }

    /// Makes all leases of the group due for renewal now.
    fn renew_now(&self, group: GroupId) {
        let now = self.clock.now();
        let mut groups = self.groups.lock();
        let Some(group) = groups.by_id.get_mut(&group) else { return };
        for (due, _) in group.leases.values_mut().filter_map(|held| held.renewal.as_mut()) {
            *due = now.min(*due);
        }
        if let Some(task) = &group.task {
            task.woken.notify_one();
        }
    }
}

impl Group {
    /// A lease is to be renewed then. If the caller has to start the task for that, returns what wakes the task.
    fn task_to_start(&mut self, renew_at: Moment) -> Option<Arc<Notify>> {
        if let Some(task) = &mut self.task {
            if renew_at < task.looks_at {
                task.looks_at = renew_at;
                task.woken.notify_one();
            }
            return None;
        }
        let woken = Arc::new(Notify::new());
        self.task = Some(Task { woken: Arc::clone(&woken), looks_at: renew_at });
        Some(woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lost_groups_of_a_long_life_are_not_all_remembered() {
        let held = HeldGroups::new(Clock::system());
        let groups = 3 * MOST_LOST as u64;
        for number in 0..groups {
            held.report(GroupId::new(number), GroupReport::Lost(LossReason::ConnectionLost));
            held.report(GroupId::new(number), GroupReport::Lost(LossReason::SessionClosed));
        }
        let lost = &held.groups.lock().lost;
        assert_eq!(lost.len(), MOST_LOST);
        assert_eq!(lost.get(&GroupId::new(groups - 1)), Some(&LossReason::SessionClosed));
        assert_eq!(lost.get(&GroupId::new(0)), None);
    }

    #[test]
    fn an_old_group_that_is_lost_last_is_remembered() {
        let held = HeldGroups::new(Clock::system());
        for number in (0..=MOST_LOST as u64).rev() {
            held.report(GroupId::new(number), GroupReport::Lost(LossReason::ConnectionLost));
        }
        assert!(held.groups.lock().lost.contains_key(&GroupId::new(0)));
    }
}
