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

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use tokio::task;

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
pub struct Owner(pub(crate) Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
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
