//! Being told what happens to a hold.

use crate::api::hold::Hold;
use crate::types::loss::LossReason;

/// Told what happens to the holds of a lock.
///
/// The level comes before the event: when a callback runs, [`Hold::is_valid`] already says what it is told. Callbacks
/// run on a dispatcher thread, never on the caller's runtime, one at a time and in order for each lock. One that blocks
/// delays the later events of its own lock, and one that panics is logged; neither harms another lock, unless 64 block at once.
/// Of more than 1024 events that wait behind one that blocks some are dropped: doubts and their ends first, then the oldest
/// acquisitions and releases, and losses last. The log says how many. In all at most 262,144 events wait, and as many losses.
///
/// Of each hold, [`on_acquired`](LockListener::on_acquired) comes first and [`on_abort`](LockListener::on_abort) or
/// [`on_released`](LockListener::on_released) last. A grant that its waiter gave up before it had the lock in hand has no events.
/// A doubt that is over before it could be told is left out, together with its end.
///
/// Closures of the shape `Fn(&Hold, &LossReason)` are listeners for [`LockListener::on_abort`].
pub trait LockListener: Send + Sync + 'static {
    /// A held lock has been lost: stop what it protects. Called once for each hold that is lost before its release began,
    /// never afterwards; not at all when the listener blocks for so long that the event is dropped. [`Hold::is_valid`] and
    /// [`Hold::lost`] tell of the loss all the same.
    fn on_abort(&self, hold: &Hold, reason: &LossReason);

    /// Contact with the server has been lost, or a renewal failed; the hold is still valid for [`Hold::remaining`].
    fn on_suspect(&self, hold: &Hold) {
        let _ = hold;
    }

    /// Contact has returned in time; the hold was valid throughout.
    fn on_restored(&self, hold: &Hold) {
        let _ = hold;
    }

    /// The lock has been acquired. Not called for reentry.
    fn on_acquired(&self, hold: &Hold) {
        let _ = hold;
    }

    /// The lock has been released by its owner; [`Hold::end`] says whether that was in time.
    fn on_released(&self, hold: &Hold) {
        let _ = hold;
    }
}

impl<F: Fn(&Hold, &LossReason) + Send + Sync + 'static> LockListener for F {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        self(hold, reason);
    }
}
