//! Delivers the events of one lock to its listener, in order.
//!
//! The queue of waiting events is bounded, for each lock and for all locks together. When it is full, suspect and
//! restored events are dropped first, and losses last.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::api::hold::Hold;
use crate::api::listener::LockListener;
use crate::policy::entry::Observer;
use crate::policy::hold::HoldCore;
use crate::policy::hold::reports;
use crate::runtime::dispatcher::{self, Lane};
use crate::runtime::sync::Mutex;
use crate::types::loss::LossReason;

type Event = reports::Event<LossReason>;

/// The listener of one lock, and the events that wait for it.
#[derive(Default)]
pub(crate) struct Announcer {
    listener: Mutex<Option<Arc<dyn LockListener>>>,
    events: Arc<Events>,
}

impl Announcer {
    pub(crate) fn set_listener(&self, listener: Option<Arc<dyn LockListener>>) {
        if listener.is_some() {
            dispatcher::prepare();
        }
        let previous = std::mem::replace(&mut *self.listener.lock(), listener);
        drop(previous);
    }

    pub(crate) fn listener(&self) -> Option<Arc<dyn LockListener>> {
        self.listener.lock().clone()
    }
}

impl Observer for Announcer {
    fn announce(&self, event: Event, hold: &Arc<HoldCore>) {
        if let Some(listener) = self.listener() {
            self.events.post(listener, event, Hold(Arc::clone(hold)));
        }
    }
}

struct Notice {
    listener: Arc<dyn LockListener>,
    event: Event,
    hold: Hold,
}

impl Notice {
    fn deliver(self) {
        let (name, event) = (self.hold.name().clone(), self.event);
        // The listener is dropped inside as well: this may be its last reference, and its destructor may panic too.
        if catch_unwind(AssertUnwindSafe(move || self.call())).is_err() {
            tracing::error!(target: "distlock", lock = %name, ?event, "a listener panicked");
        }
    }

    fn call(self) {
        let Self { listener, event, hold } = self;
        match event {
            Event::Acquired => listener.on_acquired(&hold),
            Event::Released => listener.on_released(&hold),
            Event::Abort(reason) => listener.on_abort(&hold, &reason),
            // The hold has ended meanwhile, so its doubts are of no interest any more.
            Event::Suspect | Event::Restored if !hold.0.is_standing() => {}
            Event::Suspect => listener.on_suspect(&hold),
            Event::Restored => listener.on_restored(&hold),
        }
    }
}

/// The events of one lock.
#[derive(Default)]
struct Events(Mutex<Notices>);

#[derive(Default)]
struct Notices {
    waiting: VecDeque<Notice>,
    /// Listeners of dropped events that no waiting event refers to. Their destructors are user code, so a worker runs
    /// them.
    retired: Vec<Arc<dyn LockListener>>,
    /// How many events were dropped since the last delivery.
    dropped: u64,
    progress: Progress,
}

/// The most events of one lock that wait for a listener that blocks.
const MOST_WAITING: usize = 1024;

/// The most events that wait in total, when all workers are blocked in callbacks; as many losses may wait on top of
/// that.
const MOST_IN_ALL: usize = if cfg!(test) { 1 << 13 } else { 1 << 18 };

/// The number of waiting events, of all locks.
static IN_ALL: AtomicUsize = AtomicUsize::new(0);

impl Notices {
    /// Queues the notice, unless the total limit is reached. Returns the hold of the notice that was dropped instead,
    /// if any.
    fn push(&mut self, notice: Notice) -> Option<Hold> {
        let room = if is_loss(&notice) { 2 * MOST_IN_ALL } else { MOST_IN_ALL };
        if IN_ALL.load(Ordering::Relaxed) >= room {
            return Some(self.give_up(notice));
        }
        self.waiting.push_back(notice);
        IN_ALL.fetch_add(1, Ordering::Relaxed);
        if self.waiting.len() <= MOST_WAITING {
            return None;
        }
        let of = |wanted: fn(&Notice) -> bool| self.waiting.iter().position(wanted);
        let least = of(is_doubt).or_else(|| of(|notice| !is_loss(notice))).unwrap_or(0);
        let dropped = self.waiting.remove(least)?;
        IN_ALL.fetch_sub(1, Ordering::Relaxed);
        Some(self.give_up(dropped))
    }

    /// Returns the hold, and keeps the listener if this may be its last reference.
    fn give_up(&mut self, Notice { listener, hold, .. }: Notice) -> Hold {
        self.dropped += 1;
        let kept = self.waiting.iter().rev().map(|notice| &notice.listener).chain(&self.retired);
        if !kept.into_iter().any(|kept| Arc::ptr_eq(kept, &listener)) {
            self.retired.push(listener);
        }
        hold
    }

    fn pop(&mut self) -> Option<Notice> {
        let notice = self.waiting.pop_front()?;
        IN_ALL.fetch_sub(1, Ordering::Relaxed);
        Some(notice)
    }
}

fn is_loss(notice: &Notice) -> bool {
    matches!(notice.event, Event::Abort(_))
}

fn is_doubt(notice: &Notice) -> bool {
    matches!(notice.event, Event::Suspect | Event::Restored)
}

/// Whether a worker is processing this lane, or will do so.
#[derive(Default, PartialEq)]
enum Progress {
    #[default]
    Idle,
    Queued,
}

impl Events {
    /// Queues `event` for `listener`, after all earlier events.
    ///
    /// The caller holds the mutex of the hold's reports, so this function runs no user code and drops no user value.
    fn post(self: &Arc<Self>, listener: Arc<dyn LockListener>, event: Event, hold: Hold) {
        let mut notices = self.0.lock();
        let dropped = notices.push(Notice { listener, event, hold });
        if notices.waiting.is_empty() {
            return;
        }
        let progress = std::mem::replace(&mut notices.progress, Progress::Queued);
        drop(notices);
        drop(dropped);
        if progress == Progress::Idle {
            dispatcher::enqueue(self.clone());
        }
    }
}

