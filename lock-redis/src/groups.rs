//! Divides the holds of a connection into groups that are renewed together. When one call renewed 3,500 holds over a slow network, the
//! last replies came too late, and all holds were given up: each group has its own sending, reply and repetition.

use std::sync::Arc;

use lock_core::GroupId;
use lock_core::spi::Mutex;

/// How many holds one call renews. The client renews all groups at the same time, each on its own: a reply counts, whatever
/// happens to the others.
///
/// So many are 110 kB, which a line of 0.3 Mbit/s carries within the default `timeout`. The server runs their scripts one by one, 8 µs
/// each, and turns to other clients whenever it has read 16 kB: of their `PING`s meanwhile, 99 in 100 were answered within 0.8 ms.
const MOST_TOGETHER: usize = 400;

/// The groups of a connection. Few holds are one group.
#[derive(Default)]
pub(crate) struct Groups {
    /// The first of their numbers.
    first: u64,
    /// Each is shared with the holds in it.
    all: Mutex<Vec<Membership>>,
}

/// A hold's membership in a group, until it is dropped.
pub(crate) type Membership = Arc<GroupId>;

impl Groups {
    /// The groups of the connection with this number.
    pub(crate) fn numbered(connection: u64) -> Arc<Self> {
        Arc::new(Self { first: connection << 32, all: Mutex::default() })
    }

    /// Joins the first group that is not full.
    pub(crate) fn enter(&self) -> Membership {
        let mut all = self.all.lock();
        if let Some(group) = all.iter().find(|group| Arc::strong_count(group) <= MOST_TOGETHER) {
            return Arc::clone(group);
        }
        let new = Arc::new(GroupId::new(self.first + all.len() as u64));
        all.push(Arc::clone(&new));
        new
    }

    pub(crate) fn all(&self) -> Vec<GroupId> {
        self.all.lock().iter().map(|group| **group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_filled_one_after_the_other_and_left() {
        let groups = Groups::numbered(1);
        let ids = [1 << 32, (1 << 32) + 1].map(GroupId::new);
        let mut members: Vec<_> = (0..=MOST_TOGETHER).map(|_| groups.enter()).collect();
        let full = members.iter().filter(|member| ***member == ids[0]).count();
        assert_eq!((full, &*groups.all()), (MOST_TOGETHER, &ids[..]));
        members.swap_remove(5);
        assert_eq!(*groups.enter(), ids[0]);
        drop(members);
        assert!(groups.all.lock().iter().all(|group| Arc::strong_count(group) == 1));
    }
}
