//! Futures that are polled by hand, and a listener that records its events.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use lock_core::spi::Mutex;
use lock_core::{DistributedLock, Hold, LockClient, LockListener, LossReason, Subscription};
use tokio::sync::Notify;

/// A future that is polled when the case asks for it.
pub(crate) struct ByHand<F> {
    future: Pin<Box<F>>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

impl<F: Future> ByHand<F> {
    pub(crate) fn new(future: F) -> Self {
        Self { future: Box::pin(future), woken: Arc::default() }
    }

    /// Polls once; returns the output if the future completed.
    pub(crate) fn poll(&mut self) -> Option<F::Output> {
        let waker = Waker::from(Arc::clone(&self.woken));
        match self.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// Waits until the future is woken.
    pub(crate) fn wants_poll(&self) -> impl Future<Output = ()> + Send + use<F> {
        let woken = Arc::clone(&self.woken);
        async move { woken.0.notified().await }
    }

    /// Polls `times` times, each time except the first after it was woken; returns the output if the future completed.
    pub(crate) async fn poll_times(&mut self, times: usize) -> Option<F::Output> {
        for poll in 0..times {
            if poll > 0 {
                self.wants_poll().await;
            }
            if let Some(output) = self.poll() {
                return Some(output);
            }
        }
        None
    }

    /// Polls the future whenever it is woken, until it completes.
    pub(crate) async fn finish(mut self) -> F::Output {
        loop {
            if let Some(output) = self.poll() {
                return output;
            }
            self.wants_poll().await;
        }
    }
}

/// One event of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The lock was acquired.
    Acquired,
    /// The lock was released.
    Released,
    /// Contact was lost.
    Suspect,
    /// Contact has returned.
    Restored,
    /// The hold was lost: the reason, and the state of the hold.
    Abort(LossReason, Level),
}

/// The state of a hold when its loss was reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The hold was still valid.
    Valid,
    /// The hold was not valid any more.
    Over,
}

/// Records the events of a listener and their times.
#[derive(Debug, Default)]
pub(crate) struct EventRecorder {
    events: Mutex<Vec<(Event, Instant)>>,
    changed: Notify,
}

impl EventRecorder {
    /// Creates a recorder that listens to the lock.
    pub(crate) fn of(lock: &Arc<dyn DistributedLock>) -> Arc<Self> {
        let recorder = Arc::new(Self::default());
        lock.add_listener(Arc::clone(&recorder) as Arc<dyn LockListener>).detach();
        recorder
    }

    /// Creates a recorder that listens to all locks of the client until its subscription is dropped.
    pub(crate) fn of_client(client: &LockClient) -> (Arc<Self>, Subscription) {
        let recorder = Arc::new(Self::default());
        let subscription = client.add_listener(Arc::clone(&recorder) as Arc<dyn LockListener>);
        (recorder, subscription)
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().iter().map(|(event, _)| *event).collect()
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().iter().filter(|(event, _)| wanted(event)).count()
    }

    pub(crate) fn aborts(&self) -> usize {
        self.count(|event| matches!(event, Event::Abort(..)))
    }

    /// Waits until there is an event for which `wanted` returns a value.
    pub(crate) async fn has<T>(&self, wanted: impl Fn(&Event) -> Option<T>) -> T {
        self.has_at(wanted).await.0
    }

    /// Like `has`, and also returns when the event came.
    pub(crate) async fn has_at<T>(&self, wanted: impl Fn(&Event) -> Option<T>) -> (T, Instant) {
        loop {
            let changed = self.changed.notified();
            let found = self.events.lock().iter().find_map(|(event, at)| Some((wanted(event)?, *at)));
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    fn note(&self, event: Event) {
        self.events.lock().push((event, Instant::now()));
        self.changed.notify_waiters();
    }
}

impl LockListener for EventRecorder {
    fn on_abort(&self, hold: &Hold, reason: &LossReason) {
        let level = if hold.is_valid() { Level::Valid } else { Level::Over };
        self.note(Event::Abort(*reason, level));
    }

    fn on_suspect(&self, _: &Hold) {
        self.note(Event::Suspect);
    }

    fn on_restored(&self, _: &Hold) {
        self.note(Event::Restored);
    }

    fn on_acquired(&self, _: &Hold) {
        self.note(Event::Acquired);
    }

    fn on_released(&self, _: &Hold) {
        self.note(Event::Released);
    }
}
