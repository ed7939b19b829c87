//! What can be told about a lock from outside: who holds it, who waits for it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::types::name::LockName;
use crate::types::origin::ProcessOrigin;
use crate::types::token::FencingToken;

/// Who holds a lock or waits for it, as the server knows it: one acquisition, not one process.
///
/// [`LockClient::break_holder`](crate::LockClient::break_holder) takes it, so that the lock is taken from that holder or
/// from nobody.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderId(Arc<str>);

impl HolderId {
    /// An id as the server spells it.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self(Arc::from(id.as_ref()))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a client tells the server about itself, for people who ask who holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The name of the machine.
    pub host: String,
    /// The number of the process.
    pub pid: u32,
    /// What tells the process from others with that number, where the system has it.
    pub origin: Option<ProcessOrigin>,
    /// What the user called this client (`?label=`), if anything.
    pub label: Option<String>,
}

impl HolderInfo {
    /// The machine and process that this runs in.
    pub fn of_this_process() -> Self {
        let origin = ProcessOrigin::of_this_process();
        Self { host: host_name(), pid: std::process::id(), origin, label: None }
    }
}

#[cfg(unix)]
fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// One holder of a lock, or one waiter for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// Its id at the server.
    pub id: HolderId,
    /// The fencing token that it was given, for a holder on a backend that has tokens.
    pub token: Option<FencingToken>,
    /// The name of its machine, where the server knows it.
    pub host: Option<String>,
    /// The number of its process, where the server knows it.
    pub pid: Option<u32>,
    /// What tells its process from others with that number, where the server knows it.
    pub origin: Option<ProcessOrigin>,
    /// What its user called it, if anything.
    pub label: Option<String>,
    /// Since when it holds or waits, by the wall clock of whoever wrote it down.
    pub since: Option<SystemTime>,
}

impl Participant {
    /// A participant of which only the id is known.
    pub fn new(id: HolderId) -> Self {
        Self { id, token: None, host: None, pid: None, origin: None, label: None, since: None }
    }

    /// Adds what the participant said about itself.
    #[must_use]
    pub fn with_info(mut self, info: &HolderInfo) -> Self {
        self.host = Some(info.host.clone());
        self.pid = Some(info.pid);
        self.origin.clone_from(&info.origin);
        self.label.clone_from(&info.label);
        self
    }

    /// Adds the fencing token.
    #[must_use]
    pub fn with_token(mut self, token: Option<FencingToken>) -> Self {
        self.token = token;
        self
    }

    /// Adds since when it holds or waits.
    #[must_use]
    pub fn with_since(mut self, since: SystemTime) -> Self {
        self.since = Some(since);
        self
    }
}

/// The state of a lock at the moment when the server was asked. It may have changed since.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The lock.
    pub name: LockName,
    /// Who holds it: nobody, or one for an exclusive lock.
    pub holders: Vec<Participant>,
    /// Who waits, the next one first, where the backend can tell.
    pub waiters: Vec<Participant>,
    /// How long the holder's lease still runs if it is not renewed, where there is a lease.
    pub remaining: Option<Duration>,
}

impl LockStatus {
    /// The status of a lock that nobody holds or waits for.
    pub fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), remaining: None }
    }

    /// Whether anybody holds it.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }
}

/// What came of taking a lock away from its holder.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Broken {
    /// Whether that holder still held it, so that it was taken away.
    pub taken_away: TakenAway,
    /// Other locks that the same act cost their holders, where a server can only end a whole connection.
    pub also_lost: Vec<LockName>,
    /// Whether those are all.
    pub others: Others,
}

/// Whether it is known which other locks an act has cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Others {
    /// [`Broken::also_lost`] names all of them.
    #[default]
    Known,
    /// There may be more: the server does not tell.
    Unknown,
}

/// Whether a lock was taken from the holder that the caller named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TakenAway {
    /// That holder held it, and holds it no more.
    Yes,
    /// That holder did not hold it any more. Nothing was changed.
    #[default]
    No,
}

impl Broken {
    /// The named holder has lost the lock.
    pub fn taken_away() -> Self {
        Self { taken_away: TakenAway::Yes, ..Self::default() }
    }

    /// The named holder did not hold the lock any more.
    pub fn not_held() -> Self {
        Self::default()
    }
}
