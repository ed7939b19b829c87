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
    open: Option<HashMap<i64, mpsc::UnboundedSender<Event>>>,
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
    events: mpsc::UnboundedReceiver<Event>,
    watches: Arc<Watches>,
}

impl Watches {
    /// Returns the watches, and what they ask for: the first request is there, because a server answers the opening of the stream
    /// with its first answer.
    pub(crate) fn new(first: &str) -> (Arc<Self>, Requests, Watching) {
        let (requests, asked) = mpsc::unbounded_channel();
        let receivers = Mutex::new(Receivers { last: 0, open: Some(HashMap::new()) });
        let watches = Arc::new(Self { requests, receivers });
        let watching = watches.watch(first, "", 0);
        (watches, Requests(asked), watching)
    }

    /// Watches `key`, or what is from `key` to before `end`, from this revision on; zero is now.
    pub(crate) fn watch(self: &Arc<Self>, key: &str, end: &str, from: i64) -> Watching {
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
        let create = WatchCreate { key: key.to_owned(), end: end.to_owned(), from, id };
        self.send(WatchRequest { create: Some(create), cancel: None });
        Watching { id, events, watches: Arc::clone(self) }
    }

    /// The stream may have ended; then nothing is watched.
    fn send(&self, request: WatchRequest) {
        let _ = self.requests.send(request);
    }

    fn take(&self, id: i64) -> Option<mpsc::UnboundedSender<Event>> {
        self.receivers.lock().open.as_mut()?.remove(&id)
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
        if answer.is_cancelled {
            // Compacted, or not permitted: whoever watches looks again.
            drop(self.take(answer.id));
            return;
        }
        if let Some(open) = &self.receivers.lock().open
            && let Some(receiver) = open.get(&answer.id)
        {
            for event in answer.events {
                // Its watch may just have been dropped.
                let _ = receiver.send(event);
            }
        }
    }
}

impl Watching {
    /// The next event; none if the watch has ended and something may have been missed.
    ///
    /// # Cancel safety
    /// May be dropped at any time: no event is lost.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(receiver) = self.watches.take(self.id) {
            drop(receiver);
            self.watches.send(WatchRequest { create: None, cancel: Some(WatchCancel { id: self.id }) });
        }
    }
}
