//! The owner that the calling code acts for, and scopes that release what they locked.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::task;

use crate::api::granter::{Granter, id_of};
use crate::api::hold::Hold;
use crate::runtime::sync::Mutex;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::owner::{Kind, Owner};

impl Owner {
    /// Returns the owner that the calling code acts for: its scope, else its task, else its thread.
    ///
    /// ```
    /// # use lock_core::Owner;
    /// # lock_core::example(async |_| {
    /// assert_eq!(Owner::current()?, Owner::current()?); // the same task
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NoOwner`] outside a scope, a task and a runtime's `block_on`.
    pub fn current() -> Result<Self, LockError> {
        if let Ok(scope) = SCOPE.try_with(|scope| scope.owner) {
            return Ok(scope);
        }
        if let Some(id) = task::try_id() {
            return Ok(Self(Kind::Task(id)));
        }
        if Handle::try_current().is_ok() {
            return Ok(Self(Kind::Thread(thread::current().id())));
        }
        Err(LockError::new(ErrorKind::NoOwner, Operation::Acquire)
            .because("the call came from outside a tokio runtime")
            .remedy("use acquire(), whose guard is its own owner, or run the call in Owner::new().scope(…)"))
    }

    /// Runs `future` as this owner: `lock` and `unlock` inside it act for the owner, whichever task polls it.
    ///
    /// Entries that `lock` made inside the scope and that no `unlock` ended are released when the future completes or
    /// is dropped. Guards are not affected. Scopes can be nested; the innermost one counts.
    ///
    /// ```
    /// # use lock_core::Owner;
    /// # lock_core::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// Owner::new().scope(async { lock.lock().await }).await?;
    /// assert!(!lock.is_locked()); // the scope has released it
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the returned future drops `future` and releases what it still holds, in the background.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        let outer = SCOPE.try_with(Arc::clone).ok();
        let scope = Arc::new(Scope { owner: self, outer, entries: Mutex::new(HashMap::new()) });
        let _at_end = ReleaseAtEnd(Arc::clone(&scope));
        SCOPE.scope(scope, future).await
    }

    /// Records that an entry of this owner into `hold` has ended, so that the end of a [scope](Owner::scope) does not
    /// end it again. [`DistributedLock::release_as`](crate::DistributedLock::release_as) calls this in a lock that
    /// makes its own holds. A decorator, which calls `release_as` of another lock, does not.
    pub fn left(self, hold: &Hold) {
        forget_entry(self, |entries| {
            entries.iter().find(|(_, entry)| Arc::ptr_eq(&entry.hold.0, &hold.0)).map(|(lock, _)| *lock)
        });
    }
}

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// What one run of [`Owner::scope`] has locked and not unlocked yet.
struct Scope {
    owner: Owner,
    outer: Option<Arc<Scope>>,
    entries: Mutex<HashMap<usize, Entries>>,
}

struct Entries {
    lock: Granter,
    /// The hold that was entered. The scope does not undo entries into a later hold, made after the loss of this one.
    hold: Hold,
    count: u64,
}

/// Records that `lock` entered for `owner`: if that is the owner of the current scope, the end of the scope undoes it.
pub(crate) fn note_entry(owner: Owner, lock: &Granter, hold: &Hold) {
    let _ = SCOPE.try_with(|scope| {
        if scope.owner == owner {
            let mut entries = scope.entries.lock();
            let fresh = || Entries { lock: lock.clone(), hold: hold.clone(), count: 0 };
            let entry = entries.entry(lock.id()).or_insert_with(fresh);
            if !Arc::ptr_eq(&entry.hold.0, &hold.0) {
                *entry = fresh();
            }
            entry.count += 1;
        }
    });
}

/// Records that `unlock` left `lock` for `owner`.
pub(crate) fn note_exit<T>(owner: Owner, lock: &Arc<T>) {
    let id = id_of(lock);
    forget_entry(owner, |entries| entries.contains_key(&id).then_some(id));
}

/// One entry less to undo, in the innermost scope of `owner` that made one.
fn forget_entry(owner: Owner, find: impl Fn(&HashMap<usize, Entries>) -> Option<usize>) {
    let _ = SCOPE.try_with(|scope| {
        let mut next = Some(scope);
        while let Some(scope) = next {
            if scope.owner == owner && scope.forget_entry(&find) {
                return;
            }
            next = scope.outer.as_ref();
        }
    });
}

impl Scope {
    fn forget_entry(&self, find: impl Fn(&HashMap<usize, Entries>) -> Option<usize>) -> bool {
        let mut entries = self.entries.lock();
        let Some(lock) = find(&entries) else { return false };
        let Some(entry) = entries.get_mut(&lock) else { return false };
        entry.count -= 1;
        if entry.count == 0 {
            // Outside of the mutex: this may be the last reference to a lock of a user.
            let last = entries.remove(&lock);
            drop(entries);
            drop(last);
        }
        true
    }
}

struct ReleaseAtEnd(Arc<Scope>);

impl Drop for ReleaseAtEnd {
    fn drop(&mut self) {
        let entries = std::mem::take(&mut *self.0.entries.lock());
        for entry in entries.into_values() {
            for _ in 0..entry.count {
                entry.lock.release_in_background(self.0.owner, &entry.hold);
            }
        }
    }
}
