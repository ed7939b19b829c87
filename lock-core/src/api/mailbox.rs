//! Delivers events to one listener or stream, in order.
//!
//! The queue of waiting events of each is bounded. When it is full, suspect and restored events are dropped first, and
//! losses last.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::api::dispatcher::{DISPATCHER, FEWEST_WORKERS, Job};
use crate::api::event_queue::{EventQueue, Importance};
use crate::api::events::LockEvent;
use crate::api::listener::LockListener;
use crate::api::publisher::Topic;
use crate::policy::hold::state::Event;
use crate::policy::hold::{EventSink, Hold};
use crate::runtime::Mutex;
use crate::runtime::log::log;
use crate::runtime::waker::{self, with_waker};
use crate::types::LockName;

/// Who gets the events of a mailbox.
pub(crate) enum Reader {
    Listener(Arc<dyn LockListener>),
    /// A stream, which takes its events itself, and waits for one if there is a waker.
    Stream(Option<Waker>),
}

/// One reader, and the events that wait for it.
pub(crate) struct Mailbox {
    pub(crate) topic: Topic,
    state: Mutex<Delivery>,
}

struct Delivery {
    /// `None` once it has been removed.
    reader: Option<Reader>,
    /// What the reader gets; `None` at the end of the client.
    waiting: EventQueue<Option<LockEvent>>,
    /// Whether a worker is processing this mailbox, or will do so.
    is_queued: bool,
}

/// What a reader gets where some were dropped.
const MISSED: fn(u64) -> Option<LockEvent> = |count| Some(LockEvent::Missed { count });

/// The most events that wait for a listener of one lock.
const MOST_OF_A_LOCK: usize = 1024;

/// The most events that wait for a listener of all locks of a client: losses of many locks at once have to fit.
pub(crate) const MOST_OF_A_CLIENT: usize = 1 << 16;

impl Mailbox {
    pub(crate) fn new(topic: Topic, reader: Reader) -> Arc<Self> {
        DISPATCHER.start(FEWEST_WORKERS);
        let waiting = EventQueue::new(if topic == Topic::Client { MOST_OF_A_CLIENT } else { MOST_OF_A_LOCK });
        let delivery = Delivery { reader: Some(reader), waiting, is_queued: false };
        Arc::new(Self { topic, state: Mutex::new(delivery) })
    }

    /// Queues an event, or the end of the client, after all earlier ones. It runs no user code and drops no user value.
    pub(crate) fn post(self: &Arc<Self>, event: Option<LockEvent>) {
        let mut state = self.state.lock();
        if state.reader.is_none() {
            return;
        }
        let importance = event.as_ref().map_or(Importance::Loss, LockEvent::importance);
        let dropped = state.waiting.push(importance, event);
        let was_queued = std::mem::replace(&mut state.is_queued, true);
        drop(state);
        if let Some(dropped) = dropped {
            // It may have the last reference to a hold, and that to a listener of its own.
            DISPATCHER.enqueue(Job::End(Box::new(|| drop(dropped))));
        }
        if !was_queued {
            DISPATCHER.enqueue(Job::Deliver(Arc::clone(self)));
        }
    }

