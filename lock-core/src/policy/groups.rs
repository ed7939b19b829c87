//! The leases of a client, by group, and when each group has to be renewed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::policy::entry::Entry;
use crate::policy::local::Number;
use crate::runtime::clock::{Clock, Moment};
use crate::runtime::number_map::NumberMap;
use crate::runtime::sync::Mutex;
use crate::spi::{AnyLease, GroupId, Groups};
use crate::types::loss::LossReason;

/// All leases of a client.
#[derive(Default)]
pub(crate) struct HeldGroups {
    all: Mutex<All>,
    emptied: Notify,
}

#[derive(Default)]
struct All {
    groups: NumberMap<GroupId, Group>,
    /// An empty group, whose memory the next new one gets.
    spare: Option<Group>,
    /// How many leases there are in all groups.
    leases: usize,
    ended: Ended,
    /// Whether a caller has ever waited until there are no leases.
    is_awaited: bool,
}

/// The groups that were lost most recently.
#[derive(Default)]
struct Ended {
    reasons: NumberMap<GroupId, LossReason>,
    order: VecDeque<GroupId>,
}

/// How many lost groups are remembered. A grant that takes longer to arrive than a client takes to lose this many
/// connections never arrives.
const MOST_ENDED: usize = 1 << 14;

impl Ended {
    fn reason(&self, group: GroupId) -> Option<LossReason> {
        self.reasons.get(&group).copied()
    }

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
    leases: NumberMap<Key, Kept>,
    task: Option<Task>,
}

/// The task that renews a group.
struct Task {
    /// Wakes it, because a renewal is due earlier than it looks.
    woken: Arc<Notify>,
    /// When it looks next by itself. Until then it stays, even if there is nothing to renew.
    looks_at: Moment,
}

/// What the task of a group does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Renew,
    Sleep(Moment),
    /// There is nothing to renew.
    End,
}

/// A renewal that is due within this part of its interval is sent with one that is due now, or when the task looks
/// anyway: so the task looks no more often than this, however many leases come and go.
const LOOKS_IN_AN_INTERVAL: u32 = 16;

/// The address of the entry, and the number of the lease in its local lock.
type Key = (usize, Number);

/// A lease that is held.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) entry: Arc<Entry>,
    pub(crate) number: Number,
    pub(crate) lease: AnyLease,
    /// When it is to be renewed for the first time, and how long after a renewal the next one is due; `None` if it is not
    /// renewed.
    pub(crate) renewal: Option<(Moment, Duration)>,
}

impl Held {
    pub(super) fn key(&self) -> Key {
        key(&self.entry, self.number)
    }

    pub(super) fn interval(&self) -> Option<Duration> {
        self.renewal.map(|(_, interval)| interval)
    }
}

fn key(entry: &Arc<Entry>, number: Number) -> Key {
    (Arc::as_ptr(entry).addr(), number)
}

struct Kept {
    held: Held,
    renew_at: Moment,
}

/// What follows from a new lease.
pub(super) struct Added {
    /// Wakes the task of the group, which the caller has to start.
    pub(super) woken: Option<Arc<Notify>>,
    /// Why the group is lost, if it is.
    pub(super) end: Option<LossReason>,
}

impl HeldGroups {
    /// Adds a lease, or changes when it is renewed. A group that is lost at the same moment is lost before, or for this lease,
    /// too.
    pub(super) fn add(&self, id: GroupId, held: Held) -> Added {
        let renew_at = held.renewal.map_or(Moment::FOREVER, |(first, _)| first);
        let mut all = self.all.lock();
        let All { groups, spare, leases, ended, .. } = &mut *all;
        let group = groups.entry(id).or_insert_with(|| spare.take().unwrap_or_default());
        if group.leases.insert(held.key(), Kept { held, renew_at }).is_none() {
            *leases += 1;
        }
        Added { woken: group.task_to_start(renew_at), end: ended.reason(id) }
    }

    /// Remembers that a group is lost, for grants in it that are not registered yet.
    pub(crate) fn end_group(&self, group: GroupId, reason: LossReason) {
        self.all.lock().ended.add(group, reason);
    }

    /// Makes all leases of the group due for renewal now.
    pub(crate) fn renew_now(&self, group: GroupId, now: Moment) {
        let mut all = self.all.lock();
        let Some(group) = all.groups.get_mut(&group) else { return };
        for kept in group.leases.values_mut().filter(|kept| kept.renew_at != Moment::FOREVER) {
            kept.renew_at = kept.renew_at.min(now);
        }
        if let Some(task) = &group.task {
            task.woken.notify_one();
        }
    }

