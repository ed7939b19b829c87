//! The server's locks that make up one lock or one semaphore.
//!
//! * The *gate*: the lock itself, under the name that it has for programs without readers. Of a semaphore, a lock of its own.
//! * *Slots*: each reader has one, and each permit is one. Their names contain a `|`, which no name of a user does.
//! * *Sizes*: each permit holder also holds a lock that names the size of the semaphore, so that clients with another size notice.

use std::num::NonZeroU32;
use std::sync::Arc;

use lock_core::{CharacterSet, LockKind, LockName, Mode, NameRules};

/// A lock's name at the server.
pub(crate) type Name = Arc<str>;

/// The most slots that a lock has for readers, and the most permits of a semaphore.
pub(crate) const MOST_SLOTS: usize = 64;

/// How many readers one lock may have at once. All clients of a lock have the same number, as a writer looks at so many slots;
/// each costs the server about 0.35 µs in each acquisition of an exclusive lock. Another number is another [layout](crate::statement::LAYOUT).
pub(crate) const READER_SLOTS: usize = 16;

pub(crate) const MOST_PERMITS: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);

/// What is left of the longest name for that of a gate, beside the longest ending, `|p63/64`.
const LONGEST_BASE: usize = 57;

/// The parts of a lock or a semaphore, by name. A connection never has two slots of a lock for different attempts, or the lock and a slot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Parts {
    pub(crate) kind: LockKind,
    pub(crate) gate: Name,
    /// What the names of slots begin with.
    base: Name,
}

impl Parts {
    /// The parts of the lock with this name at the server, or of the semaphore.
    pub(crate) fn new(name: Name, kind: LockKind) -> Self {
        let base = base(&name);
        let gate = if kind == LockKind::Semaphore { Arc::from(format!("{base}|p")) } else { name };
        Self { kind, gate, base }
    }

    /// What the names of all slots, and of a semaphore's gate, begin with.
    pub(crate) fn stem(&self) -> String {
        if self.kind == LockKind::Semaphore { format!("{}|p", self.base) } else { format!("{}|", self.base) }
    }

    pub(crate) fn slot(&self, index: usize) -> Name {
        format!("{}{index}", self.stem()).into()
    }

    /// The gate and the slots.
    pub(crate) fn all(&self) -> Vec<Name> {
        let slots = if self.kind == LockKind::Semaphore { MOST_SLOTS } else { READER_SLOTS };
        std::iter::once(self.gate.clone()).chain((0..slots).map(|index| self.slot(index))).collect()
    }

    /// The lock that names the size of the semaphore for the holder of this slot.
    pub(crate) fn size(&self, index: usize, of: usize) -> Name {
        format!("{}{index}/{of}", self.stem()).into()
    }

    /// What the holder of these slots in that mode holds. The slots come first: as long as one of them is held, so is its size.
    pub(crate) fn held_with(&self, slots: &[usize], mode: Mode) -> Vec<Name> {
        let mut held: Vec<_> = slots.iter().map(|index| self.slot(*index)).collect();
        if let Mode::Permits { of, .. } = mode {
            held.extend(slots.iter().map(|index| self.size(*index, count(of))));
        }
        held
    }

    /// Whether that is a part of this lock or semaphore, or what the names of its slots begin with.
    pub(crate) fn contain(&self, part: &str) -> bool {
        let ends = part.strip_prefix(&*self.stem());
        part == &*self.gate
            || ends.is_some_and(|ends| ends.chars().next().is_none_or(|first| first.is_ascii_digit()))
    }
}

/// A number of permits, of which there are [`MOST_SLOTS`] at most.
pub(crate) fn count(permits: NonZeroU32) -> usize {
    usize::try_from(permits.get()).unwrap_or(usize::MAX)
}

fn base(name: &Name) -> Name {
    if name.len() <= LONGEST_BASE {
        return Arc::clone(name);
    }
    let rules = NameRules::new(CharacterSet::ANY, LONGEST_BASE);
    LockName::new(&**name).map_or_else(|_| Arc::clone(name), |long| rules.apply(&long).as_str().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::is_plain;

    fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
    }

    #[test]
    fn no_part_has_a_users_name_and_all_are_short_enough() {
        for length in 1..=64 {
            let name: Name = "x".repeat(length).into();
            for kind in [LockKind::Lock, LockKind::Semaphore] {
                let parts = Parts::new(Arc::clone(&name), kind);
                let last = MOST_SLOTS - 1;
                for part in [parts.slot(0), parts.slot(last), parts.size(last, MOST_SLOTS)] {
                    assert!(part.len() <= 64 && !part.chars().all(is_plain), "{part}");
                }
                assert!(parts.contain(&parts.gate) && parts.contain(&parts.slot(3)));
            }
        }
        let (lock, semaphore) =
            (Parts::new("a".into(), LockKind::Lock), Parts::new("a".into(), LockKind::Semaphore));
        assert!(!lock.contain(&semaphore.gate) && !lock.contain(&semaphore.slot(1)));
        assert!(!semaphore.contain(&lock.gate) && !semaphore.contain(&lock.slot(1)));
        assert_eq!(count(MOST_PERMITS), MOST_SLOTS);
        assert_ne!(
            Parts::new("x".repeat(63).into(), LockKind::Lock).slot(1),
            Parts::new("x".repeat(64).into(), LockKind::Lock).slot(1)
        );
    }

    #[test]
    fn a_permit_is_held_with_its_size() {
        let parts = Parts::new("a".into(), LockKind::Semaphore);
        let held = parts.held_with(&[0, 3], permits(2, 5));
        assert_eq!(held.iter().map(|name| &**name).collect::<Vec<_>>(), ["a|p0", "a|p3", "a|p0/5", "a|p3/5"]);
    }
}
