//! The state of a lock, as the server shows it: the holder and the waiters.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::types::{FencingToken, LockError, LockName, Mode, ProcessOrigin, setters};

/// Identifies a holder or a waiter of a lock, as the server knows it: one acquisition, not one process.
///
/// Pass it to [`LockClient::break_holder`](crate::LockClient::break_holder), which takes the lock from that holder
/// only.
///
/// ```
/// use lock_core::HolderId;
///
/// let holder = HolderId::new("4711"); // as a status showed it
/// assert_eq!(holder.as_str(), "4711");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HolderId(Arc<str>);

impl HolderId {
    /// Creates an id from the server's spelling.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self(Arc::from(id.as_ref()))
    }

    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HolderId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a client tells the server about itself, for people who inspect a lock.
///
/// ```
/// use lock_core::HolderInfo;
///
/// let info = HolderInfo::of_this_process();
/// assert_eq!((info.pid, info.label), (std::process::id(), None));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The host name of the machine.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// Distinguishes the process from others with the same id, where the system provides it.
    pub origin: Option<ProcessOrigin>,
    /// The label that the user gave this client (`?label=`), if any.
    pub label: Option<String>,
    /// The value that a candidate gives its leadership, if it is one; see
    /// [`Backend::update_holder`](crate::Backend::update_holder).
    pub value: Option<String>,
}

impl HolderInfo {
    /// Returns the machine and the process that this code runs in.
    pub fn of_this_process() -> Self {
        let origin = ProcessOrigin::of_this_process();
        Self { host: host_name(), pid: std::process::id(), origin, label: None, value: None }
    }

    /// Returns whether this is about the process of `participant`, as far as the server has said.
    pub(crate) fn is_process_of(&self, participant: &Participant) -> bool {
        let is_same_place = match (&self.origin, &participant.origin) {
            (Some(ours), Some(theirs)) => ours == theirs,
            _ => participant.host.as_ref() == Some(&self.host),
        };
        is_same_place && participant.pid == Some(self.pid)
    }
}

/// The label, the host and the process.
impl fmt::Display for HolderInfo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(label) = &self.label {
            write!(formatter, "{label}@")?;
        }
        write!(formatter, "{}:{}", self.host, self.pid)
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

/// A holder of a lock, or a waiter for it.
///
/// ```
/// use std::time::SystemTime;
///
/// use lock_core::{FencingToken, HolderId, HolderInfo, Participant};
///
/// let holder = Participant::new(HolderId::new("4711"))
///     .with_info(&HolderInfo::of_this_process())
///     .with_token(Some(FencingToken::new(33)))
///     .with_since(SystemTime::now());
/// assert_eq!(holder.pid, Some(std::process::id()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Participant {
    /// Its id on the server.
    pub id: HolderId,
    /// How it holds or wants the lock: exclusively, shared, or with this many permits.
    pub mode: Mode,
    /// The fencing token of a holder, if the backend has tokens.
    pub token: Option<FencingToken>,
    /// The host name of its machine, if the server knows it.
    pub host: Option<String>,
    /// Its process id, if the server knows it.
    pub pid: Option<u32>,
    /// Distinguishes its process from others with the same id, if the server knows it.
    pub origin: Option<ProcessOrigin>,
    /// The label that the user gave it, if any.
    pub label: Option<String>,
    /// The value of its leadership, if it is a leader or a candidate and the backend shows that.
    pub value: Option<String>,
    /// Since when it holds or waits, by the wall clock of the machine that recorded it.
    pub since: Option<SystemTime>,
}

impl Participant {
    /// Creates an exclusive participant of which only the id is known.
    pub fn new(id: HolderId) -> Self {
        Self {
            id,
            mode: Mode::Exclusive,
            token: None,
            host: None,
            pid: None,
            origin: None,
            label: None,
            value: None,
            since: None,
        }
    }

    setters! {
        /// Sets how it holds or wants the lock.
        with_mode(mode: Mode) { mode = mode }

        /// Adds the fencing token.
        with_token(token: Option<FencingToken>) { token = token }

        /// Adds the time since when it holds or waits.
        with_since(since: SystemTime) { since = Some(since) }
    }

