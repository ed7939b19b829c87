//! What a server remembers apart from locks: that something has been done.

use std::time::Duration;

use crate::types::{ErrorKind, LockError, LockName, Operation, PhysicalName, hash};

#[cfg(doc)]
use super::Backend;

/// A slot of a lock that a server is to remember, with [`Backend::remember`].
///
/// ```
/// use lock_core::{CharacterSet, LockName, Memo, NameRules};
///
/// let name = LockName::new("nightly")?;
/// let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
/// let memo = Memo::new(name, physical, "2026-05-02")?;
/// assert_eq!((memo.name().as_str(), memo.slot(), memo.key().len()), ("nightly", "2026-05-02", 32));
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Memo {
    name: LockName,
    physical: PhysicalName,
    slot: String,
}

impl Memo {
    /// The maximum length of a slot, in bytes.
    pub const MAX_LENGTH: usize = 200;

    /// Creates a request. A slot is any text; the empty one is not for users: it is the pause after a hold.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a slot that is longer than [`Memo::MAX_LENGTH`] bytes.
    pub fn new(name: LockName, physical: PhysicalName, slot: impl Into<String>) -> Result<Self, LockError> {
        let slot = slot.into();
        if slot.len() > Self::MAX_LENGTH {
            return Err(LockError::new(ErrorKind::InvalidOption, Operation::Remember)
                .on(&name)
                .because(format!("the slot has {} bytes", slot.len()))
                .remedy(format!("use at most {} bytes", Self::MAX_LENGTH)));
        }
        Ok(Self { name, physical, slot })
    }

    /// The pause after a hold of this lock.
    pub(crate) fn of_pause(name: LockName, physical: PhysicalName) -> Self {
        Self { name, physical, slot: String::new() }
    }

    /// Returns the name of the lock, as the user wrote it.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the name of the lock on the server.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }

    /// Returns the slot, as the user wrote it. It may contain any character.
    pub fn slot(&self) -> &str {
        &self.slot
    }

    /// Returns a name for the physical name and the slot together, for a server that does not accept any text: 32
    /// hexadecimal digits, the first of a SHA-256.
    pub fn key(&self) -> String {
        // The length says where the one ends and the other begins.
        hash(&format!("{}:{}{}", self.physical.as_str().len(), self.physical, self.slot))
    }
}

/// The result of [`Backend::remember`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remembered {
    /// The server remembers it from now on, and did not before. Of all clients, one gets this answer.
    Now,
    /// The server remembers it already, and keeps it as long as it would have.
    Already {
        /// How long the server will still remember it; never zero.
        remaining: Duration,
    },
}

/// What [`Backend::recall`] does with a slot that it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recall {
    /// Leaves it as it is.
    Look,
    /// Removes it, so that the next [`Backend::remember`] takes it anew.
    Forget,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{CharacterSet, NameRules};

    fn memo(name: &str, slot: &str) -> Memo {
        let name = LockName::new(name).unwrap();
        let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
        Memo::new(name, physical, slot).unwrap()
    }

    #[test]
    fn no_two_slots_have_one_key() {
        let memos = [memo("a", "bc"), memo("ab", "c"), memo("a", ""), memo("1:a", ""), memo("a", "b")];
        let mut keys: Vec<_> = memos.iter().map(Memo::key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), memos.len());
        assert_eq!(memo("a", "bc").key(), memo("a", "bc").key());
    }

    #[test]
    fn a_slot_is_bounded() {
        let name = LockName::new("a").unwrap();
        let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
        let error = Memo::new(name, physical, "x".repeat(201)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
    }
}
