//! Delivers events to one listener, in order.
//!
//! The queue of waiting events of each listener is bounded. When it is full, suspect and restored events are dropped first, and
//! losses last.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tracing::field::{self, display};

use crate::api::event_queue::{EventQueue, Importance, Popped};
use crate::api::hold::Hold;
use crate::api::listener::LockListener;
use crate::api::publisher::LockKey;
use crate::policy::hold::state;
use crate::runtime::dispatcher::{self, Mailbox};
use crate::runtime::sync::Mutex;
use crate::types::loss::LossReason;

type Event = state::Event<LossReason>;

/// What a listener gets.
pub(crate) enum Notification {
    OfHold(Event, Hold),
    Closed,
}

impl Notification {
    fn importance(&self) -> Importance {
        match self {
            Self::OfHold(Event::Suspect | Event::Restored, _) => Importance::Doubt,
            Self::OfHold(Event::Acquired | Event::Released, _) => Importance::Change,
            Self::OfHold(Event::Abort(_), _) | Self::Closed => Importance::Loss,
        }
    }

    fn deliver(&self, listener: &dyn LockListener) {
        let Self::OfHold(event, hold) = self else { return listener.on_closed() };
        match event {
            Event::Acquired => listener.on_acquired(hold),
            Event::Released => listener.on_released(hold),
            Event::Abort(reason) => listener.on_abort(hold, reason),
            // The hold has ended meanwhile, so its doubts are of no interest any more.
            Event::Suspect | Event::Restored if !hold.0.is_standing() => {}
            Event::Suspect => listener.on_suspect(hold),
            Event::Restored => listener.on_restored(hold),
        }
    }
}

/// One listener, and the events that wait for it.
pub(crate) struct ListenerMailbox {
    /// The lock that it listens to; `None` for all locks of a client.
    lock: Option<LockKey>,
    state: Mutex<State>,
}

struct State {
    /// `None` once the listener has been removed.
    listener: Option<Arc<dyn LockListener>>,
    waiting: EventQueue<Notification>,
    progress: Progress,
}

/// Whether a worker is processing this mailbox, or will do so.
#[derive(PartialEq)]
enum Progress {
    Idle,
    Queued,
}

/// The most events that wait for a listener of one lock.
const MOST_OF_A_LOCK: usize = 1024;

/// The most events that wait for a listener of all locks of a client: losses of many locks at once have to fit.
pub(crate) const MOST_OF_A_CLIENT: usize = 1 << 16;

impl ListenerMailbox {
    pub(crate) fn new(lock: Option<LockKey>, listener: Arc<dyn LockListener>) -> Self {
        let most = if lock.is_some() { MOST_OF_A_LOCK } else { MOST_OF_A_CLIENT };
        let state =
            State { listener: Some(listener), waiting: EventQueue::new(most), progress: Progress::Idle };
        Self { lock, state: Mutex::new(state) }
    }

    /// Returns the lock that the listener listens to; `None` for all locks of a client.
    pub(crate) fn lock(&self) -> Option<&LockKey> {
        self.lock.as_ref()
    }

    /// Queues a notification after all earlier ones. It runs no user code and drops no user value.
    pub(crate) fn post(self: &Arc<Self>, notification: Notification) {
        let mut state = self.state.lock();
        if state.listener.is_none() {
            return;
        }
        let dropped = state.waiting.push(notification.importance(), notification);
        let progress = std::mem::replace(&mut state.progress, Progress::Queued);
        drop(state);
        drop(dropped);
        if progress == Progress::Idle {
            dispatcher::enqueue(self.clone());
        }
    }

    /// Removes the listener and what waits for it.
    pub(crate) fn end(&self) {
        let (listener, waiting) = {
            let mut state = self.state.lock();
            let waiting = std::mem::replace(&mut state.waiting, EventQueue::new(0));
            (state.listener.take(), waiting)
        };
        drop(waiting);
        // The destructor of a listener may panic.
        if catch_unwind(AssertUnwindSafe(move || drop(listener))).is_err() {
            tracing::error!(target: "distlock", "a listener panicked at its end");
        }
    }

    fn log_missed(&self, dropped: u64) {
        let lock = self.lock.as_ref().map(|(name, _)| display(name));
        tracing::warn!(target: "distlock", lock, dropped, "a listener blocked for so long that events were dropped");
    }
}

impl Mailbox for ListenerMailbox {
    fn deliver_one(&self) {
        let (listener, next) = {
            let mut state = self.state.lock();
            (state.listener.clone(), state.waiting.pop())
        };
        let Some(listener) = listener else { return };
        let about = match &next {
            Some(Popped::Event(Notification::OfHold(event, hold))) => Some((hold.name().clone(), *event)),
            Some(Popped::Missed(count)) => {
                self.log_missed(*count);
                None
            }
            _ => None,
        };
        // The listener is dropped inside as well: this may be its last reference, and its destructor may panic too.
        let call = move || match &next {
            Some(Popped::Event(notification)) => notification.deliver(&*listener),
            Some(Popped::Missed(count)) => listener.on_missed(*count),
            None => {}
        };
        if catch_unwind(AssertUnwindSafe(call)).is_err() {
            let (lock, event) = about.unzip();
            tracing::error!(
                target: "distlock", lock = lock.map(display), event = event.map(field::debug), "a listener panicked"
            );
        }
    }

    fn has_more(&self) -> bool {
        let mut state = self.state.lock();
        if state.waiting.is_empty() {
            state.progress = Progress::Idle;
        }
        state.progress == Progress::Queued
    }
}

impl Drop for ListenerMailbox {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::*;
    use crate::api::builder::ClientBuilder;
    use crate::api::client::LockClient;
    use crate::api::fake::Fake;
    use crate::api::lock::DistributedLock;

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
            guard.hold().0.suspect();
            guard.hold().0.renew(crate::runtime::clock::Moment::FOREVER);
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