    /// Removes a lease that has ended, or whose release begins. It runs foreign code.
    pub(crate) fn remove(&self, id: GroupId, entry: &Arc<Entry>, number: Number) {
        let mut all = self.all.lock();
        let All { groups, spare, leases, is_awaited, .. } = &mut *all;
        let Some(group) = groups.get_mut(&id) else { return };
        let Some(removed) = group.leases.remove(&key(entry, number)) else { return };
        // If a group has a task, that task removes it: usually the next lease comes sooner.
        if group.leases.is_empty() && group.task.is_none() {
            *spare = groups.remove(&id);
        }
        *leases -= 1;
        let is_noticed = *leases == 0 && *is_awaited;
        drop(all);
        drop(removed);
        if is_noticed {
            self.emptied.notify_waiters();
        }
    }

    pub(crate) fn of_group(&self, group: GroupId) -> Vec<Held> {
        let all = self.all.lock();
        all.groups.get(&group).map(|group| group.all().collect()).unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<Held> {
        self.all.lock().groups.values().flat_map(Group::all).collect()
    }

    pub(crate) fn holds_something(&self) -> bool {
        self.all.lock().leases > 0
    }

    /// Waits until there are no leases.
    pub(crate) async fn empty(&self) {
        loop {
            let emptied = self.emptied.notified();
            {
                let mut all = self.all.lock();
                if all.leases == 0 {
                    return;
                }
                all.is_awaited = true;
            }
            emptied.await;
        }
    }

    /// Returns what the task of the group does now. The last time it also forgets the task.
    pub(super) fn next(&self, id: GroupId, now: Moment) -> Next {
        let mut all = self.all.lock();
        let Some(group) = all.groups.get_mut(&id) else { return Next::End };
        let leased = group.leases.values().filter(|kept| kept.renew_at != Moment::FOREVER);
        let times = leased.map(|kept| (kept.renew_at, kept.held.interval().unwrap_or_default()));
        let first = times.reduce(|one, other| (one.0.min(other.0), one.1.min(other.1)));
        let Some((due, interval)) = first else {
            group.task = None;
            if group.leases.is_empty() {
                all.groups.remove(&id);
            }
            return Next::End;
        };
        if due.minus(interval / LOOKS_IN_AN_INTERVAL) <= now {
            return Next::Renew;
        }
        if let Some(task) = &mut group.task {
            task.looks_at = due;
        }
        Next::Sleep(due)
    }

    /// Returns the leases of a group that are renewed.
    pub(super) fn renewable(&self, group: GroupId) -> Vec<Held> {
        let all = self.of_group(group);
        all.into_iter().filter(|held| held.renewal.is_some()).collect()
    }

    /// Sets when leases of the group are to be renewed.
    pub(super) fn put_off<'h>(&self, group: GroupId, leases: impl Iterator<Item = (&'h Held, Moment)>) {
        let mut all = self.all.lock();
        let Some(group) = all.groups.get_mut(&group) else { return };
        for (held, renew_at) in leases {
            if let Some(kept) = group.leases.get_mut(&held.key()).filter(|kept| kept.held.renewal.is_some()) {
                kept.renew_at = renew_at;
            }
        }
    }
}

impl Group {
    /// A lease is to be renewed then. If the caller has to start the task for that, returns what wakes the task.
    fn task_to_start(&mut self, renew_at: Moment) -> Option<Arc<Notify>> {
        if renew_at == Moment::FOREVER {
            return None;
        }
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

    fn all(&self) -> impl Iterator<Item = Held> {
        self.leases.values().map(|kept| kept.held.clone())
    }
}

impl fmt::Debug for HeldGroups {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HeldGroups")
            .field("groups", &self.all.lock().groups.len())
            .finish_non_exhaustive()
    }
}

/// Forwards the backend's reports on a group to all its leases.
pub(crate) struct GroupReports {
    pub(crate) held: Arc<HeldGroups>,
    /// Notified when contact with the server returns.
    pub(crate) contact: Arc<Notify>,
    pub(crate) clock: Clock,
}

impl Groups for GroupReports {
    fn suspect(&self, group: GroupId) {
        for held in self.held.of_group(group) {
            held.entry.suspect(held.number);
        }
    }

    fn restored(&self, group: GroupId) {
        self.contact.notify_waiters();
        self.renew(group);
    }

    fn renew(&self, group: GroupId) {
        self.held.renew_now(group, self.clock.now());
    }

    fn lost(&self, group: GroupId, reason: LossReason) {
        self.held.end_group(group, reason);
        for held in self.held.of_group(group) {
            held.entry.lost_at_server(held.number, reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lost_groups_of_a_long_life_are_not_all_remembered() {
        let held = HeldGroups::default();
        let groups = 3 * MOST_ENDED as u64;
        for number in 0..groups {
            held.end_group(GroupId::new(number), LossReason::ConnectionLost);
            held.end_group(GroupId::new(number), LossReason::SessionClosed);
        }
        let ended = &held.all.lock().ended;
        assert_eq!((ended.reasons.len(), ended.order.len()), (MOST_ENDED, MOST_ENDED));
        assert_eq!(ended.reason(GroupId::new(groups - 1)), Some(LossReason::SessionClosed));
        assert_eq!(ended.reason(GroupId::new(0)), None);
    }
}
