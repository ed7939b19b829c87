//! A held lock, as its holder sees it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
#[cfg(unix)]
use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use super::state::Phase;
use super::{Hold, HoldGrant, UntilEnded};
use crate::spi::AcquireRequest;
use crate::types::{
    ErrorKind, FencingToken, HoldEnd, HolderId, LockError, LockKind, LockName, LossReason, Mode, Operation,
};

impl Hold {
    /// Returns the name of the lock.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(guard.hold().name().as_str(), "orders/42");
    /// # Ok(()) });
    /// ```
    pub fn name(&self) -> &LockName {
        self.0.home.about().name
    }

    /// Returns how the lock is held: exclusively, shared, or with this many permits.
    ///
    /// ```
    /// # use lock_core::Mode;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.rw_lock("catalog")?.read().acquire().await?;
    /// assert_eq!(guard.hold().mode(), Mode::Shared);
    /// # Ok(()) });
    /// ```
    pub fn mode(&self) -> Mode {
        self.grant().request.as_ref().map_or(Mode::Exclusive, AcquireRequest::mode)
    }

    /// Returns the fencing token, if the backend has fencing tokens; `None` for several locks that are held
    /// [together](crate::MultiLock), each of which [has its own](Hold::token_of).
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let token = guard.hold().token(); // goes with each write to what the lock protects
    /// assert!(token.is_some());
    /// # Ok(()) });
    /// ```
    pub fn token(&self) -> Option<FencingToken> {
        self.grant().token
    }

    /// Returns the fencing token, or an error if the backend has none, for code that must not write without one.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let token = guard.hold().require_token()?;
    /// assert!(token.get() > 0);
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    pub fn require_token(&self) -> Result<FencingToken, LockError> {
        self.token().ok_or_else(|| {
            if !self.0.parts.is_empty() {
                return LockError::new(ErrorKind::Unsupported, Operation::Acquire)
                    .on(self.name())
                    .because("several locks have a token each, and none together")
                    .remedy("use token_of with the name of the lock that the store's table belongs to");
            }
            let remedy = match self.mode().kind() {
                LockKind::Lock => {
                    "choose a backend, or an option of the backend, that gives out fencing tokens"
                }
                LockKind::Semaphore => "use a lock where a store checks fencing tokens",
            };
            LockError::new(ErrorKind::Unsupported, Operation::Acquire)
                .on(self.name())
                .of(self.mode().kind())
                .because("no fencing token came with the grant")
                .remedy(remedy)
        })
    }

    /// Returns the id of this acquisition, under which [`LockClient::status`](crate::LockClient::status) shows it and
    /// [`LockClient::break_holder`](crate::LockClient::break_holder) takes it away.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(locks.status("orders/42").await?.holders[0].id, guard.hold().id());
    /// # Ok(()) });
    /// ```
    pub fn id(&self) -> HolderId {
        match self.grant() {
            HoldGrant { holder: Some(id), .. } => id.clone(),
            HoldGrant { request: Some(request), .. } => HolderId::new(request.id().to_string()),
            // Without a server.
            _ => HolderId::new(self.0.number.to_string()),
        }
    }

    /// Returns whether the lock is held now, by the clock: it has been neither lost nor released, and its deadline has
    /// not passed.
    ///
    /// The process may be paused for any length of time between this answer and the next statement. Only the [fencing
    /// token](FencingToken) protects against that.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let hold = guard.hold().clone();
    /// assert!(hold.is_valid());
    /// guard.release().await?;
    /// assert!(!hold.is_valid());
    /// # Ok(()) });
    /// ```
    pub fn is_valid(&self) -> bool {
        self.remaining() != Some(Duration::ZERO)
    }

    /// Returns how long the hold stays valid if no further renewal succeeds: `None` when there is no lease, zero when
    /// the hold has ended.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert_eq!(guard.hold().remaining(), None); // memory: has no lease by default
    /// # Ok(()) });
    /// ```
    pub fn remaining(&self) -> Option<Duration> {
        let own = match self.0.state.remaining(|| self.now()) {
            u64::MAX => None,
            nanoseconds => Some(Duration::from_nanos(nanoseconds)),
        };
        self.0.parts.iter().filter_map(Self::remaining).chain(own).min()
    }

