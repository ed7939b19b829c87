//! Locks for programs without `async`: the same words and errors, and no runtime in your program.
//!
//! ```
//! # #[cfg(feature = "memory")]
//! # fn main() -> Result<(), distlock::LockError> {
//! use distlock::blocking;
//!
//! let locks = blocking::connect("memory:")?;
//! let guard = locks.mutex("orders/42")?.acquire()?; // blocks the thread until the lock is free
//! println!("the token to hand to the store: {:?}", guard.token());
//! guard.release()
//! # }
//! # #[cfg(not(feature = "memory"))]
//! # fn main() {}
//! ```
//!
//! The thread of the client does the I/O and the renewals, so a thread that works or sleeps under a lock keeps it.
//!
//! # A closure cannot be stopped
//! **[`with_lock`](DistributedLock::with_lock) lets its closure run to the end, also when the lock is lost meanwhile**, and
//! reports the loss afterwards. Asynchronous bodies are dropped at their next await; a closure has none. Check
//! [`Hold::is_valid`](crate::Hold::is_valid) between two steps, or add a [listener](DistributedLock::add_listener).
//!
//! # Owners
//! `lock`, `with_lock` and `unlock` act for the calling thread: it may lock again, and another thread waits. Inside
//! `spawn_blocking` they act for that blocking task, so that a later task on the same thread owns nothing. An asynchronous
//! call in a `block_on` of the same thread acts for the same owner. Each guard has an owner of its own.
//!
//! # Inside a runtime
//! Blocking a thread that runs asynchronous tasks stops all of them, perhaps also the one that would release the lock. So
//! every call that may block returns [`ErrorKind::WouldBlock`](crate::ErrorKind) on the worker threads of a
//! tokio runtime and in its `block_on`; nothing has been requested then. In `spawn_blocking` and `block_in_place` it works.
//! Not recognised are other runtimes, and `tokio::task::unconstrained` in the `block_on` of a runtime with several workers: there
//! it stops what the same `block_on` polls.
//!
//! # What only the asynchronous client has
//! [`Election::run`](crate::Election::run), because it stops its body at a loss; [`close_on`](crate::LockClient::close_on); and
//! the stream of [`events`](crate::LockClient::events), in place of which there are
//! [listeners](LockClient::add_listener). [`as_async`](LockClient::as_async) returns that client.

mod client;
mod election;
mod guard;
mod lock;
mod once;
mod sharing;
mod wait;

pub use client::LockClient;
pub use election::{Election, LeaderWatch, Leadership};
pub use guard::LockGuard;
pub use lock::DistributedLock;
pub use once::Once;
pub use sharing::{RwLock, Semaphore};

use crate::connection::{EngineChoice, LockUrl};
use crate::{ClientBuilder, ErrorKind, LockError, Operation};

/// Connects to the backend that `url` names, with the default settings; see [`connect_with`].
///
/// ```
/// # #[cfg(feature = "memory")] {
/// let locks = distlock::blocking::connect("memory:")?;
/// let guard = locks.mutex("orders/42")?.acquire()?;
/// # }
/// # Ok::<(), distlock::LockError>(())
/// ```
///
/// # Errors
/// Same as [`connect_with`].
pub fn connect(url: impl AsRef<str>) -> Result<LockClient, LockError> {
    connect_with(url, ClientBuilder::new())
}

/// Connects to the backend that `url` names. Options in the URL override those of the builder. The client always has a
/// thread of its own, whatever engine the builder has.
///
/// ```
/// # #[cfg(feature = "memory")] {
/// use distlock::{ClientBuilder, blocking};
/// use std::time::Duration;
///
/// let builder = ClientBuilder::new().abort_margin(Duration::from_secs(1));
/// let locks = blocking::connect_with("memory:?lease=30s", builder)?;
/// # }
/// # Ok::<(), distlock::LockError>(())
/// ```
///
/// # Errors
/// Same as [`distlock::connect_with`](crate::connect_with); [`ErrorKind::InvalidOption`] for `engine=caller`;
/// [`ErrorKind::WouldBlock`] on a thread that runs asynchronous tasks.
pub fn connect_with(url: impl AsRef<str>, builder: ClientBuilder) -> Result<LockClient, LockError> {
    let url = url.as_ref();
    if LockUrl::parse(url)?.options().take("engine").as_deref() == Some("caller") {
        return Err(LockError::new(ErrorKind::InvalidOption, Operation::Configure)
            .because("a blocking client needs a thread of its own, and the URL has engine=caller")
            .remedy("leave the option engine out"));
    }
    let connecting = crate::connect_with(url, builder.engine(EngineChoice::Own));
    wait::for_result(Operation::Connect, connecting).map(LockClient::from)
}