    /// Adds what the participant said about itself.
    #[must_use]
    pub fn with_info(mut self, info: &HolderInfo) -> Self {
        self.host = Some(info.host.clone());
        self.pid = Some(info.pid);
        self.origin.clone_from(&info.origin);
        self.label.clone_from(&info.label);
        self.value.clone_from(&info.value);
        self
    }
}

/// The label, the host and the process, as far as the server knows them; else the id.
impl fmt::Display for Participant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(host) = &self.host else { return self.id.fmt(formatter) };
        if let Some(label) = &self.label {
            write!(formatter, "{label}@")?;
        }
        formatter.write_str(host)?;
        self.pid.map_or(Ok(()), |pid| write!(formatter, ":{pid}"))
    }
}

/// The state of a lock at the moment when the server answered. It may have changed since.
///
/// ```
/// use lock_core::{HolderId, LockName, LockStatus, Participant};
///
/// let mut status = LockStatus::free(LockName::new("orders/42")?);
/// assert!(!status.is_held());
/// status.holders.push(Participant::new(HolderId::new("4711")));
/// assert!(status.is_held());
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStatus {
    /// The lock.
    pub name: LockName,
    /// The holders: none, one that is exclusive, or any number that share.
    pub holders: Vec<Participant>,
    /// The waiters, the next one first, if the backend can tell.
    pub waiters: Vec<Participant>,
    /// How long the holder's lease runs if it is not renewed, if there is a lease; with several holders, the lease that
    /// ends last.
    pub remaining: Option<Duration>,
}

/// The locks and semaphores of a server that are in use.
#[derive(Debug, Clone, Default)]
pub struct LockList {
    /// Those that are held or waited for, in the order of their names. The [mode](Participant::mode) of a participant tells a
    /// semaphore from a lock.
    pub locks: Vec<LockStatus>,
    /// Why others could not be inspected, each with its lock; also those without the client's prefix.
    pub failures: Vec<LockError>,
}

impl LockStatus {
    /// Creates the status of a lock that has no holder and no waiters.
    pub fn free(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), remaining: None }
    }

    /// Returns whether the lock is held.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty()
    }

    /// Returns how many permits of a semaphore no one holds; `None` for a lock, and for a semaphore that has neither
    /// holders nor waiters, because then the next acquisition decides how many there are.
    ///
    /// ```
    /// # use std::num::NonZeroU32;
    /// use lock_core::{HolderId, LockName, LockStatus, Mode, Participant};
    ///
    /// # let (take, of) = (NonZeroU32::new(2).unwrap(), NonZeroU32::new(5).unwrap());
    /// let mut status = LockStatus::free(LockName::new("render")?);
    /// assert_eq!(status.free_permits(), None);
    /// let holder = Participant::new(HolderId::new("4711")).with_mode(Mode::Permits { take, of }); // 2 of 5
    /// status.holders.push(holder);
    /// assert_eq!(status.free_permits(), Some(3));
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    pub fn free_permits(&self) -> Option<u32> {
        let permits = |participant: &Participant| match participant.mode {
            Mode::Permits { take, of } => Some((take.get(), of.get())),
            _ => None,
        };
        let (_, of) = self.holders.iter().chain(&self.waiters).find_map(permits)?;
        let taken = self.holders.iter().filter_map(permits).map(|(take, _)| take);
        Some(taken.fold(of, u32::saturating_sub))
    }
}

/// The result of taking a lock away from its holder.
///
/// ```
/// use lock_core::{Broken, LockName};
///
/// let mut broken = Broken::taken_away();
/// broken.also_lost = Some(vec![LockName::new("orders/43")?]); // it was on the same connection
/// assert!(broken.taken_away && !Broken::not_held().taken_away);
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broken {
    /// Whether the named holder still held the lock, so that it was taken away. Otherwise nothing was changed.
    pub taken_away: bool,
    /// Other locks that their holders lost by the same request, where a server can only end a whole connection; `None` if the
    /// server does not say which.
    pub also_lost: Option<Vec<LockName>>,
}

impl Broken {
    /// The named holder has lost the lock, and no other lock was lost.
    pub fn taken_away() -> Self {
        Self { taken_away: true, also_lost: Some(Vec::new()) }
    }

    /// The named holder did not hold the lock any more.
    pub fn not_held() -> Self {
        Self { taken_away: false, also_lost: Some(Vec::new()) }
    }
}