    /// Removes the reader and what waits for it. A worker ends them: the caller may be any thread, under any mutex.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        let ended = (state.reader.take(), std::mem::replace(&mut state.waiting, EventQueue::new(0)));
        drop(state);
        DISPATCHER.enqueue(Job::End(Box::new(|| match ended.0 {
            Some(Reader::Stream(Some(waker))) => waker.wake(),
            _ => drop(ended),
        })));
    }

    /// Takes the next event for a stream; there is `None` at the end of the client.
    pub(crate) fn poll_next(&self, context: &Context<'_>) -> Poll<Option<LockEvent>> {
        with_waker(context, |waker| {
            let Delivery { waiting, reader, .. } = &mut *self.state.lock();
            match (waiting.pop(MISSED), reader) {
                (Some(event), _) => Poll::Ready(event),
                (None, Some(Reader::Stream(reads))) => {
                    std::mem::swap(reads, waker);
                    Poll::Pending
                }
                (None, _) => Poll::Ready(None),
            }
        })
    }

    /// Delivers the next event. Returns whether there was one; if not, the next event queues the mailbox again.
    pub(crate) fn deliver_one(&self) -> bool {
        let (reader, event) = {
            let Delivery { waiting, reader, is_queued } = &mut *self.state.lock();
            let next = match reader {
                Some(Reader::Listener(listener)) => {
                    waiting.pop(MISSED).map(|event| (Reader::Listener(Arc::clone(listener)), event))
                }
                Some(Reader::Stream(waker)) => waker.take().map(|waker| (Reader::Stream(Some(waker)), None)),
                None => None,
            };
            *is_queued = next.is_some();
            let Some(next) = next else { return false };
            next
        };
        let lock = event.as_ref().and_then(LockEvent::hold).map(|hold| hold.name().clone());
        call_listener(lock, move || match (reader, event) {
            (Reader::Stream(waker), _) => waker.into_iter().for_each(Waker::wake),
            (Reader::Listener(listener), None) => listener.on_closed(),
            (Reader::Listener(listener), Some(event)) => {
                if let LockEvent::Missed { count } = event {
                    log!(
                        warn,
                        lock = self.topic.lock().map(display),
                        dropped = count,
                        "a listener blocked for so long that events were dropped"
                    );
                }
                event.deliver(&*listener);
            }
        });
        true
    }
}

