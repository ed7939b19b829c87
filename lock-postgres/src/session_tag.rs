//! The tag of a session, by which a client distinguishes its own session from one that it shares with other clients.
//!
//! A client gives each session a random number, as a setting that the server gets with the login. So the session that
//! answers a statement with that number is the one that was started for this connection: a pooler that keeps sessions of
//! its own does not pass the setting on, or refuses it. No statement that other clients could send, not even `DISCARD
//! ALL`, takes it away.
//!
//! A pooler in session mode gives a session to another client when this one has gone. Behind one, the session also shows its tag to other
//! sessions, by an advisory lock with two numbers, where locks of users have one. The pooler takes it away with all others (`DISCARD ALL`)
//! before it passes the session on, so a client ends and cancels only what still shows its tag.

use std::fmt;

use lock_core::spi::random_bytes;
use lock_core::{LockError, Operation};

/// The setting that has the number.
pub(crate) const SETTING: &str = "distlock.session";

/// The first of the two numbers of the locks by which sessions show their tags.
const CLASS: u32 = 1_685_288_820;

/// The condition on a row of `pg_locks` that it shows the tag of a session.
pub(crate) fn is_of_a_tag() -> String {
    format!("objsubid=2 AND classid={CLASS}::oid")
}

/// The number that identifies a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// The second number of the lock that shows it, which need not be one session's alone: who asks for it names the process, too.
    fn shown(self) -> u64 {
        self.0 & 0x7fff_ffff
    }

    /// The statement by which a session shows it.
    pub(crate) fn show(self) -> String {
        format!("SELECT pg_advisory_lock_shared({CLASS},{})", self.shown())
    }

    /// The condition on a row of `pg_locks` that it shows this tag.
    pub(crate) fn is_shown(self) -> String {
        format!("locktype='advisory' AND granted AND {} AND objid={}::oid", is_of_a_tag(), self.shown())
    }
}

impl fmt::Display for SessionTag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}
