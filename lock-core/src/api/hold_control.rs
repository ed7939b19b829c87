//! Holds of locks that are not a client's: fakes in tests, and locks built of other locks.

use std::sync::Arc;

use crate::api::hold::Hold;
use crate::policy::hold::detached::detached;
use crate::runtime::clock::Clock;
use crate::types::loss::LossReason;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// The other side of a [`Hold`] that its creator ends, for an implementation of
/// [`DistributedLock`](crate::DistributedLock) that is not a client's lock: a fake in a test, or a lock built of other
/// locks. Such a hold has no lease.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use lock_core::{Clock, HoldControl, LockName, LossReason};
///
/// let control = HoldControl::new(LockName::new("orders/42")?, None, Clock::system());
/// let hold = control.hold();
/// assert!(hold.is_valid());
/// control.lose(LossReason::Broken);
/// assert_eq!(hold.lost().await, Some(LossReason::Broken));
/// # Ok::<(), lock_core::LockError>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct HoldControl(Hold);

impl HoldControl {
    /// Creates a hold of the lock called `name`, which stands until the control ends it.
    pub fn new(name: LockName, token: Option<FencingToken>, clock: Clock) -> Self {
        Self(Hold(detached(name, token, clock)))
    }

    /// Returns the hold.
    pub fn hold(&self) -> Hold {
        self.0.clone()
    }

    /// Declares the hold lost. Does nothing if it has ended.
    pub fn lose(&self, reason: LossReason) {
        self.0.0.declare_lost(reason);
    }

    /// Ends the hold by a release.
    ///
    /// ```
    /// use lock_core::{Clock, HoldControl, HoldEnd, LockName};
    ///
    /// let control = HoldControl::new(LockName::new("orders/42")?, None, Clock::system());
    /// assert_eq!(control.release(), Ok(()));
    /// assert_eq!(control.hold().end(), Some(HoldEnd::Released));
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    ///
    /// # Errors
    /// The reason, if the hold has been lost.
    pub fn release(&self) -> Result<(), LossReason> {
        let hold: &Arc<_> = &self.0.0;
        hold.release_here()
    }
}
