//! The watches of one connection, on one stream.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use lock_core::spi::Mutex;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::messages::{Event, WatchAnswer, WatchCancel, WatchCreate, WatchRequest};

/// The watches of one connection.
pub(crate) struct Watches {
    requests: mpsc::UnboundedSender<WatchRequest>,
    receivers: Mutex<Receivers>,
}

#[derive(Default)]
struct Receivers {
    last: i64,
    /// Where the events of each watch go; `None` when the stream has ended.
    open: Option<HashMap<i64, mpsc::UnboundedSender<Vec<Event>>>>,
}

/// What the client sends on the stream.
pub(crate) struct Requests(mpsc::UnboundedReceiver<WatchRequest>);

impl Stream for Requests {
    type Item = WatchRequest;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<WatchRequest>> {
        self.0.poll_recv(context)
    }
}

/// One watch. Dropping it ends it.
pub(crate) struct Watching {
    id: i64,
    events: mpsc::UnboundedReceiver<Vec<Event>>,
    watches: Arc<Watches>,
}

impl Watches {
    /// Returns the watches, and what they ask for: the first request is there, because a server answers the opening of the stream
    /// with its first answer.
    pub(crate) fn new(first: &str) -> (Arc<Self>, Requests, Watching) {
        let (requests, asked) = mpsc::unbounded_channel();
        let receivers = Mutex::new(Receivers { last: 0, open: Some(HashMap::new()) });
        let watches = Arc::new(Self { requests, receivers });
        let watching = watches.watch(WatchCreate::of(first, 0));
        (watches, Requests(asked), watching)
    }

    /// Watches this, with a number of its own.
    pub(crate) fn watch(self: &Arc<Self>, create: WatchCreate) -> Watching {
        let (sender, events) = mpsc::unbounded_channel();
        let id = {
            let mut receivers = self.receivers.lock();
            receivers.last += 1;
            let id = receivers.last;
            if let Some(open) = &mut receivers.open {
                open.insert(id, sender);
            }
            id
        };
        self.send(WatchRequest { create: Some(WatchCreate { id, ..create }), cancel: None });
        Watching { id, events, watches: Arc::clone(self) }
    }

    /// The stream may have ended; then nothing is watched.
    fn send(&self, request: WatchRequest) {
        let _ = self.requests.send(request);
    }

    /// Hands events out until the stream ends. Then no watch gets any more, and each says so.
    pub(crate) async fn follow(&self, mut answers: Streaming<WatchAnswer>) -> Status {
        let ended = loop {
            match answers.message().await {
                Ok(Some(answer)) => self.hand_out(answer),
                Ok(None) => break Status::unavailable("the server has ended the connection"),
                Err(status) => break status,
            }
        };
        self.end();
        ended
    }

    pub(crate) fn end(&self) {
        let open = self.receivers.lock().open.take();
        drop(open);
    }

    fn hand_out(&self, answer: WatchAnswer) {
        let mut receivers = self.receivers.lock();
        let Some(open) = &mut receivers.open else { return };
        if answer.is_cancelled && answer.id < 0 {
            // The server has refused a watch and does not say which: all look again.
            open.clear();
        } else if answer.is_cancelled {
            // Compacted: the one that watches looks again.
            open.remove(&answer.id);
        } else if let Some(receiver) = open.get(&answer.id) {
            // Its watch may just have been dropped.
            let _ = receiver.send(answer.events);
        }
    }
}

impl Watching {
    /// All events that have come since; none if the watch has ended and something may have been missed. Those of one revision come
    /// together: some of them alone would show a state that never was.
    ///
    /// # Cancel safety
    /// May be dropped at any time: no event is lost.
    pub(crate) async fn next(&mut self) -> Option<Vec<Event>> {
        let mut events = self.events.recv().await?;
        while let Ok(more) = self.events.try_recv() {
            events.extend(more);
        }
        Some(events)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(open) = &mut self.watches.receivers.lock().open {
            open.remove(&self.id);
        }
        // A server that does not have it passes over this.
        self.watches.send(WatchRequest { create: None, cancel: Some(WatchCancel { id: self.id }) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: i64, kinds: &[i32]) -> WatchAnswer {
        let events = kinds.iter().map(|kind| Event { kind: *kind, entry: None }).collect();
        WatchAnswer { id, is_cancelled: false, events }
    }

    fn cancelled(id: i64) -> WatchAnswer {
        WatchAnswer { id, is_cancelled: true, events: Vec::new() }
    }

    async fn kinds(watching: &mut Watching) -> Option<Vec<i32>> {
        watching.next().await.map(|events| events.iter().map(|event| event.kind).collect())
    }

    #[tokio::test]
    async fn what_has_come_is_handed_out_together() {
        let (watches, _requests, mut first) = Watches::new("first");
        let mut second = watches.watch(WatchCreate::of("second", 0));
        watches.hand_out(answer(first.id, &[1, 0, 1]));
        watches.hand_out(answer(second.id, &[0]));
        watches.hand_out(answer(first.id, &[0]));
        assert_eq!(kinds(&mut first).await, Some(vec![1, 0, 1, 0]));
        assert_eq!(kinds(&mut second).await, Some(vec![0]));
    }

    #[tokio::test]
    async fn a_watch_that_was_ended_by_the_server_ends_alone() {
        let (watches, _requests, mut first) = Watches::new("first");
        let mut second = watches.watch(WatchCreate::of("second", 0));
        watches.hand_out(cancelled(first.id));
        watches.hand_out(answer(second.id, &[1]));
        assert_eq!(kinds(&mut first).await, None);
        assert_eq!(kinds(&mut second).await, Some(vec![1]));
    }

    #[tokio::test]
    async fn a_refused_watch_makes_all_look_again() {
        let (watches, _requests, mut first) = Watches::new("first");
        let mut second = watches.watch(WatchCreate::of("second", 0));
        watches.hand_out(cancelled(-1));
        assert_eq!(kinds(&mut first).await, None);
        assert_eq!(kinds(&mut second).await, None);
        let mut third = watches.watch(WatchCreate::of("third", 0));
        watches.hand_out(answer(third.id, &[1]));
        assert_eq!(kinds(&mut third).await, Some(vec![1]));
    }
}
