//! The owner that the calling code acts for, and scopes that release what they locked.

use std::cell::Cell;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::task;

use crate::api::guard_origin::GuardOrigin;
use crate::api::hold::Hold;
use crate::runtime::sync::Mutex;
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::mode::Mode;
use crate::types::owner::{Kind, Owner};

impl Owner {
    /// Returns the owner that the calling code acts for: its scope, else its task, else its thread.
    ///
    /// ```
    /// # use lock_core::Owner;
    /// # lock_memory::example(async |_| {
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
        outside_of_scopes().ok_or_else(|| {
            LockError::new(ErrorKind::NoOwner, Operation::Acquire)
                .because("the call came from outside a tokio runtime")
                .remedy(
                    "use acquire(), whose guard is its own owner, or run the call in Owner::new().scope(…)",
                )
        })
    }

    /// Runs `future` as this owner: `lock` and `unlock` inside it act for the owner, whichever task polls it.
    ///
    /// Entries that `lock` made inside the scope and that no `unlock` ended are released when the future completes or
    /// is dropped. Guards are not affected. Scopes can be nested; the innermost one counts.
    ///
    /// ```
    /// # use lock_core::Owner;
    /// # lock_memory::example(async |locks| {
    /// let lock = locks.mutex("orders/42")?;
    /// Owner::new().scope(async { lock.lock().await }).await?;
    /// assert!(!lock.is_locked()); // the scope has released it
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the returned future drops `future` and releases what it still holds, in the background.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        run(self, Reach::OwnerOnly, future).await
    }

    /// Calls `call` with the calling thread as the owner that it acts for where there is neither a scope nor a task, also
    /// outside a runtime. For code that polls futures on a thread which it blocks meanwhile: only then is the thread an
    /// owner.
    ///
    /// ```
    /// # use lock_core::Owner;
    /// assert!(Owner::current().is_err());
    /// let owner = Owner::as_thread(Owner::current)?;
    /// assert_eq!(owner, Owner::as_thread(Owner::current)?);
    /// assert!(Owner::current().is_err());
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    pub fn as_thread<T>(call: impl FnOnce() -> T) -> T {
        let _before = Before(THREAD_IS_OWNER.replace(true));
        call()
    }

    /// Records that an entry of this owner into `hold` has ended, so that the end of a [scope](Owner::scope) does not
    /// end it again.
    pub(crate) fn left(self, hold: &Hold) {
        forget_entry(self, |entries| {
            entries.iter().find(|(_, entry)| Arc::ptr_eq(&entry.hold.0, &hold.0)).map(|(lock, _)| *lock)
        });
    }
}

/// Runs the body of a `with_lock` as `owner`. Unlike in [`Owner::scope`], what the owners around the body hold can be
/// entered again inside it.
pub(crate) async fn body_of<F: Future>(owner: Owner, body: F) -> F::Output {
    run(owner, Reach::OwnersAround, body).await
}

async fn run<F: Future>(owner: Owner, reach: Reach, future: F) -> F::Output {
    let outer = SCOPE.try_with(Arc::clone).ok();
    let scope = Arc::new(Scope { owner, reach, outer, entries: Mutex::new(HashMap::new()) });
    let _at_end = ReleaseAtEnd(Arc::clone(&scope));
    SCOPE.scope(scope, future).await
}

/// Returns the first owner for which `has_it`, from the innermost scope outwards, as far as the scopes reach.
pub(crate) fn owner_that(has_it: impl Fn(Owner) -> bool) -> Option<Owner> {
    let Ok(innermost) = SCOPE.try_with(Arc::clone) else {
        return Owner::current().ok().filter(|owner| has_it(*owner));
    };
    let mut next = Some(&innermost);
    while let Some(scope) = next {
        if has_it(scope.owner) {
            return Some(scope.owner);
        }
        if scope.reach == Reach::OwnerOnly {
            return None;
        }
        next = scope.outer.as_ref();
    }
    outside_of_scopes().filter(|owner| has_it(*owner))
}

