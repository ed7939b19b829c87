//! The events of a client as a stream, which is filled by a listener.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::api::event_queue::{EventQueue, Importance, Popped};
use crate::api::hold::Hold;
use crate::api::listener::{LockListener, Subscription};
use crate::api::mailbox::MOST_OF_A_CLIENT;
use crate::api::publisher::Publisher;
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;
use crate::types::loss::LossReason;

/// What has happened to a hold, from [`LockClient::events`](crate::LockClient::events).
///
/// The state changes before the event: [`Hold::is_valid`] already agrees with it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum LockEvent {
    /// The lock has been acquired. There is no event for reentry.
    Acquired {
        /// The new hold.
        hold: Hold,
    },
    /// The client has lost contact with the server, or a renewal failed. The hold stays valid for [`Hold::remaining`].
    Suspect {
        /// The hold, which is still valid.
        hold: Hold,
    },
    /// Contact has returned in time; the hold was valid throughout.
    Restored {
        /// The hold.
        hold: Hold,
    },
    /// The lock has been lost.
    Lost {
        /// The hold, which has ended.
        hold: Hold,
        /// Why it was lost.
        reason: LossReason,
    },
    /// The owner has released the lock; [`Hold::end`] says whether that was in time.
    Released {
        /// The hold, which has ended.
        hold: Hold,
    },
    /// Events that belong here were dropped, because the stream was not read for too long.
    Missed {
        /// How many events were dropped.
        count: u64,
    },
}

impl LockEvent {
    /// Returns the hold that the event is about; `None` for [`LockEvent::Missed`].
    ///
    /// ```
    /// # use lock_core::LockEvent;
    /// assert!(LockEvent::Missed { count: 3 }.hold().is_none());
    /// ```
    pub fn hold(&self) -> Option<&Hold> {
        match self {
            Self::Acquired { hold }
            | Self::Suspect { hold }
            | Self::Restored { hold }
            | Self::Lost { hold, .. }
            | Self::Released { hold } => Some(hold),
            Self::Missed { .. } => None,
        }
    }
}

/// The events of all locks of a client, in order, from [`LockClient::events`](crate::LockClient::events).
///
/// At most 65,536 events wait. Beyond that, events are dropped: first suspect and restored events, then the oldest
/// acquisitions and releases, and losses last. [`LockEvent::Missed`] says how many, in their place. An event that waits
/// keeps the client alive, as its [`Hold`] does.
///
/// The stream ends when [`LockClient::close`](crate::LockClient::close) has ended, or with the client.
#[must_use = "dropping the stream ends it, and its events are not read"]
pub struct LockEvents {
    buffer: Arc<Buffer>,
    _subscription: Subscription,
}

impl LockEvents {
    pub(crate) fn of(publisher: &Arc<Publisher>) -> Self {
        let buffer = Arc::new(Buffer(Mutex::new(Buffered {
            events: EventQueue::new(MOST_OF_A_CLIENT),
            reader: None,
            state: State::Open,
        })));
        let subscription = publisher.add(None, Arc::new(Writer(Arc::clone(&buffer))));
        Self { buffer, _subscription: subscription }
    }

    /// Waits for the next event; returns `None` at the end.
    ///
    /// ```
    /// # use lock_core::LockEvent;
    /// # lock_memory::example(async |locks| {
    /// let mut events = locks.events();
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// An event is either returned or left for the next call.
    pub async fn next(&mut self) -> Option<LockEvent> {
        poll_fn(|context| self.buffer.poll_next(context)).await
    }
}

impl Stream for LockEvents {
    type Item = LockEvent;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LockEvent>> {
        self.buffer.poll_next(context)
    }
}

impl fmt::Debug for LockEvents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LockEvents").finish_non_exhaustive()
    }
}

struct Buffer(Mutex<Buffered>);

struct Buffered {
    events: EventQueue<LockEvent>,
    reader: Option<Waker>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Open,
    Ended,
}

impl Buffer {
    fn poll_next(&self, context: &Context<'_>) -> Poll<Option<LockEvent>> {
        with_waker(context, |waker| {
            let mut buffered = self.0.lock();
            match buffered.events.pop() {
                Some(Popped::Event(event)) => Poll::Ready(Some(event)),
                Some(Popped::Missed(count)) => Poll::Ready(Some(LockEvent::Missed { count })),
                None if buffered.state == State::Ended => Poll::Ready(None),
                None => {
                    std::mem::swap(&mut buffered.reader, waker);
                    Poll::Pending
                }
            }
        })
    }

    /// Changes what is buffered, and wakes the reader. After the end nothing changes.
    fn change<T>(&self, change: impl FnOnce(&mut Buffered) -> T) {
        let changed = {
            let mut buffered = self.0.lock();
            (buffered.state == State::Open).then(|| (change(&mut buffered), buffered.reader.take()))
        };
        if let Some((_dropped, Some(reader))) = changed {
            reader.wake();
        }
    }

    fn end(&self) {
        self.change(|buffered| buffered.state = State::Ended);
    }
}

/// The listener that writes to the buffer. When it is dropped, the client has ended.
struct Writer(Arc<Buffer>);

impl Writer {
    fn write(&self, importance: Importance, event: LockEvent) {
        self.0.change(|buffered| buffered.events.push(importance, event));
    }
}

impl LockListener for Writer {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        self.write(Importance::Loss, LockEvent::Lost { hold: hold.clone(), reason: *reason });
    }

    fn on_suspect(&self, hold: &Hold) {
        self.write(Importance::Doubt, LockEvent::Suspect { hold: hold.clone() });
    }

    fn on_restored(&self, hold: &Hold) {
        self.write(Importance::Doubt, LockEvent::Restored { hold: hold.clone() });
    }

    fn on_acquired(&self, hold: &Hold) {
        self.write(Importance::Change, LockEvent::Acquired { hold: hold.clone() });
    }

    fn on_released(&self, hold: &Hold) {
        self.write(Importance::Change, LockEvent::Released { hold: hold.clone() });
    }

    fn on_missed(&self, count: u64) {
        self.0.change(|buffered| buffered.events.miss(count));
    }

    fn on_closed(&self) {
        self.0.end();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::fake::Fake;

    #[tokio::test]
    async fn a_stream_that_is_not_read_drops_the_oldest_and_says_where() {
        let publisher = Arc::default();
        let mut events = LockEvents::of(&publisher);
        let writer = Writer(Arc::clone(&events.buffer));
        let client = Fake::default().client(ClientBuilder::new());
        let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
        let hold = guard.hold().clone();
        writer.on_suspect(&hold);
        writer.on_abort(&hold, &LossReason::Expired);
        for _ in 0..MOST_OF_A_CLIENT {
            writer.on_acquired(&hold);
        }
        writer.on_missed(5);
        writer.on_closed();
        writer.on_released(&hold);
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 1 })));
        assert!(matches!(events.next().await, Some(LockEvent::Lost { reason: LossReason::Expired, .. })));
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 1 })));
        for _ in 1..MOST_OF_A_CLIENT {
            assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
        }
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 5 })));
        assert!(events.next().await.is_none());
        assert!(events.next().await.is_none());
    }
}
