//! Several locks that are acquired together, all or nothing.
//!
//! The locks are acquired one after the other, in an order that is the same in every program. So of two callers that want
//! some of the same locks, one is ahead of the other at each of them, and no two wait for each other.

mod joint;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use async_trait::async_trait;

use crate::api::granter::GuardedLock;
use crate::api::guard::LockGuard;
use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::DistributedLock;
use crate::runtime::clock::Clock;
use crate::runtime::sync::Mutex;
use crate::spi::Wait;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::name::LockName;
use crate::types::owner::Owner;
use crate::types::token::FencingToken;
use joint::Joints;

#[cfg(doc)]
use crate::api::client::LockClient;

/// Several locks as one: acquired all or nothing, and lost when one of them is lost.
///
/// [`LockClient::mutex_all`] makes one of the names of a client, and [`MultiLock::of`] of any locks, also those of several
/// clients. It is a [`DistributedLock`] like any other.
///
/// # Order
/// The locks are acquired one after the other, sorted by name (and locks of one name by the address of their server), so
/// that no two callers wait for each other, whatever order they write. **That covers only locks that are acquired together:**
/// who holds `account/9` and then asks for `account/7` and `account/9` has left the order.
///
/// # What is held while waiting
/// While it waits for one of the locks, it holds those that come before it. Those are given back as soon as the wait ends
/// without success, or when one of them is lost meanwhile; then the wait begins anew. One deadline covers all of them.
///
/// # Loss
/// When one of the locks is lost, the [`Hold`] is lost, for the same reason, and the error names that lock. **The others
/// stay held until the owner releases or drops its last guard, or unlocks**: nothing else may enter while its work stops.
///
/// # Tokens
/// Each lock has its own fencing token: [`Hold::token_of`]. [`Hold::token`] is `None`, because no single number fences
/// several locks.
///
/// # Owners
/// Each of the locks belongs to the owner of the whole, which may enter each alone as well.
#[derive(Clone)]
pub struct MultiLock(Arc<Joints>);

impl MultiLock {
    /// Joins `locks` to one lock. A lock that is listed twice is acquired once.
    ///
    /// Keep the lock: another one of the same locks has entries of its own, so `unlock` has to be called on the one that
    /// was locked.
    ///
    /// ```
    /// # use lock_core::{DistributedLock, MultiLock};
    /// # use lock_core::memory::MemoryServer;
    /// # lock_core::example(async |local| {
    /// let remote = MemoryServer::new().client()?;
    /// let both = MultiLock::of([local.mutex("import")?, remote.mutex("import/all")?])?;
    /// let guard = both.acquire().await?;
    /// assert!(local.mutex("import")?.is_locked() && remote.mutex("import/all")?.is_locked());
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for an empty list, and for two locks that have the same name at the same server and
    /// belong to different clients, because one would wait for the other.
    pub fn of(
        locks: impl IntoIterator<Item = Arc<dyn DistributedLock>>,
    ) -> Result<Arc<dyn DistributedLock>, LockError> {
        let joints = Joints::of(in_order(locks.into_iter().collect())?)?;
        Ok(Arc::new(Self(Arc::new(joints))))
    }
}

/// Sorts the locks, each of them once.
fn in_order(mut locks: Vec<Arc<dyn DistributedLock>>) -> Result<Vec<Arc<dyn DistributedLock>>, LockError> {
    let invalid = || LockError::new(ErrorKind::InvalidOption, Operation::Configure);
    if locks.is_empty() {
        return Err(invalid().because("the list of locks is empty").remedy("name at least one lock"));
    }
    locks.sort_by(|one, other| (one.name(), one.server()).cmp(&(other.name(), other.server())));
    locks.dedup_by(|one, other| is_same(&**one, &**other));
    let clash = locks
        .windows(2)
        .find(|pair| (pair[0].name(), pair[0].server()) == (pair[1].name(), pair[1].server()));
    match clash {
        None => Ok(locks),
        Some(pair) => Err(invalid()
            .on(pair[0].name())
            .because("two different locks of the list have this name at the same server, and one may wait for the other")
            .remedy("take both from the same client, or list it once")),
    }
}

/// Whether both are the same lock: the same object, or the same name of the same client.
fn is_same(one: &dyn DistributedLock, other: &dyn DistributedLock) -> bool {
    let is_one_object = std::ptr::addr_eq(std::ptr::from_ref(one), std::ptr::from_ref(other));
    // Each client has its own copy of the address.
    let is_one_client = !one.server().is_empty() && std::ptr::eq(one.server(), other.server());
    is_one_object || (is_one_client && one.name() == other.name())
}

#[async_trait]
impl DistributedLock for MultiLock {
    fn name(&self) -> &LockName {
        self.0.name()
    }

    fn clock(&self) -> &Clock {
        self.0.clock()
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let hold = self.0.acquire(owner, wait).await?;
        let lock: Arc<dyn GuardedLock> = Arc::clone(&self.0) as _;
        Ok(hold.map(|hold| LockGuard::new(lock, owner, hold)))
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        self.0.unlock(owner).await
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        self.0.entry_of(owner).map(|(hold, _)| hold)
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        self.0.entry_of(owner).map_or(0, |(_, entries)| entries)
    }

    fn is_locked(&self) -> bool {
        self.0.is_locked()
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.listeners().add(self.name(), listener)
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MultiLock").field("name", self.0.name()).finish_non_exhaustive()
    }
}

impl Hold {
    /// Returns the holds of the locks that a [`MultiLock`] consists of; nothing for a hold of one lock.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_core::example(async |locks| {
    /// let guard = locks.mutex_all(["account/9", "account/7"])?.acquire().await?;
    /// let names: Vec<_> = guard.hold().parts().iter().map(|part| part.name().to_string()).collect();
    /// assert_eq!(names, ["account/7", "account/9"]);
    /// # Ok(()) });
    /// ```
    pub fn parts(&self) -> Vec<Self> {
        self.0.grant().parts.iter().map(|part| Self(Arc::clone(part))).collect()
    }

    /// Returns the fencing token of the lock called `name`: of this lock, or of one of those that a [`MultiLock`] consists
    /// of. `None` if the backend has no tokens, and for another name.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_core::example(async |locks| {
    /// let guard = locks.mutex_all(["account/7", "account/9"])?.acquire().await?;
    /// assert!(guard.hold().token_of("account/7").is_some());
    /// assert_eq!(guard.hold().token_of("account/8"), None);
    /// # Ok(()) });
    /// ```
    pub fn token_of(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        let name = name.as_ref();
        match self.parts() {
            parts if parts.is_empty() => self.token().filter(|_| self.name().as_str() == name),
            parts => parts.iter().find(|part| part.name().as_str() == name)?.token(),
        }
    }
}

/// The joint locks of one client that are in use: those of the same names are the same lock.
#[derive(Default)]
pub(crate) struct MultiLocks(Mutex<HashMap<Box<[LockName]>, Weak<Joints>>>);

impl MultiLocks {
    pub(crate) fn get(
        &self,
        locks: Vec<Arc<dyn DistributedLock>>,
    ) -> Result<Arc<dyn DistributedLock>, LockError> {
        let joints = Joints::of(in_order(locks)?)?;
        let mut known = self.0.lock();
        if known.len() == known.capacity() {
            known.retain(|_, joints| joints.strong_count() > 0);
        }
        let found = known.get(joints.names()).and_then(Weak::upgrade);
        let used = found.unwrap_or_else(|| {
            let joints = Arc::new(joints);
            known.insert(joints.names().into(), Arc::downgrade(&joints));
            joints
        });
        Ok(Arc::new(MultiLock(used)))
    }
}