/// Returns the owner for which `lock` and `unlock` act: the current one, except in the body of a `with_lock`, where an
/// owner around it may have the lock.
pub(crate) fn acting_owner(has_it: impl Fn(Owner) -> bool) -> Result<Owner, LockError> {
    let in_a_body = SCOPE.try_with(|scope| scope.reach == Reach::OwnersAround).unwrap_or(false);
    if in_a_body && let Some(owner) = owner_that(has_it) {
        return Ok(owner);
    }
    Owner::current()
}

/// Returns whether code here can enter again what `owner` holds.
pub(crate) fn reaches(owner: Owner) -> bool {
    owner_that(|around| around == owner).is_some()
}

/// Returns the task, or the thread inside a runtime or [`Owner::as_thread`], that the calling code runs in, whatever its
/// scope.
pub(crate) fn outside_of_scopes() -> Option<Owner> {
    if let Some(id) = task::try_id() {
        return Some(Owner(Kind::Task(id)));
    }
    let is_owner = THREAD_IS_OWNER.get() || Handle::try_current().is_ok();
    is_owner.then(|| Owner(Kind::Thread(thread::current().id())))
}

thread_local! {
    /// Whether the thread runs in [`Owner::as_thread`].
    static THREAD_IS_OWNER: Cell<bool> = const { Cell::new(false) };
}

/// Restores what was before, also after a panic.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        THREAD_IS_OWNER.set(self.0);
    }
}

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// The number of a lock, and the mode that it is locked in.
type Locked = (usize, Mode);

/// What one run of [`Owner::scope`] has locked and not unlocked yet.
struct Scope {
    owner: Owner,
    reach: Reach,
    outer: Option<Arc<Scope>>,
    entries: Mutex<HashMap<Locked, Entries>>,
}

/// Which holds code in a scope can enter again.
#[derive(PartialEq)]
enum Reach {
    /// Those of the scope's owner.
    OwnerOnly,
    /// Also those of the owners around the scope.
    OwnersAround,
}

struct Entries {
    lock: GuardOrigin,
    /// The hold that was entered. The scope does not undo entries into a later hold, made after the loss of this one.
    hold: Hold,
    count: u64,
}

/// Records that `lock` entered for `owner`: if that is the owner of a scope around the caller, the end of the scope
/// undoes it.
pub(crate) fn note_entry(owner: Owner, lock: &GuardOrigin, hold: &Hold) {
    in_scopes(|scope| scope.owner == owner && scope.note_entry(lock, hold));
}

/// Records that `unlock` left `lock` for `owner`.
pub(crate) fn note_exit(owner: Owner, lock: Locked) {
    forget_entry(owner, |entries| entries.contains_key(&lock).then_some(lock));
}

/// One entry less to undo, in the innermost scope of `owner` that made one.
fn forget_entry(owner: Owner, find: impl Fn(&HashMap<Locked, Entries>) -> Option<Locked>) {
    in_scopes(|scope| scope.owner == owner && scope.forget_entry(&find));
}

/// Calls `done` with each scope around the caller, from the innermost one outwards, until it returns true.
fn in_scopes(done: impl Fn(&Scope) -> bool) {
    let _ = SCOPE.try_with(|innermost| {
        let mut next = Some(innermost);
        while let Some(scope) = next.filter(|scope| !done(scope)) {
            next = scope.outer.as_ref();
        }
    });
}

impl Scope {
    fn note_entry(&self, lock: &GuardOrigin, hold: &Hold) -> bool {
        let mut entries = self.entries.lock();
        let fresh = || Entries { lock: lock.clone(), hold: hold.clone(), count: 0 };
        let entry = entries.entry((lock.id(), hold.mode())).or_insert_with(fresh);
        let of_a_lost_hold =
            (!Arc::ptr_eq(&entry.hold.0, &hold.0)).then(|| std::mem::replace(entry, fresh()));
        entry.count += 1;
        // Outside of the mutex: this may be the last reference to a lock of a user.
        drop(entries);
        drop(of_a_lost_hold);
        true
    }

    fn forget_entry(&self, find: impl Fn(&HashMap<Locked, Entries>) -> Option<Locked>) -> bool {
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
