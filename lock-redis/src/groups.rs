//! Divides a client's holds into groups that are renewed together. When one call renewed 3,500 holds over a slow network, the last
//! replies came too late, and all holds were given up: each group has its own sending, reply and repetition.

use std::sync::Arc;

use lock_core::GroupId;
use lock_core::spi::Mutex;

/// How many holds one call renews. The client renews all groups at the same time, each on its own: a reply counts, whatever
/// happens to the others.
const MOST_TOGETHER: usize = 100;

/// The groups of a connection, with the number of holds in each. Few holds are one group.
#[derive(Default)]
pub(crate) struct Groups {
    /// The first of their numbers.
    first: u64,
    holds: Mutex<Vec<usize>>,
}

impl Groups {
    /// The groups of the connection with this number.
    pub(crate) fn numbered(connection: u64) -> Arc<Self> {
        Arc::new(Self { first: connection << 32, holds: Mutex::default() })
    }

    /// Joins the first group that is not full.
    pub(crate) fn enter(self: &Arc<Self>) -> Membership {
        let mut groups = self.holds.lock();
        let number = groups.iter().position(|holds| *holds < MOST_TOGETHER).unwrap_or(groups.len());
        match groups.get_mut(number) {
            Some(holds) => *holds += 1,
            None => groups.push(1),
        }
        drop(groups);
        Membership { groups: Arc::clone(self), number }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = GroupId> + use<> {
        let first = self.first;
        (0..self.holds.lock().len()).map(move |number| id(first, number))
    }
}

fn id(first: u64, number: usize) -> GroupId {
    GroupId::new(first + number as u64)
}

/// A hold's membership in a group, until it is dropped.
pub(crate) struct Membership {
    groups: Arc<Groups>,
    number: usize,
}

impl Membership {
    pub(crate) fn group(&self) -> GroupId {
        id(self.groups.first, self.number)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(holds) = self.groups.holds.lock().get_mut(self.number) {
            *holds = holds.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_filled_one_after_the_other_and_left() {
        let groups = Arc::<Groups>::default();
        let mut members: Vec<_> = (0..=MOST_TOGETHER).map(|_| groups.enter()).collect();
        let full = members.iter().filter(|member| member.group() == id(0, 0)).count();
        assert_eq!((full, groups.all().count()), (MOST_TOGETHER, 2));
        members.swap_remove(5);
        assert_eq!(groups.enter().group(), id(0, 0));
        drop(members);
        assert!(groups.holds.lock().iter().all(|holds| *holds == 0));
    }
}
