//! Wakers are user code: one may drop the future that registered it, and its drop may call the lock again.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use lock_core::{Backend, ClientBuilder, Clock, InspectRequest, LockClient, LockName, Wait};
use rustix::fs::FlockOperation;

use super::attempts::Bare;
use super::{SOON, Scratch, block_on, patient};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

fn is_pending(future: &mut Task, waker: &Waker) -> bool {
    future.as_mut().poll(&mut Context::from_waker(waker)).is_pending()
}

/// Runs a function when it is woken, or otherwise when its last clone is dropped.
struct Acts(Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Acts {
    fn waker(act: impl FnOnce() + Send + 'static) -> Waker {
        Arc::new(Self(Mutex::new(Some(Box::new(act))))).into()
    }

    fn act(&self) {
        let act = self.0.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
    }
}

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        self.act();
    }
}

impl Drop for Acts {
    fn drop(&mut self) {
        self.act();
    }
}

/// Runs `act` on a thread of its own; fails if it does not return.
#[track_caller]
fn comes_back(act: impl FnOnce() + Send + 'static) {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        act();
        let _ = sender.send(());
    });
    receiver.recv_timeout(SOON).expect("it fails, or never comes back");
}

/// Keeps all clients out of the gate until it is dropped.
fn occupy_the_gate(scratch: &Scratch) -> std::fs::File {
    let gate = std::fs::File::open(scratch.path.join("gate")).unwrap();
    rustix::fs::flock(&gate, FlockOperation::LockExclusive).unwrap();
    gate
}

#[test]
fn an_attempts_waker_may_cancel_the_attempt_when_it_is_replaced() {
    comes_back(|| {
        let scratch = Scratch::new();
        let bare = Arc::new(Bare::new(&scratch));
        let holder = bare.request(1, "a", Wait::Forever);
        let _held = block_on(bare.backend.acquire(&holder)).unwrap();
        let request = Arc::new(bare.request(2, "a", Wait::Forever));
        let mut waiting: Task = {
            let (bare, request) = (Arc::clone(&bare), Arc::clone(&request));
            Box::pin(async move { drop(bare.backend.acquire(&request).await) })
        };
        let cancels = Acts::waker(move || block_on(bare.backend.cancel(&request)).unwrap());
        assert!(is_pending(&mut waiting, &cancels));
        drop(cancels);
        assert!(is_pending(&mut waiting, Waker::noop()));
        // The attempt was cancelled, so the future ends.
        assert!(!is_pending(&mut waiting, Waker::noop()));
    });
}

#[test]
fn the_waker_of_a_status_may_wait_for_the_answer_when_it_is_replaced() {
    comes_back(|| {
        let scratch = Scratch::new();
        let bare = Bare::new(&scratch);
        let gate = occupy_the_gate(&scratch);
        let name = LockName::new("a").unwrap();
        let physical = bare.backend.capabilities().names.apply(&name);
        let mut asking: Task = Box::pin(async move {
            bare.backend.inspect(&InspectRequest::new(name, physical)).await.unwrap();
        });
        let (sender, answered) = channel();
        let waits = Acts::waker(move || {
            drop(gate);
            answered.recv_timeout(SOON).unwrap();
        });
        assert!(is_pending(&mut asking, &waits));
        drop(waits);
        let next = Acts::waker(move || sender.send(()).unwrap());
        assert!(is_pending(&mut asking, &next));
        assert!(!is_pending(&mut asking, Waker::noop()));
    });
}

/// A wait whose time is up, but which has had no event yet: the first event ends it. The receiver learns that its waker has
/// dropped the wait, and that nothing was left of it then.
fn wait_for_the_first_word(client: &LockClient, pass: impl Fn(Duration)) -> Receiver<()> {
    loop {
        let lock = client.mutex("a").unwrap();
        let mut waiting: Task =
            Box::pin(async move { drop(lock.try_acquire_for(Duration::from_millis(1)).await) });
        assert!(is_pending(&mut waiting, Waker::noop()));
        pass(Duration::from_millis(1));
        let (future, client) = (Arc::new(Mutex::new(None::<Task>)), client.clone());
        let (sender, dropped): (Sender<()>, _) = channel();
        let drops = {
            let future = Arc::clone(&future);
            Acts::waker(move || {
                let future = future.lock().unwrap().take();
                drop(future);
                block_on(client.idle());
                let _ = sender.send(());
            })
        };
        let mut place = future.lock().unwrap();
        // On a slow machine the event has arrived by now.
        if is_pending(&mut waiting, &drops) {
            *place = Some(waiting);
            return dropped;
        }
    }
}

#[test]
fn a_wait_may_be_dropped_by_the_waker_of_the_first_word_about_the_gate_or_the_queue() {
    for frees_the_gate in [false, true] {
        comes_back(move || {
            let scratch = Scratch::new();
            let (clock, time) = Clock::manual();
            let client = patient(&scratch.path).client(ClientBuilder::new().clock(clock)).unwrap();
            let rival = scratch.client();
            let guard = block_on(rival.mutex("a").unwrap().acquire()).unwrap();
            let gate = occupy_the_gate(&scratch);
            let dropped = wait_for_the_first_word(&client, |duration| time.advance(duration));
            let gate = (!frees_the_gate).then_some(gate);
            dropped.recv_timeout(SOON).unwrap();
            drop(gate);
            assert!(super::status(&rival, "a").waiters.is_empty());
            drop(guard);
        });
    }
}
