//! An acquisition in a task of its own.

use std::sync::Arc;
use std::time::Instant;

use lock_core::{DistributedLock, DistributedLockExt, LockClient, LockError, LockGuard};
use tokio::task::JoinHandle;

use super::wait::soon;
use crate::failure::{Failure, Outcome};

/// The lock of most cases.
pub const ROOM: &str = "room";

/// An acquisition in a task of its own, and when it was granted. It goes on when this is dropped.
#[derive(Debug)]
pub struct Waiter(JoinHandle<Result<(LockGuard, Instant), LockError>>);

impl Waiter {
    /// Acquires the lock.
    ///
    /// # Panics
    /// Outside a runtime.
    #[must_use]
    pub fn start(lock: Arc<dyn DistributedLock>) -> Self {
        Self(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            Ok((guard, Instant::now()))
        }))
    }

    /// Acquires the [`ROOM`].
    ///
    /// # Errors
    /// The client is closed.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn of(client: &LockClient) -> Outcome<Self> {
        Ok(Self::start(client.lock(ROOM)?))
    }

    /// Whether it has an answer.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Drops the acquisition.
    ///
    /// # Errors
    /// It had been answered before.
    ///
    /// # Cancel safety
    /// The acquisition is dropped all the same.
    pub async fn give_up(self) -> Outcome {
        self.0.abort();
        match self.0.await {
            Ok(answer) => Err(Failure::new(format!("answered before: {:?}", answer.map(drop)))),
            Err(_) => Ok(()),
        }
    }

    /// Waits until it is granted: the guard, and when that was.
    ///
    /// # Errors
    /// Why it was refused; or it has not been answered within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// The acquisition goes on, and what it acquires is released at once.
    pub async fn granted(self) -> Outcome<(LockGuard, Instant)> {
        Ok(soon("the grant", self.0).await???)
    }
}
