//! Tests of wakers, which are user code: one may drop the future that registered it, and its destructor may use the
//! lock.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use crate::support::{SOON, Timed, futures_block_on, name};
use lock_core::{Clock, LockClient, Operation};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryServer, Told};

const NAME: &str = "orders/42";

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// When woken, drops the future that registered it, and reports it.
struct DropsFuture {
    future: Mutex<Option<Task>>,
    dropped: Mutex<Sender<()>>,
}

impl Wake for DropsFuture {
    fn wake(self: Arc<Self>) {
        let future = self.future.lock().unwrap().take();
        if future.is_some() {
            drop(future);
            let _ = self.dropped.lock().unwrap().send(());
        }
    }
}

/// Polls the future, which must wait, with a waker that drops it. Returns the channel that reports the drop.
fn dropped_when_woken(future: impl Future<Output = ()> + Send + 'static) -> Receiver<()> {
    let (sender, receiver) = channel();
    let waker = Arc::new(DropsFuture { future: Mutex::default(), dropped: Mutex::new(sender) });
    let mut future: Task = Box::pin(future);
    assert!(is_pending(&mut future, &Waker::from(Arc::clone(&waker))));
    *waker.future.lock().unwrap() = Some(future);
    receiver
}

/// Runs a task when its last clone is dropped.
struct OnDrop(Mutex<Option<Task>>);

impl Wake for OnDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(end) = self.0.lock().unwrap().take() {
            futures_block_on(end);
        }
    }
}

fn on_drop(end: impl FnOnce() + Send + 'static) -> Waker {
    Arc::new(OnDrop(Mutex::new(Some(Box::pin(async { end() }))))).into()
}

fn is_pending(future: &mut Task, waker: &Waker) -> bool {
    future.as_mut().poll(&mut Context::from_waker(waker)).is_pending()
}

/// Runs `act` on a thread of its own, and fails if it does not return.
#[track_caller]
fn comes_back(act: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        act();
        let _ = sender.send(());
    });
    receiver.recv_timeout(SOON).expect("it fails, or never comes back");
}

fn acquire(client: &LockClient) -> Task {
    let lock = client.mutex(NAME).unwrap();
    Box::pin(async move { drop(lock.acquire().await) })
}

#[test]
fn a_waiters_waker_may_look_at_the_lock_when_it_is_replaced_and_when_its_waiter_leaves() {
    comes_back(|| {
        let client = MemoryServer::new().client().unwrap();
        let lock = client.mutex(NAME).unwrap();
        let _guard = futures_block_on(lock.acquire()).unwrap();
        let mut waiting = acquire(&client);
        let looks = || {
            let lock = Arc::clone(&lock);
            on_drop(move || assert!(lock.is_locked()))
        };
        assert!(is_pending(&mut waiting, &looks()));
        assert!(is_pending(&mut waiting, Waker::noop()));
        assert!(is_pending(&mut waiting, &looks()));
        drop(waiting);
    });
}

#[test]
fn a_watchers_waker_may_look_at_the_hold_when_it_is_replaced_and_when_its_watcher_goes() {
    comes_back(|| {
        let client = MemoryServer::new().client().unwrap();
        let guard = futures_block_on(client.mutex(NAME).unwrap().acquire()).unwrap();
        let lost = guard.lost();
        let mut lost: Task = Box::pin(async move {
            lost.await;
        });
        let looks = || {
            let hold = guard.hold().clone();
            on_drop(move || assert!(hold.is_valid()))
        };
        assert!(is_pending(&mut lost, &looks()));
        assert!(is_pending(&mut lost, Waker::noop()));
        assert!(is_pending(&mut lost, &looks()));
        drop(lost);
    });
}

#[test]
fn a_sleepers_waker_may_let_the_time_pass_when_it_is_replaced() {
    comes_back(|| {
        let (clock, time) = Clock::manual();
        let moment = clock.now().plus(Duration::from_secs(1));
        let mut sleep: Task = Box::pin(clock.sleep_until(moment));
        assert!(is_pending(&mut sleep, &on_drop(move || time.advance_to(moment))));
        let (sender, woken) = channel();
        // The alarm wakes the waker that was registered last.
        let next = Arc::new(DropsFuture { future: Mutex::default(), dropped: Mutex::new(sender) });
        *next.future.lock().unwrap() = Some(Box::pin(async {}));
        assert!(is_pending(&mut sleep, &Waker::from(next)));
        woken.recv_timeout(SOON).unwrap();
        assert!(!is_pending(&mut sleep, Waker::noop()));
    });
}

#[test]
fn a_wait_may_be_dropped_by_the_waker_of_its_grant() {
    comes_back(|| {
        let server = MemoryServer::new();
        let (ours, theirs) = (server.client().unwrap(), server.client().unwrap());
        for holder in [&ours, &theirs] {
            let guard = futures_block_on(holder.mutex(NAME).unwrap().acquire()).unwrap();
            let dropped = dropped_when_woken(acquire(&ours));
            futures_block_on(guard.release()).unwrap();
            dropped.recv_timeout(SOON).unwrap();
            futures_block_on(ours.idle());
            assert!(server.is_empty());
        }
    });
}

