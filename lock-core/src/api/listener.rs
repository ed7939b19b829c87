//! Callbacks for what happens to a hold.

use crate::api::hold::Hold;
use crate::types::loss::LossReason;

/// Callbacks for what happens to the holds of a lock.
///
/// The state changes before the callback runs: inside a callback, [`Hold::is_valid`] already agrees with the event.
/// Callbacks run on a dispatcher thread, never on the caller's runtime; for each lock, one at a time and in order. A
/// callback that blocks delays the later events of its own lock, and a panic is logged; neither affects other locks,
/// unless 64 callbacks block at once. At most 1024 events of one lock wait behind a callback that blocks. Beyond that,
/// events are dropped: first suspect and restored events, then the oldest acquisitions and releases, and losses last.
/// The log says how many. In total at most 262,144 events wait, and as many losses on top of that.
///
/// For each hold, [`on_acquired`](LockListener::on_acquired) comes first and [`on_abort`](LockListener::on_abort) or
/// [`on_released`](LockListener::on_released) last. A grant that its waiter gave up before it received the lock has no
/// events. If contact returns before a suspect event could be delivered, both events are left out.
///
/// A closure of the form `Fn(&Hold, &LossReason)` is a listener that implements [`LockListener::on_abort`].
pub trait LockListener: Send + Sync + 'static {
    /// A held lock has been lost: stop what it protects. Called once for each hold that is lost before its release
    /// began, and never after that. It is not called if the listener blocks for so long that the event is dropped;
    /// [`Hold::is_valid`] and [`Hold::lost`] report the loss in any case.
    fn on_abort(&self, hold: &Hold, reason: &LossReason);

    /// The client has lost contact with the server, or a renewal failed. The hold stays valid for [`Hold::remaining`].
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

    /// The owner has released the lock; [`Hold::end`] says whether that was in time.
    fn on_released(&self, hold: &Hold) {
        let _ = hold;
    }
}

impl<F: Fn(&Hold, &LossReason) + Send + Sync + 'static> LockListener for F {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        self(hold, reason);
    }
}
