//! Owners of locks.
//!
//! The methods `lock`, `try_lock` and `unlock` are reentrant *by owner*. A thread is the wrong owner in asynchronous
//! code, so the owner is the first of these that exists:
//!
//! 1. the scope that the code runs in, made with [`Owner::scope`];
//! 2. the current tokio task;
//! 3. the current thread, inside a runtime's `block_on`, or where [`Owner::as_thread`] says so.
//!
//! Outside all three there is no owner, and the call returns [`ErrorKind::NoOwner`](crate::ErrorKind::NoOwner). Guards
//! do not need any of them: each [`LockGuard`](crate::LockGuard) has an owner of its own.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use tokio::task;

/// The owner of a lock: a task, a thread, or an explicit owner that is neither.
///
/// ```
/// use lock_core::{DistributedLock, LockClient, Owner};
/// use lock_memory::MemoryServer;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let locks = MemoryServer::new().client()?;
/// let lock = locks.mutex("orders/42")?;
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
    /// Creates an owner that differs from every other owner of this process.
    #[allow(clippy::new_without_default, reason = "two owners are never equal")]
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
