//! Tests that listeners that misbehave affect no other lock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Recorder, SOON, Told, name, next, nothing_more};
use lock_core::{
    ClientBuilder, DistributedLock, Hold, LockClient, LockGuard, LockListener, LossReason, Subscription,
};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};

async fn acquire_all(server: &MemoryServer, count: usize) -> Vec<(Arc<dyn DistributedLock>, LockGuard)> {
    let client = server.client().unwrap();
    let mut held = Vec::new();
    for number in 0..count {
        let lock = client.mutex(format!("lock {number}")).unwrap();
        let guard = lock.acquire().await.unwrap();
        held.push((lock, guard));
    }
    held
}

fn lose_all(server: &MemoryServer, count: usize) {
    for number in 0..count {
        assert!(server.lose(&name(&format!("lock {number}")), Loss::Delete, Notice::AtOnce));
    }
}

fn count(told: &Receiver<usize>, wanted: usize) {
    let mut seen = std::collections::HashSet::new();
    while seen.len() < wanted {
        assert!(seen.insert(told.recv_timeout(SOON).expect("another listener is told")), "told twice");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_losses_at_once_with_listeners_that_panic_and_block() {
    const LOCKS: usize = 10_000;
    const BLOCKING: usize = 20;
    let server = MemoryServer::new();
    let held = acquire_all(&server, LOCKS).await;
    let (sender, told) = channel();
    let blocked = Arc::new(Mutex::new(()));
    let blocking = blocked.lock().unwrap();
    for (number, (lock, _)) in held.iter().enumerate() {
        let (sender, blocked) = (sender.clone(), Arc::clone(&blocked));
        lock.add_listener(Arc::new(move |_: &Hold, _: &LossReason| {
            if number % (LOCKS / BLOCKING) == 1 {
                drop(blocked.lock());
            }
            sender.send(number).unwrap();
            assert!(number % 10 != 0, "on purpose");
        }))
        .detach();
    }
    lose_all(&server, LOCKS);
    // The state of all holds changes before the last one's event is delivered.
    assert!(held.iter().all(|(_, guard)| !guard.hold().is_valid()));
    count(&told, LOCKS - BLOCKING);
    drop(blocking);
    count(&told, BLOCKING);
    assert!(told.recv_timeout(std::time::Duration::from_millis(50)).is_err(), "each is told once");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_one_lock_come_one_at_a_time_and_in_order() {
    struct Slow {
        running: AtomicUsize,
        order: Mutex<Vec<&'static str>>,
        done: Mutex<std::sync::mpsc::Sender<()>>,
    }
    impl Slow {
        fn note(&self, event: &'static str) {
            assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0);
            std::thread::yield_now();
            self.order.lock().unwrap().push(event);
            self.running.fetch_sub(1, Ordering::SeqCst);
            self.done.lock().unwrap().send(()).unwrap();
        }
    }
    impl LockListener for Slow {
        fn on_abort(&self, _: &Hold, _: &LossReason) {
            self.note("abort");
        }
        fn on_acquired(&self, _: &Hold) {
            self.note("acquired");
        }
        fn on_released(&self, _: &Hold) {
            self.note("released");
        }
    }
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex("lock 0").unwrap();
    let (done, told) = channel();
    let slow =
        Arc::new(Slow { running: AtomicUsize::new(0), order: Mutex::default(), done: Mutex::new(done) });
    lock.add_listener(Arc::clone(&slow) as Arc<dyn LockListener>).detach();
    for _ in 0..100 {
        lock.acquire().await.unwrap().release().await.unwrap();
    }
    let guard = lock.acquire().await.unwrap();
    lose_all(&server, 1);
    drop(guard);
    for _ in 0..202 {
        told.recv_timeout(SOON).unwrap();
    }
    let order = slow.order.lock().unwrap();
    assert!(order[..200].chunks(2).all(|pair| pair == ["acquired", "released"]));
    assert_eq!(order[200..], ["acquired", "abort"]);
}

/// Acquires and releases the lock, whose entry is forgotten after that.
async fn acquire_and_release(client: &LockClient, lock: &str) {
    client.mutex(lock).unwrap().acquire().await.unwrap().release().await.unwrap();
    client.idle().await;
}

/// Asserts that the listener gets an acquisition and a release next.
fn next_round(told: &Receiver<Told>) {
    assert_eq!((next(told), next(told)), (Told::Acquired, Told::Released));
}

/// Asserts that the listener has been dropped, and so gets no more events, except these that it has already got.
fn no_more(told: &Receiver<Told>) {
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
}

/// Blocks in `on_acquired` until the test lets it go on.
struct Blocking {
    begun: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
    missed: Mutex<Sender<u64>>,
}

impl LockListener for Blocking {
    fn on_abort(&self, _: &Hold, _: &LossReason) {}

    fn on_acquired(&self, _: &Hold) {
        let _ = self.begun.lock().unwrap().send(());
        let _ = self.go_on.lock().unwrap().recv();
    }

    fn on_missed(&self, count: u64) {
        let _ = self.missed.lock().unwrap().send(count);
    }
}

#[tokio::test]
async fn one_listener_that_blocks_delays_no_other_of_the_same_lock_and_learns_what_it_missed() {
    const ROUNDS: u64 = 600;
    let ((begins, begun), (go_on, waits), (counts, missed)) = (channel(), channel(), channel());
    let client = MemoryServer::new().client().unwrap();
    let lock = client.mutex("lock 0").unwrap();
    let blocking =
        Blocking { begun: Mutex::new(begins), go_on: Mutex::new(waits), missed: Mutex::new(counts) };
    let _blocks = lock.add_listener(Arc::new(blocking));
    let told = Recorder::listen(&lock);
    let (of_client, told_client) = Recorder::new();
    let _subscription = client.add_listener(of_client);
    for round in 0..ROUNDS {
        acquire_and_release(&client, "lock 0").await;
        next_round(&told);
        next_round(&told_client);
        if round == 0 {
            begun.recv_timeout(SOON).unwrap();
        }
    }
    drop(go_on);
    assert_eq!(missed.recv_timeout(SOON).unwrap(), 2 * ROUNDS - 1 - 1024);
}

#[tokio::test]
async fn a_listener_of_a_client_gets_the_events_of_all_its_locks_in_order() {
    let (of_builder, told_from_the_start) = Recorder::new();
    let server = MemoryServer::new();
    let builder = ClientBuilder::new().listener(of_builder);
    let client = server.client_with(MemoryOptions::new(), builder).unwrap();
    let first = client.mutex("first").unwrap();
    let (of_client, told) = Recorder::new();
    client.add_listener(of_client).detach();
    let guard = first.acquire().await.unwrap();
    acquire_and_release(&client, "second").await;
    // Of another client.
    acquire_and_release(&server.client().unwrap(), "second").await;
    assert!(server.lose(&name("first"), Loss::Delete, Notice::AtOnce));
    for told in [told, told_from_the_start] {
        assert_eq!(next(&told), Told::Acquired);
        next_round(&told);
        assert_eq!(next(&told), Told::Abort(LossReason::Deleted));
    }
    drop(guard);
}

#[tokio::test]
async fn a_listener_stays_until_its_subscription_is_dropped_although_no_one_uses_the_lock() {
    let client = MemoryServer::new().client().unwrap();
    let (recorder, told) = Recorder::new();
    let subscription = client.mutex("lock 0").unwrap().add_listener(recorder);
    let (recorder, told_for_ever) = Recorder::new();
    client.mutex("lock 0").unwrap().add_listener(recorder).detach();
    for _ in 0..3 {
        acquire_and_release(&client, "lock 0").await;
        acquire_and_release(&client, "another").await;
        next_round(&told);
    }
    drop(subscription);
    no_more(&told);
    acquire_and_release(&client, "lock 0").await;
    for _ in 0..4 {
        next_round(&told_for_ever);
    }
    drop(client);
    no_more(&told_for_ever);
}

#[tokio::test]
async fn a_listener_that_is_added_during_a_hold_gets_its_loss_and_nothing_that_is_over() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex("lock 0").unwrap();
    let guard = lock.acquire().await.unwrap();
    let told = Recorder::listen(&lock);
    lose_all(&server, 1);
    assert_eq!(next(&told), Told::Abort(LossReason::Deleted));
    drop(guard);
    let told_late = Recorder::listen(&lock);
    nothing_more(&told, &lock);
    next_round(&told_late);
}

#[tokio::test]
async fn a_listener_that_panics_when_it_is_dropped_harms_nothing_even_in_its_own_callback() {
    struct PanicsAtItsEnd {
        subscription: Mutex<Receiver<Subscription>>,
        removed: Mutex<Sender<()>>,
    }
    impl LockListener for PanicsAtItsEnd {
        fn on_abort(&self, _: &Hold, _: &LossReason) {}

        fn on_acquired(&self, _: &Hold) {
            drop(self.subscription.lock().unwrap().recv().unwrap());
            let _ = self.removed.lock().unwrap().send(());
        }
    }
    impl Drop for PanicsAtItsEnd {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let client = MemoryServer::new().client().unwrap();
    let (tells, told_of_removal) = channel();
    let add = || {
        let (sender, receiver) = channel();
        let (subscription, removed) = (Mutex::new(receiver), Mutex::new(tells.clone()));
        (sender, client.add_listener(Arc::new(PanicsAtItsEnd { subscription, removed })))
    };
    let (_, subscription) = add();
    drop(subscription);
    let (to_itself, subscription) = add();
    to_itself.send(subscription).unwrap();
    acquire_and_release(&client, "lock 0").await;
    told_of_removal.recv_timeout(SOON).unwrap();
    let told = Recorder::listen(&client.mutex("lock 0").unwrap());
    acquire_and_release(&client, "lock 0").await;
    next_round(&told);
    assert!(told_of_removal.try_recv().is_err());
}

#[tokio::test]
async fn the_end_of_close_is_the_last_event() {
    struct Last(Sender<&'static str>);
    impl LockListener for Last {
        fn on_abort(&self, _: &Hold, _: &LossReason) {
            let _ = self.0.send("lost");
        }

        fn on_closed(&self) {
            let _ = self.0.send("closed");
        }
    }
    let client = MemoryServer::new().client().unwrap();
    let lock = client.mutex("lock 0").unwrap();
    let guard = lock.acquire().await.unwrap();
    let (sender, told) = channel();
    client.add_listener(Arc::new(Last(sender.clone()))).detach();
    client.close(Duration::ZERO).await.unwrap_err();
    client.close(Duration::ZERO).await.unwrap();
    assert_eq!(told.recv_timeout(SOON).unwrap(), "lost");
    assert_eq!(told.recv_timeout(SOON).unwrap(), "closed");
    lock.add_listener(Arc::new(Last(sender))).detach();
    assert_eq!(told.recv_timeout(SOON).unwrap(), "closed");
    drop((client, lock, guard));
    assert_eq!(told.recv_timeout(SOON), Err(RecvTimeoutError::Disconnected));
}
