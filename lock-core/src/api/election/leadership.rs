//! Leading: from the election to the loss or the resignation.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use super::Election;
use crate::api::guard::LockGuard;
use crate::api::reentrant::ReentrantLock;
use crate::policy::hold::Hold;
use crate::spi::Updated;
#[cfg(doc)]
use crate::types::error::ErrorKind;
use crate::types::{FencingToken, LockError, LossReason, Operation};

/// The leadership of a candidate, until it resigns or loses it. Dropping it resigns in the background.
///
/// What a leader can ask and do is in [`Leading`], to which it dereferences.
#[must_use = "dropping the leadership resigns"]
#[derive(Debug)]
pub struct Leadership {
    pub(super) guard: LockGuard,
    leading: Leading,
}

impl Leadership {
    pub(super) fn new(election: Election, guard: LockGuard) -> Self {
        let leading = Leading { election, hold: guard.hold().clone(), changing: Arc::default() };
        Self { guard, leading }
    }

    /// Resigns: the next candidate leads. Resign only when the work of the leader has ended.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let first = election.campaign("a").await?;
    /// let term = first.term();
    /// first.resign().await?;
    /// assert!(election.campaign("b").await?.term() > term);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// Same as [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future resigns as well.
    pub async fn resign(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl Deref for Leadership {
    type Target = Leading;

    fn deref(&self) -> &Leading {
        &self.leading
    }
}

/// What a leader can ask and do. It is cheap to clone, and does not keep the leadership.
#[derive(Debug, Clone)]
pub struct Leading {
    election: Election,
    hold: Hold,
    /// The server gets one change of the value after the other.
    changing: Arc<tokio::sync::Mutex<()>>,
}

impl Leading {
    /// Returns the term, if the backend has fencing tokens: a number that rises from leader to leader. Send it with
    /// each write, so that a store can refuse those of an earlier leader.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let leadership = locks.election("scheduler")?.campaign("a").await?;
    /// assert!(leadership.is_leading() && leadership.term() == leadership.hold().token());
    /// # Ok(()) });
    /// ```
    pub fn term(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// Returns the hold of the election's lock.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let leadership = locks.election("scheduler")?.campaign("a").await?;
    /// assert_eq!(leadership.hold().name().as_str(), "scheduler");
    /// # Ok(()) });
    /// ```
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Returns whether it leads now, by the clock. [`Hold::is_valid`] says what that is worth.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let led = election.run(async |leading| {
    ///     let mut steps = 0;
    ///     while leading.is_leading() && steps < 3 {
    ///         steps += 1; // a step of the work
    ///     }
    ///     steps
    /// });
    /// assert_eq!(led.await?, 3);
    /// # Ok(()) });
    /// ```
    pub fn is_leading(&self) -> bool {
        self.hold.is_valid()
    }

    /// Waits until the leadership is lost, and returns the reason; `None` after a resignation.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let leadership = locks.election("scheduler")?.campaign("a").await?;
    /// tokio::select! {
    ///     Some(reason) = leadership.lost() => println!("stopped: {reason}"),
    ///     () = async { /* the work */ } => leadership.resign().await?,
    /// }
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again at any time.
    pub fn lost(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        self.hold.lost()
    }

    /// Replaces the value that the server shows of this leader.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let election = locks.election("scheduler")?;
    /// let leadership = election.campaign("starting").await?;
    /// leadership.proclaim("10.0.0.7:8080").await?;
    /// let leader = election.observe().await?.leader();
    /// assert_eq!(leader.and_then(|leader| leader.value).as_deref(), Some("10.0.0.7:8080"));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the leadership is lost, [`ErrorKind::NotOwner`] after a resignation;
    /// [`ErrorKind::InvalidOption`] for a value of more than 1024 bytes; [`ErrorKind::Unsupported`] on a backend that
    /// [cannot show it](crate::Capabilities::describing); any error of the server.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the server may or may not show the new value.
    pub async fn proclaim(&self, value: impl Into<String>) -> Result<(), LockError> {
        let info = self.election.info(value.into())?;
        let _one_at_a_time = self.changing.lock().await;
        let ReentrantLock { client, of_client, .. } = &self.election.lock;
        let Some(lease) = of_client.lease_of(&self.hold).filter(|_| self.hold.is_valid()) else {
            return Err(self.over());
        };
        let updated = client.on_engine(Operation::Describe, |context| async move {
            context.backend.update_holder(&lease, &info).await
        });
        if let Updated::Lost(reason) = updated.await.map_err(|error| error.on(of_client.name()))? {
            of_client.lose(self.hold.grant().lease, reason);
            return Err(self.over());
        }
        of_client.changed();
        Ok(())
    }

    fn over(&self) -> LockError {
        self.election.lock.of_client.about(self.hold.why_over(Operation::Describe))
    }
}
