//! The contending worker: acquires a lock over and over while a test disturbs the servers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{Hold, LockError, LockGuard};
use tokio::time::Instant;

use super::protocol::{Count, End, Report, Visit};
use super::serve::{Service, count_up, stamp};

/// How often a holder checks whether it still holds the lock.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The pause before a step that has failed is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// The commands that a contending worker has received since it began.
#[derive(Debug, Default)]
pub(super) struct Contest {
    rests: AtomicBool,
    clings: Mutex<Option<Duration>>,
}

impl Contest {
    pub(super) fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
    }

    pub(super) fn cling(&self, at_most: Duration) {
        *self.clings.lock() = Some(at_most);
    }
}

impl<T: Fn(Report) + Clone + Send + Sync + 'static> Service<T> {
    pub(super) async fn contend(self, name: String, file: PathBuf) {
        while !self.contest.rests.load(Ordering::SeqCst) {
            match self.compete(&name, &file).await {
                Ok(()) => {}
                Err(error) if error.is_retryable() => tokio::time::sleep(PAUSE).await,
                Err(error) => return self.answer(Err(error)),
            }
        }
        (self.tell)(Report::Rested);
    }

    async fn compete(&self, name: &str, file: &Path) -> Result<(), LockError> {
        let lock = self.client.mutex(name)?;
        let asked = stamp();
        let guard = lock.acquire().await?;
        let acquired = stamp();
        let token = guard.token().map(lock_core::FencingToken::get);
        let count = count_as_holder(guard.hold(), file).map_err(|error| broken(&error))?;
        let (ended, end) = self.believe(&guard, acquired).await;
        let visit = Visit { asked, acquired, ended: Some(ended), token };
        (self.tell)(Report::Visited { visit, count, end });
        match guard.release().await {
            Err(error) if error.loss().is_none() && !is_unsettled(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Holds the lock for as long as it was told to, and while the hold is valid. Returns when the hold was last valid,
    /// and why it ended.
    async fn believe(&self, guard: &LockGuard, acquired: u64) -> (u64, End) {
        let clings = self.contest.clings.lock().take();
        if clings.is_some() {
            (self.tell)(Report::Clings);
        }
        let until = Instant::now() + clings.unwrap_or(LOOK_EVERY);
        let mut believed = acquired;
        loop {
            let now = stamp();
            if !guard.hold().is_valid() {
                return (believed, End::Lost);
            }
            believed = now;
            if Instant::now() >= until {
                return (believed, End::LetGo);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Increments the number like a careful program that checks its hold before it writes.
fn count_as_holder(hold: &Hold, file: &Path) -> io::Result<Count> {
    if !hold.is_valid() {
        return Ok(Count::Not);
    }
    count_up(file)?;
    Ok(if hold.is_valid() { Count::Up } else { Count::Doubtful })
}

/// A release whose result is not known yet does not count as failed.
fn is_unsettled(error: &LockError) -> bool {
    error.is_retryable() || error.kind() == lock_core::ErrorKind::Unconfirmed
}

fn broken(error: &io::Error) -> LockError {
    LockError::new(lock_core::ErrorKind::Internal, lock_core::Operation::Acquire)
        .because(format!("the number cannot be counted up: {error}"))
}
