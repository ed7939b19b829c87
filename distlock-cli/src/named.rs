//! What the user names: a lock, or a semaphore.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use distlock::status::{Broken, HolderId, LockKind, LockStatus, Mode};
use distlock::{DistributedLock, FencingToken, LockClient, LockError, LockOptions, Operation, Semaphore};

/// A lock or a semaphore, by its name. The two of one name have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: LockKind,
}

impl<'a> Named<'a> {
    pub(crate) fn lock(name: &'a str) -> Self {
        Self { name, kind: LockKind::Lock }
    }

    /// What is held in this mode.
    pub(crate) fn in_mode(name: &'a str, mode: Mode) -> Self {
        Self { name, kind: mode.kind() }
    }

    /// Asks who holds it and who waits for it.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn status(self, locks: &LockClient) -> Result<LockStatus, LockError> {
        match self.semaphore(locks, Operation::Inspect)? {
            Some(semaphore) => semaphore.status().await,
            None => locks.status(self.name).await,
        }
    }

    /// After a status that shows no client: which option leads to what is in use and has the same name, a semaphore or a lock.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn hint(self, locks: &LockClient) -> Option<String> {
        let (kind, option) = match self.kind {
            LockKind::Semaphore => (LockKind::Lock, "leave out --semaphore"),
            _ => (LockKind::Semaphore, "add --semaphore"),
        };
        let other = Self { kind, ..self };
        // A backend may have no semaphores; then there is nothing to hint at.
        let status = other.status(locks).await.ok()?;
        is_in_use(&status).then(|| format!("{other} is in use: {option}"))
    }

    /// Takes it away from this holder.
    pub(crate) async fn break_holder(
        self,
        locks: &LockClient,
        holder: &HolderId,
    ) -> Result<Broken, LockError> {
        match self.semaphore(locks, Operation::Break)? {
            Some(semaphore) => semaphore.break_holder(holder).await,
            None => locks.break_holder(self.name, holder).await,
        }
    }

    /// The semaphore, for those who take no permit: to them it makes no difference how many there are.
    fn semaphore(self, locks: &LockClient, operation: Operation) -> Result<Option<Semaphore>, LockError> {
        match self.kind {
            LockKind::Semaphore => {
                locks.semaphore(self.name, 1).map(Some).map_err(|error| error.during(operation))
            }
            _ => Ok(None),
        }
    }
}

impl Display for Named<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            LockKind::Semaphore => "semaphore",
            _ => "lock",
        };
        write!(formatter, "{kind} {:?}", self.name)
    }
}

/// Whether a client holds it or waits for it.
pub(crate) fn is_in_use(status: &LockStatus) -> bool {
    status.is_held() || !status.waiters.is_empty()
}

/// The lock that acquires `name` in this mode.
pub(crate) fn open(
    locks: &LockClient,
    name: &str,
    mode: Mode,
    options: LockOptions,
) -> Result<Arc<dyn DistributedLock>, LockError> {
    match mode {
        Mode::Shared => Ok(locks.rw_lock_with(name, options)?.read()),
        Mode::Permits { take, of } => locks.semaphore_with(name, of.get(), options)?.permits(take.get()),
        _ => locks.mutex_with(name, options),
    }
}

/// The token of a holder in this mode, if it fences anything. That of a permit does not.
pub(crate) fn fencing_token(token: Option<FencingToken>, mode: Mode) -> Option<FencingToken> {
    token.filter(|_| mode.kind() == LockKind::Lock)
}
