//! An acquisition in a task of its own.

use std::sync::Arc;
use std::time::Instant;

use crate::{Failure, Outcome};
use lock_core::{DistributedLock, LockClient, LockError, LockGuard};
use tokio::task::JoinHandle;

use super::wait::soon;

/// The lock of most cases.
pub const ROOM: &str = "room";

/// An acquisition in a task of its own, with the time of the grant. It continues when this is dropped.
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
    /// When the client is closed.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn of(client: &LockClient) -> Outcome<Self> {
        Ok(Self::start(client.mutex(ROOM)?))
    }

    /// Returns whether it has a result.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }

    /// Drops the acquisition.
    ///
    /// # Errors
    /// When it had a result before.
    ///
    /// # Cancel safety
    /// The acquisition is dropped anyway.
    pub async fn give_up(self) -> Outcome {
        self.0.abort();
        match self.0.await {
            Ok(answer) => Err(Failure::new(format!("answered before: {:?}", answer.map(drop)))),
            Err(_) => Ok(()),
        }
    }

    /// Waits until it is granted; returns the guard and the time of the grant.
    ///
    /// # Errors
    /// The reason of a refusal; or there is no result within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// The acquisition continues, and what it acquires is released immediately.
    pub async fn granted(self) -> Outcome<(LockGuard, Instant)> {
        Ok(soon("the grant", self.0).await???)
    }
}
