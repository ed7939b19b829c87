//! A listener that writes down what it is told, and when.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use conformance_tests::Outcome;
use lock_core::{DistributedLock, Hold, LockListener, LossReason};
use tokio::sync::Notify;

use crate::case::ensure;
use crate::stage::soon;

/// One event, as a listener was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Acquired,
    Released,
    Suspect,
    Restored,
    Abort(LossReason),
}

/// Writes down what it is told.
#[derive(Debug, Default)]
pub struct Diary {
    events: Mutex<Vec<(Event, Instant)>>,
    changed: Notify,
}

impl Diary {
    /// A diary that listens to the lock.
    pub fn of(lock: &Arc<dyn DistributedLock>) -> Arc<Self> {
        let diary = Arc::new(Self::default());
        lock.set_listener(Some(Arc::clone(&diary) as Arc<dyn LockListener>));
        diary
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Event, Instant)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn events(&self) -> Vec<Event> {
        self.lock().iter().map(|(event, _)| *event).collect()
    }

    fn first(&self, wanted: impl Fn(Event) -> bool) -> Option<(Event, Instant)> {
        self.lock().iter().find(|(event, _)| wanted(*event)).copied()
    }

    fn count(&self, wanted: impl Fn(Event) -> bool) -> usize {
        self.lock().iter().filter(|(event, _)| wanted(*event)).count()
    }

    async fn has(&self, what: &str, wanted: impl Fn(Event) -> bool) -> Outcome<(Event, Instant)> {
        let noted = async {
            loop {
                let changed = self.changed.notified();
                if let Some(found) = self.first(&wanted) {
                    return found;
                }
                changed.await;
            }
        };
        soon(what, noted).await
    }

    /// When contact was reported lost.
    pub async fn suspect(&self) -> Outcome<Instant> {
        Ok(self.has("on_suspect", |event| event == Event::Suspect).await?.1)
    }

    /// When contact was reported to have returned.
    pub async fn restored(&self) -> Outcome<Instant> {
        Ok(self.has("on_restored", |event| event == Event::Restored).await?.1)
    }

    /// When the loss was reported, and why; fails when it is reported more than once.
    pub async fn abort(&self) -> Outcome<(LossReason, Instant)> {
        let (event, at) = self.has("on_abort", |event| matches!(event, Event::Abort(_))).await?;
        let aborts = self.aborts();
        ensure!(aborts == 1, "{aborts} aborts: {:?}", self.events());
        match event {
            Event::Abort(reason) => Ok((reason, at)),
            other => Err(conformance_tests::Failure::new(format!("{other:?} is no abort"))),
        }
    }

    pub fn aborts(&self) -> usize {
        self.count(|event| matches!(event, Event::Abort(_)))
    }

    fn note(&self, event: Event) {
        self.lock().push((event, Instant::now()));
        self.changed.notify_waiters();
    }
}

impl LockListener for Diary {
    fn on_abort(&self, _: &Hold, reason: &LossReason) {
        self.note(Event::Abort(*reason));
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