    /// Returns how long ago the last deadline of the hold passed, whatever has become of the hold; zero before the
    /// deadline, and when there is none.
    ///
    /// After a loss, this is how late the loss was noticed, for example because the process was stopped. The holder has
    /// that much less of the abort margin left to stop its work.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.hold().overdue().is_zero());
    /// # Ok(()) });
    /// ```
    pub fn overdue(&self) -> Duration {
        // Read the clock first: a renewal may move the deadline meanwhile.
        let now = self.now();
        let own = Duration::from_nanos(now.saturating_sub(self.0.state.last_deadline()));
        self.0.parts.iter().map(Self::overdue).fold(own, Duration::max)
    }

    /// Returns how long ago the lock was granted.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.hold().held_for() < Duration::from_secs(60));
    /// # Ok(()) });
    /// ```
    pub fn held_for(&self) -> Duration {
        self.0.home.about().clock.now().since(self.0.granted_at)
    }

    /// Returns how the hold ended, if it has.
    ///
    /// ```
    /// # use lock_core::HoldEnd;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let hold = guard.hold().clone();
    /// assert_eq!(hold.end(), None);
    /// guard.release().await?;
    /// assert_eq!(hold.end(), Some(HoldEnd::Released));
    /// # Ok(()) });
    /// ```
    pub fn end(&self) -> Option<HoldEnd> {
        if let Phase::Ended(end) = self.0.state.phase() { Some(end) } else { None }
    }

    /// Returns why the hold was lost, if it was.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.end().and_then(loss)
    }

    /// The error of a call for a hold that is over. If it still stands, its deadline has passed, and the loss is about to be
    /// reported.
    pub(crate) fn why_over(&self, operation: Operation) -> LockError {
        let reason = match self.0.state.phase() {
            Phase::Ended(HoldEnd::Lost(reason)) => reason,
            Phase::Standing => LossReason::Expired,
            Phase::Releasing | Phase::Ended(HoldEnd::Released) => {
                let error = LockError::new(ErrorKind::NotOwner, operation).on(self.name());
                return error
                    .because("it was released before")
                    .remedy("acquire the lock again, and use its new guard");
            }
        };
        LockError::lost(operation, self.name(), reason)
    }

    /// Waits until the hold is lost, and returns the reason. Returns `None` if the lock is released instead, so that a
    /// task that waits for the loss ends with the hold. In a `select!`, the pattern `Some(reason) = hold.lost()`
    /// ignores a release.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let lost = guard.hold().lost();
    /// guard.release().await?;
    /// assert_eq!(lost.await, None); // released
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped and the method called again at any time. It may also be polled again after it is done, as by a
    /// `select!` in a loop, and says the same then.
    pub fn lost(&self) -> impl Future<Output = Option<LossReason>> + Send + use<> {
        let mut ended = self.ended();
        poll_fn(move |context| Pin::new(&mut ended).poll(context).map(loss))
    }

    /// Waits until the hold has ended, by release or by loss.
    ///
    /// ```
    /// # use lock_core::HoldEnd;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let ended = guard.hold().ended();
    /// guard.release().await?;
    /// assert_eq!(ended.await, HoldEnd::Released);
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// Same as for [`lost`](Self::lost).
    pub fn ended(&self) -> impl Future<Output = HoldEnd> + Send + use<> {
        self.until_ended()
    }

    /// As [`ended`](Self::ended), with a type that can be kept.
    pub(crate) fn until_ended(&self) -> UntilEnded {
        UntilEnded { hold: self.clone(), watcher: None }
    }

    /// Returns a file descriptor that keeps the lock held for as long as any process has it open, if the backend works
    /// that way: a child that inherits it keeps the lock even when this process is killed. So a client with
    /// [`local_handoff`](crate::ClientBuilder::local_handoff) does not pass the lock on after this call, and an ended hold has
    /// no descriptor.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(guard.hold().descriptor().is_none()); // only the file backend has one
    /// # Ok(()) });
    /// ```
    #[cfg(unix)]
    pub fn descriptor(&self) -> Option<&Arc<std::os::fd::OwnedFd>> {
        let grant = self.grant();
        self.0.is_inherited.store(true, Ordering::SeqCst);
        // Other holds may follow on the same lease, and have the same descriptor.
        let may_be_followed = grant.request.as_ref().is_some_and(|request| request.sections().get() > 1);
        grant.descriptor.as_ref().filter(|_| !may_be_followed || self.is_standing())
    }
}

fn loss(end: HoldEnd) -> Option<LossReason> {
    if let HoldEnd::Lost(reason) = end { Some(reason) } else { None }
}
