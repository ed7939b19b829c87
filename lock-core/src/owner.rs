//! Who holds a lock.
//!
//! The Java face of a lock (`lock`, `try_lock`, `unlock`) is reentrant *by owner*. Threads are the wrong owners in
//! asynchronous code, so the owner is, in this order:
//!
//! 1. the scope that the code runs in, when someone made one with [`Owner::scope`];
//! 2. the current tokio task;
//! 3. the current thread, inside a runtime's `block_on`.
//!
//! Outside all three there is no owner, and the call answers [`ErrorKind::NoOwner`](crate::ErrorKind::NoOwner). Guards do
//! not need any of them: each [`LockGuard`](crate::LockGuard) is an owner of its own.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use tokio::runtime::Handle;
use tokio::task;

use crate::error::{ErrorKind, LockError, Operation};
use crate::front::Front;
use crate::hold::Hold;
use crate::sync::Mutex;

/// Who holds a lock: a task, a thread, or something explicit that is neither.
///
/// ```
/// use lock_core::{DistributedLock, LockClient, Owner, memory::MemoryServer};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let locks = MemoryServer::new().client()?;
/// let lock = locks.lock("orders/42")?;
///
/// // Two branches of one task are one owner, unless each has a scope of its own.
/// let (first, second) = tokio::join!(
///     Owner::new().scope(async { lock.try_lock().await }),
///     Owner::new().scope(async { lock.try_lock().await }),
/// );
/// assert_eq!((first?, second?), (true, true)); // one after the other: a scope releases at its end what it holds
/// # Ok::<(), lock_core::LockError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Task(task::Id),
    Thread(ThreadId),
    Explicit(u64),
}

static NEXT_EXPLICIT: AtomicU64 = AtomicU64::new(1);

impl Owner {
    /// A new owner, different from every other one of this process.
    #[allow(clippy::new_without_default)] // a default is expected to be equal to another default; owners never are
    pub fn new() -> Self {
        Self(Kind::Explicit(NEXT_EXPLICIT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The owner that the calling code acts for: its scope, else its task, else its thread.
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

    /// Runs `future` as this owner: `lock` and `unlock` inside it act for the owner, whatever task polls it.
    ///
    /// Entries made by `lock` inside the scope and not ended by `unlock` are released when the future completes or is
    /// dropped. Guards are not touched. Scopes nest; the innermost one counts.
    ///
    /// # Cancel safety
    /// Dropping the returned future drops `future` and releases what it still holds, in the background.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        let outer = SCOPE.try_with(Arc::clone).ok();
        let scope = Arc::new(Scope { owner: self, outer, entries: Mutex::new(HashMap::new()) });
        let _at_end = ReleaseAtEnd(Arc::clone(&scope));
        SCOPE.scope(scope, future).await
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Task(id) => write!(formatter, "Owner(task {id})"),
            Kind::Thread(id) => write!(formatter, "Owner({id:?})"),
            Kind::Explicit(number) => write!(formatter, "Owner({number})"),
        }
    }
}

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// What one run of [`Owner::scope`] has locked and not unlocked yet.
struct Scope {
    owner: Owner,
    outer: Option<Arc<Scope>>,
    entries: Mutex<HashMap<u64, Entries>>,
}

struct Entries {
    front: Arc<Front>,
    /// The hold that was entered: what comes after its loss is somebody else's to undo.
    hold: Hold,
    count: u64,
}

/// The Java face entered `front` for `owner`: if that is the current scope's owner, its end will undo it.
pub(crate) fn note_entry(owner: Owner, front: &Arc<Front>, hold: &Hold) {
    let _ = SCOPE.try_with(|scope| {
        if scope.owner == owner {
            let mut entries = scope.entries.lock();
            let fresh = || Entries { front: Arc::clone(front), hold: hold.clone(), count: 0 };
            let entry = entries.entry(front.id()).or_insert_with(fresh);
            if !Arc::ptr_eq(&entry.hold.0, &hold.0) {
                *entry = fresh();
            }
            entry.count += 1;
        }
    });
}

/// The Java face left `front` for `owner`: one entry less to undo, in the innermost scope that made one.
pub(crate) fn note_exit(owner: Owner, front: &Front) {
    let _ = SCOPE.try_with(|scope| {
        let mut next = Some(scope);
        while let Some(scope) = next {
            if scope.owner == owner && scope.forget_entry(front.id()) {
                return;
            }
            next = scope.outer.as_ref();
        }
    });
}

impl Scope {
    fn forget_entry(&self, front: u64) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&front) else {
            return false;
        };
        entry.count -= 1;
        if entry.count == 0 {
            entries.remove(&front);
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
                entry.front.leave_in_background(self.0.owner, &entry.hold);
            }
        }
    }
}
