//! Holds of locks that are not a client's: fakes in tests, and locks built of other locks.

use std::sync::Arc;

use crate::api::hold::Hold;
use crate::api::part_loss::PartLossWatch;
use crate::api::publisher::Listeners;
use crate::policy::hold::detached::{Detached, detached};
use crate::policy::local::Occupant;
use crate::runtime::clock::Clock;
use crate::types::loss::LossReason;
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// The other side of a [`Hold`] that its creator ends, for an implementation of
/// [`DistributedLock`](crate::DistributedLock) that is not a client's lock: a fake in a test, or a lock built of other
/// locks. Such a hold has no lease of its own.
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
pub struct HoldControl {
    hold: Hold,
    /// They end with the last clone.
    _parts: Arc<[PartLossWatch]>,
}

impl HoldControl {
    /// Creates a hold of the lock called `name`, which stands until the control ends it.
    pub fn new(name: LockName, token: Option<FencingToken>, clock: Clock) -> Self {
        let parts = Box::default();
        Self { hold: Hold(detached(Detached { name, token, clock, parts })), _parts: Arc::default() }
    }

    /// Creates the hold of a lock that consists of other locks, whose holds are `parts`. It is valid only while all of
    /// them are, and it is lost when one of them is, for the same reason. The watch for that ends with the last clone
    /// of the control.
    ///
    /// ```
    /// # lock_core::example(async |locks| {
    /// use lock_core::{DistributedLock, HoldControl, LockName};
    ///
    /// let lock = locks.mutex("account/7")?;
    /// let (one, other) = (lock.acquire().await?, locks.mutex("account/9")?.acquire().await?);
    /// let parts = [one.hold().clone(), other.hold().clone()];
    /// let both = HoldControl::of_parts(LockName::new("both")?, lock.clock().clone(), &parts).hold();
    /// assert!(both.is_valid());
    /// one.release().await?;
    /// assert!(!both.is_valid());
    /// # Ok(()) });
    /// ```
    pub fn of_parts(name: LockName, clock: Clock, parts: &[Hold]) -> Self {
        let cores = parts.iter().map(|part| Arc::clone(&part.0)).collect();
        let hold = Hold(detached(Detached { name, token: None, clock, parts: cores }));
        let watches = parts.iter().map(|part| PartLossWatch::begin(part, &hold)).collect();
        Self { hold, _parts: watches }
    }

    /// Reports the events of the hold to these listeners, from [`HoldControl::report_acquired`] on.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use lock_core::{Clock, Hold, HoldControl, Listeners, LockName, LossReason};
    ///
    /// let (name, listeners) = (LockName::new("orders/42")?, Listeners::new());
    /// let (sender, losses) = std::sync::mpsc::channel();
    /// let listener = move |_: &Hold, reason: &LossReason| sender.send(*reason).unwrap();
    /// let subscription = listeners.add(&name, Arc::new(listener)); // what `add_listener` of the lock returns
    ///
    /// let control = HoldControl::new(name, None, Clock::system()).report_to(&listeners);
    /// control.report_acquired();
    /// control.lose(LossReason::Broken);
    /// assert_eq!(losses.recv(), Ok(LossReason::Broken));
    /// # Ok::<(), lock_core::LockError>(())
    /// ```
    #[must_use]
    pub fn report_to(self, listeners: &Listeners) -> Self {
        self.hold.0.observe_with(&listeners.observer());
        self
    }

    /// Reports that the owner has received the hold. Events before that are reported now, a loss at the latest.
    pub fn report_acquired(&self) {
        self.hold.0.report_acquired();
    }

    /// Returns the hold.
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// Declares the hold lost. Does nothing if it has ended or its release has begun.
    pub fn lose(&self, reason: LossReason) {
        self.hold.0.declare_lost(reason);
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
        self.begin_release()?;
        self.finish_release(None);
        Ok(())
    }

    /// Begins a release that takes time, such as a request to a server. From here on the hold is not valid, and only
    /// [`HoldControl::finish_release`] ends it.
    ///
    /// ```
    /// # lock_core::example(async |locks| {
    /// use lock_core::{Clock, HoldControl, HoldEnd, LockName};
    ///
    /// let control = HoldControl::new(LockName::new("orders/42")?, None, Clock::system());
    /// assert_eq!(control.begin_release(), Ok(()));
    /// assert!(!control.hold().is_valid()); // while the request is on its way
    /// control.finish_release(None); // the server has confirmed it
    /// assert_eq!(control.hold().end(), Some(HoldEnd::Released));
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// The reason, if the hold has been lost.
    pub fn begin_release(&self) -> Result<(), LossReason> {
        self.hold.0.begin_release()
    }

    /// Ends a release that was begun: the hold was released, or turns out to have been lost before.
    pub fn finish_release(&self, loss: Option<LossReason>) {
        self.hold.0.finish_release(loss);
    }
}
