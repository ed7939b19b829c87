//! Callbacks for what happens to a hold, and how long they stay.

use std::fmt;
use std::sync::Weak;

use crate::api::mailbox::Mailbox;
use crate::api::publisher::Publisher;
use crate::policy::hold::Hold;
use crate::types::LossReason;

/// Callbacks for what happens to the holds of a lock, or of all locks of a client.
///
/// [`DistributedLock::add_listener`](crate::DistributedLock::add_listener) adds a listener to a lock,
/// [`LockClient::add_listener`](crate::LockClient::add_listener) and
/// [`ClientBuilder::listener`](crate::ClientBuilder::listener) to a client. There may be several of each.
/// [`LockClient::events`](crate::LockClient::events) has the same events as a stream.
///
/// The state changes before the callback runs: inside a callback, [`Hold::is_valid`] already agrees with the event.
/// Callbacks run on a dispatcher thread, never on the caller's runtime; for each listener that was added, one at a time
/// and in order. A callback that blocks delays the later events of its own listener, and a panic is logged; neither
/// affects other listeners, unless 64 callbacks block at once.
///
/// Behind a callback that blocks, at most 1024 events wait for a listener of a lock, and 65,536 for a listener of a
/// client. Beyond that, events are dropped: first suspect and restored events, then the oldest acquisitions and
/// releases, and losses last. [`on_missed`](LockListener::on_missed) and the log say how many.
///
/// For each hold, [`on_acquired`](LockListener::on_acquired) comes first and [`on_abort`](LockListener::on_abort) or
/// [`on_released`](LockListener::on_released) last. A grant that its waiter gave up before it received the lock has no
/// events. If contact returns before a suspect event could be delivered, both events are left out. A listener that is
/// added during a hold gets what happens from then on, and nothing that is over: a loss, for example, but no
/// acquisition.
///
/// A closure of the form `Fn(&Hold, &LossReason)` is a listener that implements [`LockListener::on_abort`].
///
/// ```
/// use std::sync::Arc;
///
/// use lock_core::{Hold, LockListener, LossReason};
///
/// struct EventLog;
///
/// impl LockListener for EventLog {
///     fn on_abort(&self, hold: &Hold, reason: &LossReason) {
///         eprintln!("{} is lost: {reason}", hold.name());
///     }
///
///     fn on_suspect(&self, hold: &Hold) {
///         eprintln!("no contact; {} stays held for {:?}", hold.name(), hold.remaining());
///     }
///
///     fn on_restored(&self, hold: &Hold) {
///         eprintln!("contact has returned; {} was held throughout", hold.name());
///     }
///
///     fn on_acquired(&self, hold: &Hold) {
///         eprintln!("{} is acquired, with the token {:?}", hold.name(), hold.token());
///     }
///
///     fn on_released(&self, hold: &Hold) {
///         eprintln!("{} is released: {:?}", hold.name(), hold.end());
///     }
///
///     fn on_missed(&self, count: u64) {
///         eprintln!("{count} events are missing");
///     }
///
///     fn on_closed(&self) {
///         eprintln!("the client is closed");
///     }
/// }
///
/// # lock_memory::example(async |locks| {
/// let subscription = locks.add_listener(Arc::new(EventLog)); // until the subscription is dropped
/// let guard = locks.mutex("orders/42")?.acquire().await?;
/// # Ok(()) });
/// ```
#[expect(unused_variables, reason = "most callbacks do nothing by default")]
pub trait LockListener: Send + Sync + 'static {
    /// A held lock has been lost: stop what it protects. Called once for each hold that is lost before its release
    /// began, and never after that. It is not called if the listener blocks for so long that the event is dropped;
    /// [`Hold::is_valid`] and [`Hold::lost`] report the loss in any case.
    fn on_abort(&self, hold: &Hold, reason: &LossReason);

    /// The client has lost contact with the server, or a renewal failed. The hold stays valid for [`Hold::remaining`].
    fn on_suspect(&self, hold: &Hold) {}

    /// Contact has returned in time; the hold was valid throughout.
    fn on_restored(&self, hold: &Hold) {}

    /// The lock has been acquired. Not called for reentry.
    fn on_acquired(&self, hold: &Hold) {}

    /// The owner has released the lock; [`Hold::end`] says whether that was in time.
    fn on_released(&self, hold: &Hold) {}

    /// `count` events that belong here were dropped, because this listener blocked for too long.
    fn on_missed(&self, count: u64) {}

    /// [`LockClient::close`](crate::LockClient::close) has ended. A hold that its waiter has not received yet may still
    /// be reported after that.
    fn on_closed(&self) {}
}

impl<F: Fn(&Hold, &LossReason) + Send + Sync + 'static> LockListener for F {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        self(hold, reason);
    }
}

impl fmt::Debug for dyn LockListener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LockListener")
    }
}

/// Keeps a listener: dropping it removes the listener.
///
/// The listener, and the events that wait for it, end soon after that on a listener thread. A callback that runs at that moment goes on. A
/// subscription does not keep the client in use.
///
/// ```
/// # use lock_core::{Hold, LossReason};
/// # use std::sync::Arc;
/// # lock_memory::example(async |locks| {
/// let subscription = locks.add_listener(Arc::new(|hold: &Hold, reason: &LossReason| {
///     eprintln!("{} is lost: {reason}", hold.name());
/// }));
/// drop(subscription); // no more events
/// # Ok(()) });
/// ```
#[must_use = "dropping the subscription removes the listener; `detach` keeps it for ever"]
#[derive(Debug)]
pub struct Subscription {
    pub(crate) publisher: Weak<Publisher>,
    pub(crate) mailbox: Weak<Mailbox>,
}

impl Subscription {
    /// Keeps the listener for as long as its client exists.
    ///
    /// ```
    /// # use lock_core::{Hold, LossReason};
    /// # use std::sync::Arc;
    /// # lock_memory::example(async |locks| {
    /// let listener = Arc::new(|hold: &Hold, _: &LossReason| eprintln!("{} is lost", hold.name()));
    /// locks.mutex("orders/42")?.add_listener(listener).detach();
    /// # Ok(()) });
    /// ```
    pub fn detach(mut self) {
        self.mailbox = Weak::new();
    }

    /// Removes the listener.
    pub(crate) fn end(&mut self) {
        let Some(mailbox) = std::mem::take(&mut self.mailbox).upgrade() else { return };
        if let Some(publisher) = self.publisher.upgrade() {
            publisher.remove(&mailbox);
        }
        mailbox.end();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.end();
    }
}
