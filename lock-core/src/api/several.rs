//! Several locks that are acquired together, all or nothing.
//!
//! The locks are acquired one after the other, in an order that is the same in every program. So of two callers that want
//! some of the same locks, one is ahead of the other at each of them, and no two wait for each other.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::api::guard::{LockGuard, Origin};
use crate::api::joint::Joints;
use crate::api::listener::{LockListener, Subscription};
use crate::api::lock::DistributedLock;
use crate::api::mailbox::Reader;
use crate::api::publisher::Topic;
use crate::policy::hold::Hold;
use crate::runtime::Clock;
use crate::spi::{LockKind, Wait};
use crate::types::{ErrorKind, FencingToken, LockError, LockName, Operation, Owner};

#[cfg(doc)]
use crate::api::client::LockClient;

/// Several locks as one: acquired all or nothing, and lost when one of them is lost.
///
/// [`LockClient::mutex_all`] makes one of the names of a client, and [`MultiLock::of`] of any locks of clients, also those of
/// several. It is a [`DistributedLock`] like any other.
///
/// # Order
/// The locks are acquired one after the other, sorted by name (and locks of one name by the address of their server), so
/// that no two callers wait for each other, whatever order they write. **That covers only locks that are acquired together:**
/// acquiring `account/9` first, and then `account/7` and `account/9`, breaks the ordering.
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
/// Each of the locks belongs to the owner of the whole, which may enter each alone as well. The other way round, a body under
/// one of them that asks for all gets [`ErrorKind::Deadlock`]: it has left the order.
///
/// # Options
/// Each lock keeps the [options](crate::LockOptions) that it was made with, such as
/// [`LockClient::mutex_with`]`("account/7", …)`, except `finish_body_on_loss`: a body under several locks is stopped by the loss of
/// one.
#[derive(Clone)]
#[must_use = "this locks nothing: call `acquire`, `lock` or `with_lock`"]
pub struct MultiLock(pub(super) Arc<Joints>);

impl MultiLock {
    /// Joins `locks` to one lock. A lock that is listed twice is acquired once.
    ///
    /// Keep the lock: another one of the same locks has entries of its own, so `unlock` has to be called on the one that
    /// was locked.
    ///
    /// ```
    /// # use lock_core::{DistributedLock, MultiLock};
    /// # use lock_memory::MemoryServer;
    /// # lock_memory::example(async |local| {
    /// let remote = MemoryServer::new().client()?;
    /// let both = MultiLock::of([local.mutex("import")?, remote.mutex("import/all")?])?;
    /// let guard = both.acquire().await?;
    /// assert!(local.mutex("import")?.is_locked() && remote.mutex("import/all")?.is_locked());
    /// guard.release().await?;
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for an empty list, and for two different locks of one name at the same server, because
    /// one would wait for the other: those of two clients, the two sides of a read-write lock, and permits of one
    /// semaphore, which are taken together with a larger number. Also for a lock that is no client's, such as several that were
    /// joined before: list the locks that it consists of.
    pub fn of(
        locks: impl IntoIterator<Item = Arc<dyn DistributedLock>>,
    ) -> Result<Arc<dyn DistributedLock>, LockError> {
        let locks = in_order(locks.into_iter().collect())?;
        let names: Box<[_]> = locks.iter().map(|lock| lock.name().clone()).collect();
        Ok(Arc::new(Self(Arc::new(Joints::of(locks, &names, &Arc::default())?))))
    }
}

/// Sorts the locks, each of them once.
pub(super) fn in_order(
    mut locks: Vec<Arc<dyn DistributedLock>>,
) -> Result<Vec<Arc<dyn DistributedLock>>, LockError> {
    let invalid = || LockError::new(ErrorKind::InvalidOption, Operation::Configure);
    if locks.is_empty() {
        return Err(invalid().because("the list of locks is empty").remedy("name at least one lock"));
    }
    if let Some(joint) = locks.iter().find(|lock| lock.server().is_empty()) {
        return Err(invalid()
            .on(joint.name())
            .because("it is no lock of a client, and has no place in the order of the others")
            .remedy("list the locks that it consists of; a decorator passes `server` on"));
    }
    locks.sort_by(|one, other| key(&**one).cmp(&key(&**other)));
    locks.dedup_by(|one, other| is_same(&**one, &**other));
    match locks.windows(2).find(|pair| key(&*pair[0]) == key(&*pair[1])) {
        None => Ok(locks),
        Some(pair) => Err(invalid()
            .on(pair[0].name())
            .because("two different locks of the list have this name at the same server, and one may wait for the other")
            .remedy("list it once, in the mode and with the permits that are needed, from one client")),
    }
}

/// Where a lock comes in the order. A semaphore has nothing to do with the lock of its name.
fn key(lock: &dyn DistributedLock) -> (&LockName, LockKind, &str) {
    (lock.name(), lock.mode().kind(), lock.server())
}

/// Whether both are the same lock: the same object, or the same name of the same client. Permits add up, so those that are
/// listed twice are not the same.
fn is_same(one: &dyn DistributedLock, other: &dyn DistributedLock) -> bool {
    if one.mode() != other.mode() || one.mode().kind() == LockKind::Semaphore {
        return false;
    }
    let is_one_object = std::ptr::addr_eq(std::ptr::from_ref(one), std::ptr::from_ref(other));
    // Each client has its own copy of the address.
    let is_one_client = std::ptr::eq(one.server(), other.server());
    is_one_object || (is_one_client && one.name() == other.name())
}

#[async_trait]
impl DistributedLock for MultiLock {
    fn name(&self) -> &LockName {
        &self.0.name
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    async fn acquire_as(&self, owner: Owner, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let hold = self.0.acquire(owner, wait).await?;
        Ok(hold.map(|hold| LockGuard::new(Origin::Several(Arc::clone(&self.0)), owner, hold)))
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        self.0.release(owner, None).await
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

    fn busy(&self) -> LockError {
        self.0.busy()
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.publisher.add(Topic::Several(self.0.names.clone()), Reader::Listener(listener))
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MultiLock").field("name", &self.0.name).finish_non_exhaustive()
    }
}

impl Hold {
    /// Returns the holds of the locks that a [`MultiLock`] consists of; nothing for a hold of one lock.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex_all(["account/9", "account/7"])?.acquire().await?;
    /// let names: Vec<_> = guard.hold().parts().iter().map(|part| part.name().to_string()).collect();
    /// assert_eq!(names, ["account/7", "account/9"]);
    /// # Ok(()) });
    /// ```
    pub fn parts(&self) -> Vec<Self> {
        self.0.parts.to_vec()
    }

    /// Returns the fencing token of the lock called `name`: of this lock, or of one of those that a [`MultiLock`] consists
    /// of. `None` if the backend has no tokens, and for another name.
    ///
    /// ```
    /// # use lock_core::DistributedLock;
    /// # lock_memory::example(async |locks| {
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
