//! A body that runs wherever the leader is.

use std::future::Future;
use std::time::Duration;

use super::{Election, Leadership, Leading};
use crate::runtime::log::log;
use crate::runtime::race;
use crate::spi::Backoff;
use crate::types::{ErrorKind, LockError};

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Election {
    /// Campaigns, runs `body` while this candidate leads, and resigns when it returns. When the leadership is lost, the
    /// body is dropped at its next await, and after a pause the candidate campaigns again. So the body must not leave
    /// work behind: **tasks that it spawns are not stopped** unless they end with it, as those of a `JoinSet` do.
    ///
    /// A candidate that never leads never calls the body. Set its value with [`Election::with_value`].
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?.with_value("10.0.0.7:8080");
    /// let term = election.run(async |leading| leading.term()).await?;
    /// assert!(term.is_some());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the body has returned and the resignation finds that the leadership had been lost: what
    /// the body did may not have been exclusive. Otherwise same as [`Election::campaign`], except what may succeed later.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body, and then resigns in the background.
    pub async fn run<T, F: Future<Output = T>>(
        &self,
        mut body: impl FnMut(Leading) -> F,
    ) -> Result<T, LockError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match self.campaign(self.value.clone()).await {
                Ok(leadership) => {
                    let led = body(Leading::clone(&leadership));
                    if let Err(output) = race(leadership.hold().ended(), led).await {
                        return self.resigned(leadership, output).await;
                    }
                    // The body was dropped, and not what it has started.
                    leadership.guard.keep_margin();
                    if leadership.hold().held_for() > LONGEST_PAUSE {
                        backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
                    }
                }
                Err(error) if error.is_retryable() || error.kind() == ErrorKind::Lost => {}
                Err(error) => return Err(error),
            }
            let clock = self.lock.of_client.clock();
            clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
        }
    }

    async fn resigned<T>(&self, leadership: Leadership, output: T) -> Result<T, LockError> {
        match leadership.resign().await {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            Err(error) => {
                log!(warn, lock = %self.name(), %error,
                    "the resignation is repeated in the background"
                );
                Ok(output)
            }
            Ok(()) => Ok(output),
        }
    }
}
