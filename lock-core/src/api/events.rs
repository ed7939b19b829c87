//! The events of a client's holds, for listeners and as a stream.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;

use crate::api::event_queue::Importance;
use crate::api::listener::{LockListener, Subscription};
use crate::api::mailbox::Reader;
use crate::api::publisher::{Publisher, Topic};
use crate::policy::hold::Hold;
use crate::policy::hold::state::Event;
use crate::types::LossReason;

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

    pub(crate) fn of(event: Event, hold: Hold) -> Self {
        match event {
            Event::Acquired => Self::Acquired { hold },
            Event::Suspect => Self::Suspect { hold },
            Event::Restored => Self::Restored { hold },
            Event::Abort(reason) => Self::Lost { hold, reason },
            Event::Released => Self::Released { hold },
        }
    }

    pub(crate) fn importance(&self) -> Importance {
        match self {
            Self::Suspect { .. } | Self::Restored { .. } => Importance::Doubt,
            Self::Acquired { .. } | Self::Released { .. } => Importance::Change,
            Self::Lost { .. } | Self::Missed { .. } => Importance::Loss,
        }
    }

    pub(crate) fn deliver(&self, listener: &dyn LockListener) {
        match self {
            Self::Acquired { hold } => listener.on_acquired(hold),
            // The hold has ended meanwhile, so its doubts are of no interest any more.
            Self::Suspect { hold } | Self::Restored { hold } if !hold.is_standing() => {}
            Self::Suspect { hold } => listener.on_suspect(hold),
            Self::Restored { hold } => listener.on_restored(hold),
            Self::Lost { hold, reason } => listener.on_abort(hold, reason),
            Self::Released { hold } => listener.on_released(hold),
            Self::Missed { count } => listener.on_missed(*count),
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
#[derive(Debug)]
pub struct LockEvents(Subscription);

impl LockEvents {
    pub(crate) fn of(publisher: &Arc<Publisher>) -> Self {
        Self(publisher.add(Topic::Client, Reader::Stream(None)))
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
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }
}

impl Stream for LockEvents {
    type Item = LockEvent;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<LockEvent>> {
        // The mailbox ends with the client.
        let Some(mailbox) = self.0.mailbox.upgrade() else { return Poll::Ready(None) };
        let event = mailbox.poll_next(context);
        if matches!(event, Poll::Ready(None)) {
            self.0.end();
        }
        event
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::mailbox::MOST_OF_A_CLIENT;
    use crate::api::tests::fake::Fake;
    use crate::policy::hold::EventSink;

    #[tokio::test]
    async fn a_stream_that_is_not_read_drops_the_oldest_and_says_where() {
        let publisher = Arc::default();
        let mut events = LockEvents::of(&publisher);
        let client = Fake::default().client(ClientBuilder::new());
        let guard = client.mutex("orders/42").unwrap().acquire().await.unwrap();
        let publish = |event| publisher.publish(event, guard.hold());
        publish(Event::Suspect);
        publish(Event::Abort(LossReason::Expired));
        for _ in 0..MOST_OF_A_CLIENT - 1 {
            publish(Event::Acquired);
        }
        // Of these three the first is dropped at once, and two acquisitions are for the others.
        publish(Event::Restored);
        publish(Event::Released);
        publisher.close();
        publish(Event::Released);
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 1 })));
        assert!(matches!(events.next().await, Some(LockEvent::Lost { reason: LossReason::Expired, .. })));
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 3 })));
        for _ in 0..MOST_OF_A_CLIENT - 4 {
            assert!(matches!(events.next().await, Some(LockEvent::Acquired { .. })));
        }
        assert!(matches!(events.next().await, Some(LockEvent::Missed { count: 1 })));
        assert!(matches!(events.next().await, Some(LockEvent::Released { .. })));
        assert!(events.next().await.is_none());
        assert!(events.next().await.is_none());
    }
}
