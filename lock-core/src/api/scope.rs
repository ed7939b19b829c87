//! The owner that the calling code acts for, and scopes that release what they locked.

use std::future::Future;
use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::task;

use crate::api::guard::LockGuard;
use crate::policy::hold::Hold;
use crate::runtime::Mutex;
use crate::types::{ErrorKind, Kind, LockError, Operation, Owner};

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
        Scoped::new(self, None).run(future).await
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
        THREAD_IS_OWNER.sync_scope((), call)
    }
}

/// Returns the first owner for which `has_it`, from the innermost scope outwards, as far as the scopes reach.
pub(crate) fn owner_that(has_it: impl Fn(Owner) -> bool) -> Option<Owner> {
    for scope in scopes() {
        if has_it(scope.owner) {
            return Some(scope.owner);
        }
        if !scope.is_body {
            return None;
        }
    }
    outside_of_scopes().filter(|owner| has_it(*owner))
}

/// Returns the owner for which `lock` and `unlock` act: the current one, except in the body of a `with_lock`, where an
/// owner around it may have the lock.
pub(crate) fn acting_owner(has_it: impl Fn(Owner) -> bool) -> Result<Owner, LockError> {
    let in_a_body = SCOPE.try_with(|scope| scope.is_body).unwrap_or(false);
    if in_a_body && let Some(owner) = owner_that(has_it) {
        return Ok(owner);
    }
    Owner::current()
}

/// Returns the task, or the thread inside a runtime or [`Owner::as_thread`], that the calling code runs in, whatever its
/// scope.
pub(crate) fn outside_of_scopes() -> Option<Owner> {
    if let Some(id) = task::try_id() {
        return Some(Owner(Kind::Task(id)));
    }
    let is_owner = THREAD_IS_OWNER.try_with(|()| ()).is_ok() || Handle::try_current().is_ok();
    is_owner.then(|| Owner(Kind::Thread(thread::current().id())))
}

tokio::task_local! {
    /// There while the thread runs in [`Owner::as_thread`].
    static THREAD_IS_OWNER: ();

    static SCOPE: Arc<Scope>;
}

/// One run of [`Owner::scope`], or of the body of a `with_lock`.
struct Scope {
    owner: Owner,
    /// Whether code in it can also enter again what the owners around it hold, as in the body of a `with_lock`.
    is_body: bool,
    outer: Option<Arc<Scope>>,
    /// What was locked in it and not unlocked yet.
    guards: Mutex<Vec<LockGuard>>,
}

/// A scope at work. At its end it releases what was locked in it and not unlocked.
pub(crate) struct Scoped(Arc<Scope>);

impl Scoped {
    /// A scope, or that of a body that has entered through a guard. Unlike in [`Owner::scope`], what the owners around a body hold
    /// can be entered again inside it. The guard is an entry like those that the body makes: whichever of several bodies of one
    /// owner ends first, it gives back its own.
    pub(crate) fn new(owner: Owner, body: Option<LockGuard>) -> Self {
        let (is_body, outer) = (body.is_some(), SCOPE.try_with(Arc::clone).ok());
        Self(Arc::new(Scope { owner, is_body, outer, guards: Mutex::new(body.into_iter().collect()) }))
    }

    pub(crate) async fn run<F: Future>(&self, future: F) -> F::Output {
        SCOPE.scope(Arc::clone(&self.0), future).await
    }

    /// Ends the scope of a body. Returns its entry of `hold`, unless the body has unlocked more often than it locked.
    pub(crate) fn end(self, hold: &Hold) -> Option<LockGuard> {
        let mut guards = self.0.guards.lock();
        let own = guards.iter().position(|guard| guard.hold() == hold)?;
        Some(guards.remove(own))
    }
}

impl Drop for Scoped {
    fn drop(&mut self) {
        // Outside of the mutex. The last one first: a reader under its writer is not left alone with the lease.
        let guards = std::mem::take(&mut *self.0.guards.lock());
        guards.into_iter().rev().for_each(drop);
    }
}

/// Returns the scopes around the caller, from the innermost one outwards.
fn scopes() -> impl Iterator<Item = Arc<Scope>> {
    std::iter::successors(SCOPE.try_with(Arc::clone).ok(), |scope| scope.outer.clone())
}

/// Gives the innermost scope of the guard's owner the guard, which ends with it; returns the guard if there is none.
pub(crate) fn keep(guard: LockGuard) -> Option<LockGuard> {
    let Some(scope) = scopes().find(|scope| scope.owner == guard.owner()) else { return Some(guard) };
    scope.guards.lock().push(guard);
    None
}

/// An `unlock` ends the last entry of `owner` that `is_it`, so the end of a scope must not end it again.
pub(crate) fn forget(owner: Owner, is_it: impl Fn(&LockGuard) -> bool) {
    let guard = scopes().filter(|scope| scope.owner == owner).find_map(|scope| {
        let mut guards = scope.guards.lock();
        let last = guards.iter().rposition(&is_it)?;
        Some(guards.remove(last))
    });
    // Outside of the mutex: this may be the last reference to a lock of a user.
    if let Some(guard) = guard {
        guard.forget_entry();
    }
}