#[test]
fn a_wait_may_be_dropped_by_the_waker_of_its_deadline() {
    comes_back(|| {
        let timed = Timed::new();
        let guard = futures_block_on(timed.other().mutex(NAME).unwrap().acquire()).unwrap();
        let lock = timed.client.mutex(NAME).unwrap();
        let dropped = dropped_when_woken(async move {
            drop(lock.try_acquire_for(Duration::from_secs(1)).await);
        });
        timed.time.advance(Duration::from_secs(1));
        dropped.recv_timeout(SOON).unwrap();
        futures_block_on(timed.client.idle());
        assert_eq!(timed.server.waiting_for(&name(NAME)), 0);
        drop(guard);
    });
}

#[test]
fn a_wait_may_be_dropped_by_the_waker_of_the_servers_first_word() {
    comes_back(|| {
        let timed = Timed::new();
        let guard = futures_block_on(timed.other().mutex(NAME).unwrap().acquire()).unwrap();
        let gate = Gate::new();
        timed.server.faults().inject(Operation::Acquire, Fault::Delay(gate.clone()));
        let lock = timed.client.mutex(NAME).unwrap();
        let mut waiting: Task = Box::pin(async move {
            drop(lock.try_acquire_for(Duration::from_millis(1)).await);
        });
        assert!(is_pending(&mut waiting, Waker::noop()));
        timed.time.advance(Duration::from_millis(1));
        let dropped = dropped_when_woken(waiting);
        gate.open();
        dropped.recv_timeout(SOON).unwrap();
        futures_block_on(timed.client.idle());
        assert_eq!(timed.server.waiting_for(&name(NAME)), 0);
        drop(guard);
    });
}

#[test]
fn a_watch_may_be_dropped_by_the_waker_of_the_loss() {
    comes_back(|| {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let guard = futures_block_on(client.mutex(NAME).unwrap().acquire()).unwrap();
        let lost = guard.lost();
        let dropped = dropped_when_woken(async move {
            lost.await;
        });
        assert!(server.lose(&name(NAME), Loss::Delete, Told::AtOnce));
        dropped.recv_timeout(SOON).unwrap();
        assert!(!guard.hold().is_valid());
    });
}

#[test]
fn a_release_may_be_dropped_by_the_waker_of_its_answer_and_so_may_those_who_wait_for_quiet() {
    comes_back(|| {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let guard = futures_block_on(client.mutex(NAME).unwrap().acquire()).unwrap();
        let gate = Gate::new();
        server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
        let mut all = vec![dropped_when_woken(async { drop(guard.release().await) })];
        let (idle, close) = (client.clone(), client.clone());
        all.push(dropped_when_woken(async move { idle.idle().await }));
        all.push(dropped_when_woken(async move { drop(close.close(SOON).await) }));
        gate.open();
        for dropped in all {
            dropped.recv_timeout(SOON).unwrap();
        }
        futures_block_on(client.idle());
        assert!(server.is_empty());
    });
}

#[test]
fn a_close_and_a_wait_of_one_task_may_be_dropped_by_the_waker_of_the_last_release() {
    comes_back(|| {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let guard = futures_block_on(client.mutex(NAME).unwrap().acquire()).unwrap();
        let (mut waiting, close) = (acquire(&client), client.clone());
        let dropped = dropped_when_woken(async move {
            let mut closing: Task = Box::pin(async move { drop(close.close(SOON).await) });
            std::future::poll_fn(|context| {
                let _ = waiting.as_mut().poll(context);
                closing.as_mut().poll(context)
            })
            .await;
        });
        futures_block_on(guard.release()).unwrap();
        dropped.recv_timeout(SOON).unwrap();
        futures_block_on(client.idle());
        assert!(server.is_empty());
    });
}

/// Panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

#[test]
fn a_waker_that_panics_at_the_end_of_a_wait_delays_no_loss() {
    comes_back(|| {
        let timed = Timed::new();
        let longest = Duration::from_secs(30);
        let builder = Timed::builder(&timed.clock).max_hold(longest);
        let client = timed.server.client_with(lock_memory::MemoryOptions::new(), builder).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let guard = futures_block_on(lock.acquire()).unwrap();
        let mut waiting: Task =
            Box::pin(async move { drop(lock.try_acquire_for(Duration::from_secs(1)).await) });
        assert!(is_pending(&mut waiting, &Waker::from(Arc::new(Panics))));
        timed.time.advance(Duration::from_secs(1));
        timed.time.advance(longest);
        assert!(guard.hold().end().is_some(), "the loss has not been noticed");
    });
}
