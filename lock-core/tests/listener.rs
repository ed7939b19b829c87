//! Tests that listeners that misbehave affect no other lock.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // also in shared functions of the tests

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use lock_core::memory::{Loss, MemoryServer, Told as Notice};
use lock_core::{DistributedLock, Hold, LockGuard, LossReason};
use support::{SOON, name};

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
        lock.set_listener(Some(Arc::new(move |_: &Hold, _: &LossReason| {
            if number % (LOCKS / BLOCKING) == 1 {
                drop(blocked.lock());
            }
            sender.send(number).unwrap();
            assert!(number % 10 != 0, "on purpose");
        })));
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
    impl lock_core::LockListener for Slow {
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
    lock.set_listener(Some(Arc::clone(&slow) as Arc<dyn lock_core::LockListener>));
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