impl EventSink for Arc<Mailbox> {
    fn publish(&self, event: Event, hold: &Hold) {
        self.post(Some(LockEvent::of(event, hold.clone())));
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mailbox").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Runs code of a listener, which may panic, and so may its destructor.
pub(super) fn call_listener(lock: Option<LockName>, call: impl FnOnce()) {
    if waker::catch_panic(call).is_none() {
        log!(error, lock = lock.map(display), "a listener panicked");
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::client::LockClient;
    use crate::api::lock::DistributedLock;
    use crate::api::options::LockOptions;
    use crate::api::tests::fake::Fake;
    use crate::types::LossReason;

    const SOON: Duration = Duration::from_secs(60);

    /// Reports each event that it receives, and then blocks until the test lets it go on.
    struct Blocking {
        tells: Mutex<Sender<Event>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Blocking {
        /// Installs a listener. Returns its events, and a sender that has to be dropped to unblock it.
        fn on(lock: &Arc<dyn DistributedLock>) -> (Receiver<Event>, Sender<()>) {
            let ((tells, told), (block, go_on)) = (channel(), channel());
            let listener = Self { tells: Mutex::new(tells), go_on: Mutex::new(go_on) };
            lock.add_listener(Arc::new(listener)).detach();
            (told, block)
        }

        fn tell(&self, event: Event) {
            let _ = self.tells.lock().send(event);
            let _ = self.go_on.lock().recv();
        }
    }

    impl LockListener for Blocking {
        fn on_abort(&self, _: &Hold, reason: &LossReason) {
            self.tell(Event::Abort(*reason));
        }

        fn on_suspect(&self, _: &Hold) {
            self.tell(Event::Suspect);
        }

        fn on_restored(&self, _: &Hold) {
            self.tell(Event::Restored);
        }

        fn on_acquired(&self, _: &Hold) {
            self.tell(Event::Acquired);
        }

        fn on_released(&self, _: &Hold) {
            self.tell(Event::Released);
        }
    }

    async fn acquire_and_release(lock: &Arc<dyn DistributedLock>, times: usize) {
        for _ in 0..times {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }

    fn lock(client: &LockClient, name: &str) -> Arc<dyn DistributedLock> {
        client.mutex(name).unwrap()
    }

    /// Says at its end on which thread that is, and blocks there until it may go on.
    struct Ends {
        tells: Sender<Option<String>>,
        go_on: Receiver<()>,
    }

    impl Ends {
        fn new() -> (Self, Receiver<Option<String>>, Sender<()>) {
            let ((tells, told), (block, go_on)) = (channel(), channel());
            (Self { tells, go_on }, told, block)
        }

        fn listener(self) -> Arc<dyn LockListener> {
            let ends = Mutex::new(self);
            Arc::new(move |_: &Hold, _: &LossReason| drop(ends.lock()))
        }
    }

    impl Drop for Ends {
        fn drop(&mut self) {
            let _ = self.tells.send(std::thread::current().name().map(ToOwned::to_owned));
            let _ = self.go_on.recv_timeout(SOON);
        }
    }

    const WORKER: Option<&str> = Some("distlock-listener");

    /// The events are dropped under mutexes, of the lock and others.
    #[tokio::test]
    async fn a_listener_that_ends_with_a_dropped_event_ends_on_a_worker_and_holds_up_no_other() {
        let client = Fake::default().client(ClientBuilder::new());
        let lock = lock(&client, "orders/42");
        let (blocks, go_on) = Blocking::on(&lock);
        acquire_and_release(&lock, 1).await;
        assert_eq!(blocks.recv_timeout(SOON).unwrap(), Event::Acquired);
        let (ends, told, end) = Ends::new();
        let options = LockOptions::new().listener(ends.listener());
        let guard = client.mutex_with("orders/42", options).unwrap().acquire().await.unwrap();
        let hold = Arc::downgrade(&guard.hold().0);
        guard.release().await.unwrap();
        // Then only the events that wait for the blocked listener have the hold.
        while hold.strong_count() > 2 {
            tokio::task::yield_now().await;
        }
        acquire_and_release(&lock, MOST_OF_A_LOCK / 2).await;
        assert_eq!(told.recv_timeout(SOON).unwrap().as_deref(), WORKER);
        let (other, others_go_on) = Blocking::on(&self::lock(&client, "orders/43"));
        acquire_and_release(&self::lock(&client, "orders/43"), 1).await;
        assert_eq!(other.recv_timeout(SOON).unwrap(), Event::Acquired);
        drop((end, others_go_on, go_on));
    }

    #[tokio::test]
    async fn what_ends_with_its_subscription_or_its_client_ends_on_a_worker() {
        let client = Fake::default().client(ClientBuilder::new());
        let (first, first_told, _) = Ends::new();
        drop(client.add_listener(first.listener()));
        assert_eq!(first_told.recv_timeout(SOON).unwrap().as_deref(), WORKER);
        let (second, second_told, _) = Ends::new();
        client.add_listener(second.listener()).detach();
        drop(client);
        assert_eq!(second_told.recv_timeout(SOON).unwrap().as_deref(), WORKER);
    }

    #[tokio::test]
    async fn doubts_are_dropped_before_acquisitions_and_those_before_losses() {
        let server = Fake::with_losses();
        let lock = lock(&server.client(ClientBuilder::new()), "orders/42");
        let (told, go_on) = Blocking::on(&lock);
        let lost = lock.acquire().await.unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), Event::Acquired);
        server.lose(LossReason::Deleted);
        drop(lost);
        let guard = lock.acquire().await.unwrap();
        for _ in 0..MOST_OF_A_LOCK {
            guard.hold().suspect();
            guard.hold().renew(crate::runtime::clock::Moment::FOREVER);
        }
        guard.release().await.unwrap();
        acquire_and_release(&lock, MOST_OF_A_LOCK / 2 - 2).await;
        // So far only doubts have been dropped; from here on, only the oldest acquisitions.
        acquire_and_release(&lock, 1).await;
        drop(go_on);
        let mut heard = Vec::new();
        while heard.len() < MOST_OF_A_LOCK {
            heard.push(told.recv_timeout(SOON).unwrap());
        }
        assert_eq!(heard[..2], [Event::Abort(LossReason::Deleted), Event::Released]);
        let acquired = heard.iter().filter(|event| **event == Event::Acquired).count();
        assert_eq!(acquired, MOST_OF_A_LOCK / 2 - 1);
    }
}