impl Lane for Events {
    fn deliver_one(&self) {
        let (notice, dropped, retired) = {
            let mut notices = self.0.lock();
            (notices.pop(), std::mem::take(&mut notices.dropped), std::mem::take(&mut notices.retired))
        };
        for listener in retired {
            end(listener);
        }
        let Some(notice) = notice else { return };
        if dropped > 0 {
            let lock = notice.hold.name();
            tracing::warn!(target: "distlock", %lock, dropped, "a listener blocked for so long that events were dropped");
        }
        notice.deliver();
    }

    fn wants_another_turn(&self) -> bool {
        let mut notices = self.0.lock();
        if notices.waiting.is_empty() {
            notices.progress = Progress::Idle;
        }
        notices.progress == Progress::Queued
    }
}

/// Drops a listener, whose destructor may panic.
fn end(listener: Arc<dyn LockListener>) {
    if catch_unwind(AssertUnwindSafe(move || drop(listener))).is_err() {
        tracing::error!(target: "distlock", "a listener panicked at its end");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::api::client::LockClient;
    use crate::api::lock::DistributedLock;
    use crate::memory::{Loss, MemoryServer, Told};
    use crate::runtime::dispatcher::{MOST_WORKERS, lanes_that_wait};
    use crate::types::name::LockName;

    const SOON: Duration = Duration::from_secs(60);

    /// The number of waiting events is global to the program, so tests that depend on it must not run at once.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Reports each event that it receives, and then blocks until the test lets it go on.
    struct Blocking {
        tells: Mutex<Sender<Event>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Blocking {
        /// Installs a listener. Returns its events, and a sender that has to be dropped to unblock it.
        fn on(lock: &Arc<dyn DistributedLock>) -> (Receiver<Event>, Sender<()>) {
            let ((tells, told), (block, go_on)) = (channel(), channel());
            lock.set_listener(Some(Arc::new(Self { tells: Mutex::new(tells), go_on: Mutex::new(go_on) })));
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

    /// Waits until no events of another test are left, and keeps other tests out.
    fn alone() -> crate::runtime::sync::MutexGuard<'static, ()> {
        let alone = ALONE.lock();
        while IN_ALL.load(Ordering::Relaxed) > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        alone
    }

    async fn acquire_and_release(lock: &Arc<dyn DistributedLock>, times: usize) {
        for _ in 0..times {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
    }

    fn lock(client: &LockClient, name: &str) -> Arc<dyn DistributedLock> {
        client.mutex(name).unwrap()
    }

    fn lose(server: &MemoryServer, name: &str) {
        assert!(server.lose(&LockName::new(name).unwrap(), Loss::Delete, Told::AtOnce));
    }

    #[tokio::test]
    #[allow(clippy::await_holding_lock)] // a runtime of its own
    async fn what_waits_is_bounded_when_all_workers_are_blocked() {
        let _alone = alone();
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let mut blocked = Vec::new();
        for number in 0..MOST_WORKERS {
            let lock = lock(&client, &format!("blocked {number}"));
            let (told, block) = Blocking::on(&lock);
            let guard = lock.acquire().await.unwrap();
            assert_eq!(told.recv_timeout(SOON).unwrap(), Event::Acquired);
            blocked.push((told, block, guard));
        }
        let mut others = Vec::new();
        for number in 0..2 * MOST_IN_ALL / MOST_WAITING {
            let lock = lock(&client, &format!("other {number}"));
            others.push(Blocking::on(&lock));
            acquire_and_release(&lock, MOST_WAITING).await;
        }
        let lanes = lanes_that_wait();
        assert!(lanes <= others.len(), "{lanes} lanes of {} locks wait", others.len());
        let waiting = IN_ALL.load(Ordering::Relaxed);
        assert!(waiting <= MOST_IN_ALL, "{waiting} events wait");
        // A loss still fits.
        let lost = lock(&client, "lost");
        let (told, go_on) = Blocking::on(&lost);
        let guard = lost.acquire().await.unwrap();
        lose(&server, "lost");
        drop((blocked, others, go_on));
        assert_eq!(told.recv_timeout(SOON).unwrap(), Event::Abort(LossReason::Deleted));
        drop(guard);
    }

    #[tokio::test]
    #[allow(clippy::await_holding_lock)] // a runtime of its own
    async fn doubts_are_dropped_before_acquisitions_and_those_before_losses() {
        let _alone = alone();
        let server = MemoryServer::new();
        let lock = lock(&server.client().unwrap(), "orders/42");
        let (told, go_on) = Blocking::on(&lock);
        let lost = lock.acquire().await.unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), Event::Acquired);
        lose(&server, "orders/42");
        drop(lost);
        let guard = lock.acquire().await.unwrap();
        for _ in 0..MOST_WAITING {
            guard.hold().0.declare_suspect();
            guard.hold().0.declare_restored();
        }
        guard.release().await.unwrap();
        acquire_and_release(&lock, MOST_WAITING / 2 - 2).await;
        // So far only doubts have been dropped; from here on, only the oldest acquisitions.
        acquire_and_release(&lock, 1).await;
        drop(go_on);
        let mut heard = Vec::new();
        while heard.len() < MOST_WAITING {
            heard.push(told.recv_timeout(SOON).unwrap());
        }
        assert_eq!(heard[..2], [Event::Abort(LossReason::Deleted), Event::Released]);
        let acquired = heard.iter().filter(|event| **event == Event::Acquired).count();
        assert_eq!(acquired, MOST_WAITING / 2 - 1);
    }
}
