//! The tag of a session, by which a client distinguishes its own session from one that it shares with other clients.
//!
//! A client gives each session a random number, as a setting that the server gets with the login. So the session that
//! answers a statement with that number is the one that was started for this connection: a pooler that keeps sessions of
//! its own does not pass the setting on, or refuses it. No statement that other clients could send, not even `DISCARD
//! ALL`, takes it away.

use std::fmt;

use lock_core::spi::random_bytes;
use lock_core::{LockError, Operation};

/// The setting that has the number.
pub(crate) const SETTING: &str = "distlock.session";

/// The number that identifies a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionTag(u64);

impl SessionTag {
    pub(crate) fn random() -> Result<Self, LockError> {
        random_bytes(Operation::Connect).map(u64::from_ne_bytes).map(Self)
    }

    /// The tag with this number.
    #[cfg(test)]
    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    /// The SQL expression that is true in the session with this tag alone, and never NULL.
    pub(crate) fn is_here(self) -> String {
        format!("COALESCE(current_setting('{SETTING}',true)='{self}',false)")
    }
}

impl fmt::Display for SessionTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}
