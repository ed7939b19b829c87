//! The tag of a session, by which a client distinguishes its own session from one that it shares with other clients, and from
//! one that no longer exists.
//!
//! When a client opens a session, it gives it a random number in a variable, and takes a lock named after the number.
//! * An answer without the number comes from another session, or from one that another client has tagged since.
//! * As long as the lock is held, the server has the session. The client can look this up at once, however many connections there
//!   are, and also while the session waits.

use lock_core::spi::random_bytes;
use lock_core::{LockError, Operation};

/// The prefix of the names of these locks. No lock of a user has such a name, as it is not [plain](crate::options::is_plain).
const LOCKS: &str = "distlock+";

/// The number that identifies a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionTag(u64);

impl SessionTag {
    pub(crate) fn random() -> Result<Self, LockError> {
        random_bytes(Operation::Connect).map(u64::from_ne_bytes).map(Self::new)
    }

    /// The tag with a number that is not zero and that every server reads the same, as signed or unsigned.
    pub(crate) fn new(number: u64) -> Self {
        Self((number >> 1).max(1))
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// The lock that the session holds for as long as it exists.
    pub(crate) fn lock(self) -> String {
        format!("{LOCKS}{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_session_is_its_own() {
        let lock = SessionTag::new(u64::MAX).lock();
        assert_eq!(lock, "distlock+7fffffffffffffff");
        assert!(!lock.chars().all(crate::options::is_plain));
        assert_ne!(SessionTag::new(0).number(), 0);
    }
}
