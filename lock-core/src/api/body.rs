//! Runs a body under a lock.

use std::future::{Future, pending};
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::lock::{DistributedLock, endless_wait_ended};
use crate::api::scope::{self, Scoped};
use crate::policy::hold::Hold;
use crate::runtime::log::log;
use crate::runtime::race;
use crate::spi::Wait;
use crate::types::{ErrorKind, LockError, LossReason, Operation, Owner};

/// Bodies under a lock. An implementation of [`DistributedLock`] that is not behind an `Arc<dyn DistributedLock>` has
/// these methods as `&dyn DistributedLock`.
impl dyn DistributedLock + '_ {
    /// Runs `body` under the lock, and then releases the lock.
    ///
    /// The body returns a `Result` with an error of your own that a [`LockError`] converts into, and that is what this
    /// method returns: one `?` is enough. A body that cannot fail ends with `Ok::<_, LockError>(…)`.
    ///
    /// * **If the lock is lost while the body runs, the body is dropped at its next await**, and the result is
    ///   [`ErrorKind::Lost`]. What the body has spawned is not stopped, and has the abort margin to end.
    ///   [`LockOptions`](crate::LockOptions::finish_body_on_loss) can let it finish instead.
    /// * If the caller holds the lock already, through `lock` or as the body of another `with_lock`, the body enters
    ///   again without waiting. The same is true for `lock` inside the body. **A guard does not count**: its owner is
    ///   the guard itself, so a task that calls `with_lock` while it keeps a guard waits for itself.
    /// * If the server does not answer the release, the result of the body is returned all the same, with a warning in
    ///   the log: the lock was held until then.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// let orders = locks.mutex("orders/42")?;
    /// let total = orders
    ///     .with_lock(async |hold| {
    ///         assert!(hold.is_valid());
    ///         Ok::<_, LockError>(40 + 2)
    ///     })
    ///     .await?;
    /// assert_eq!(total, 42);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Before the body runs, same as [`DistributedLock::acquire`]. Then the error of the body. Two errors say that the
    /// body may not have been exclusive, and replace its result: [`ErrorKind::Lost`], and [`ErrorKind::NotOwner`] when
    /// the body unlocked more often than it locked.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn with_lock<T, E, F>(&self, body: impl FnOnce(Hold) -> F) -> Result<T, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self.acquire_for_a_body(Wait::Forever).await?;
        self.run(guard.ok_or_else(|| endless_wait_ended(self.name()))?, body).await
    }

    /// Like [`with_lock`](#method.with_lock), but waits at most `duration` for the lock. The body never runs without
    /// the lock.
    ///
    /// ```
    /// # use lock_core::{ErrorKind, LockError};
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let orders = locks.mutex("orders/42")?;
    /// let _held = orders.acquire().await?;
    /// let body = async |_| Ok::<_, LockError>(());
    /// let error = orders.with_lock_for(Duration::from_millis(10), body).await.unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Busy);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when another owner holds the lock all that time, and the same as for `with_lock`.
    ///
    /// # Cancel safety
    /// Same as for `with_lock`.
    pub async fn with_lock_for<T, E, F>(
        &self,
        duration: Duration,
        body: impl FnOnce(Hold) -> F,
    ) -> Result<T, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self.acquire_for_a_body(Wait::within(duration, self.clock().now())).await?;
        self.run(guard.ok_or_else(|| self.busy())?, body).await
    }

    /// Like [`with_lock`](#method.with_lock), without waiting: returns `None`, and does not run the body, when another
    /// owner holds the lock.
    ///
    /// ```
    /// # use lock_core::LockError;
    /// # lock_memory::example(async |locks| {
    /// let orders = locks.mutex("orders/42")?;
    /// let _held = orders.acquire().await?;
    /// assert_eq!(orders.try_with_lock(async |_| Ok::<_, LockError>(42)).await?, None);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as for `with_lock`.
    ///
    /// # Cancel safety
    /// Same as for `with_lock`.
    pub async fn try_with_lock<T, E, F>(&self, body: impl FnOnce(Hold) -> F) -> Result<Option<T>, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        match self.acquire_for_a_body(Wait::Try).await? {
            Some(guard) => self.run(guard, body).await.map(Some),
            None => Ok(None),
        }
    }

    /// Enters again as the owner around the caller that has the lock already, or as a new one.
    async fn acquire_for_a_body(&self, wait: Wait) -> Result<Option<LockGuard>, LockError> {
        let owner = scope::owner_that(|owner| self.has_entered(owner)).unwrap_or_else(Owner::new);
        self.acquire_as(owner, wait).await
    }

    async fn run<T, E, F>(&self, guard: LockGuard, body: impl FnOnce(Hold) -> F) -> Result<T, E>
    where
        E: From<LockError>,
        F: Future<Output = Result<T, E>>,
    {
        let hold = guard.hold().clone();
        let scope = Scoped::new(guard.owner(), Some(guard));
        // In a box, so that the future stays small however deep bodies are nested.
        let body = scope.run(Box::pin(body(hold.clone())));
        // The loss comes first: the outcome of a body that completes after it would be discarded.
        let outcome = if hold.finishes_body() { Err(body.await) } else { race(loss_of(&hold), body).await };
        let released = match (scope.end(&hold), hold.loss()) {
            (Some(guard), _) => {
                // The body was dropped, and not what it has started.
                if outcome.is_ok() {
                    guard.keep_margin();
                }
                guard.release().await
            }
            (None, Some(reason)) => Err(self.lost(reason)),
            (None, None) => Err(unlocked_inside(self)),
        };
        match (outcome, released) {
            (Ok(reason), Ok(())) => Err(self.lost(reason).into()),
            (Ok(_), Err(error)) => Err(error.into()),
            (Err(_), Err(error)) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotOwner) => {
                Err(error.into())
            }
            (Err(result), Err(error)) => {
                log!(warn, lock = %self.name(), %error,
                    "the release after a body is repeated in the background"
                );
                result
            }
            (Err(result), Ok(())) => result,
        }
    }

    fn lost(&self, reason: LossReason) -> LockError {
        LockError::lost(Operation::Hold, self.name(), reason).of(self.mode().kind())
    }
}

fn unlocked_inside(lock: &(dyn DistributedLock + '_)) -> LockError {
    LockError::new(ErrorKind::NotOwner, Operation::Release)
        .on(lock.name())
        .of(lock.mode().kind())
        .because("the body unlocked more often than it locked")
        .remedy("unlock in the body only what it locked itself")
}

/// Waits for the loss of a hold. If the body unlocks too often, it goes on, and the caller finds out at its end.
async fn loss_of(hold: &Hold) -> LossReason {
    match hold.lost().await {
        Some(reason) => reason,
        None => pending().await,
    }
}
