//! Locks that are not a client's: their guards, and the scopes that release what they hold.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use lock_core::{
    Clock, DistributedLock, GuardedLock, Hold, HoldControl, HoldEnd, Listeners, LockError, LockGuard,
    LockListener, LockName, LossReason, Operation, Owner, Subscription, Wait,
};

/// A lock without a server that any number of owners may hold, and that counts what ends.
#[derive(Debug, Clone)]
struct Open(Arc<State>);

#[derive(Debug)]
struct State {
    name: LockName,
    clock: Clock,
    listeners: Listeners,
    held: Mutex<Vec<(Owner, HoldControl)>>,
    released: AtomicU64,
    released_in_background: AtomicU64,
}

impl Open {
    fn new() -> Self {
        Self(Arc::new(State {
            name: LockName::new("orders/42").unwrap(),
            clock: Clock::system(),
            listeners: Listeners::new(),
            held: Mutex::default(),
            released: AtomicU64::new(0),
            released_in_background: AtomicU64::new(0),
        }))
    }

    fn ended(&self) -> (u64, u64) {
        (self.0.released.load(Ordering::SeqCst), self.0.released_in_background.load(Ordering::SeqCst))
    }

    fn lose(&self, reason: LossReason) {
        self.0.held.lock().unwrap().iter().for_each(|(_, control)| control.lose(reason));
    }
}

impl State {
    fn end(&self, owner: Owner) -> Result<(), LockError> {
        let mut held = self.held.lock().unwrap();
        let place = held.iter().position(|(other, _)| *other == owner).expect("it was entered");
        let (_, control) = held.remove(place);
        control.release().map_err(|reason| LockError::lost(Operation::Release, &self.name, reason))
    }
}

#[async_trait]
impl DistributedLock for Open {
    fn name(&self) -> &LockName {
        &self.0.name
    }

    fn clock(&self) -> &Clock {
        &self.0.clock
    }

    async fn acquire_as(&self, owner: Owner, _: Wait) -> Result<Option<LockGuard>, LockError> {
        let control = HoldControl::new(self.0.name.clone(), None, self.0.clock.clone());
        let control = control.report_to(&self.0.listeners);
        control.report_acquired();
        let hold = control.hold();
        self.0.held.lock().unwrap().push((owner, control));
        Ok(Some(LockGuard::new(Arc::clone(&self.0) as Arc<dyn GuardedLock>, owner, hold)))
    }

    async fn release_as(&self, owner: Owner) -> Result<(), LockError> {
        if let Some(hold) = self.hold_of(owner) {
            owner.left(&hold);
        }
        self.0.released.fetch_add(1, Ordering::SeqCst);
        self.0.end(owner)
    }

    fn hold_of(&self, owner: Owner) -> Option<Hold> {
        let held = self.0.held.lock().unwrap();
        held.iter().find(|(other, _)| *other == owner).map(|(_, control)| control.hold())
    }

    fn hold_count_of(&self, owner: Owner) -> u64 {
        u64::from(self.hold_of(owner).is_some())
    }

    fn is_locked(&self) -> bool {
        !self.0.held.lock().unwrap().is_empty()
    }

    fn add_listener(&self, listener: Arc<dyn LockListener>) -> Subscription {
        self.0.listeners.add(&self.0.name, listener)
    }
}

#[async_trait]
impl GuardedLock for State {
    fn reenter(&self, owner: Owner, _: &Hold) -> Result<(), LockError> {
        let control = HoldControl::new(self.name.clone(), None, self.clock.clone());
        self.held.lock().unwrap().push((owner, control));
        Ok(())
    }

    async fn release(self: Arc<Self>, owner: Owner, _: &Hold) -> Result<(), LockError> {
        self.released.fetch_add(1, Ordering::SeqCst);
        self.end(owner)
    }

    fn release_in_background(self: Arc<Self>, owner: Owner, _: &Hold) {
        self.released_in_background.fetch_add(1, Ordering::SeqCst);
        self.end(owner).unwrap();
    }
}

#[tokio::test]
async fn each_guard_ends_its_entry_once() {
    let lock = Open::new();
    let guard = lock.acquire().await.unwrap();
    let second = guard.reenter().unwrap();
    drop(second);
    assert_eq!(lock.ended(), (0, 1));
    let hold = guard.hold().clone();
    guard.release().await.unwrap();
    assert_eq!((lock.ended(), hold.end()), ((1, 1), Some(HoldEnd::Released)));
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn a_scope_releases_what_was_locked_in_it_and_not_unlocked() {
    let lock = Open::new();
    Owner::new().scope(async { lock.lock().await }).await.unwrap();
    assert_eq!((lock.ended(), lock.is_locked()), ((0, 1), false));
}

#[tokio::test]
async fn a_scope_does_not_release_again_what_was_unlocked_in_it() {
    let lock = Open::new();
    let in_scope = async {
        lock.lock().await?;
        lock.unlock().await
    };
    Owner::new().scope(in_scope).await.unwrap();
    assert_eq!((lock.ended(), lock.is_locked()), ((1, 0), false));
}

#[tokio::test]
async fn a_loss_reaches_those_who_watch_the_hold_and_the_release() {
    let lock = Open::new();
    let guard = lock.acquire().await.unwrap();
    let lost = tokio::spawn(guard.lost());
    lock.lose(LossReason::Broken);
    assert_eq!(lost.await.unwrap(), Some(LossReason::Broken));
    assert!(!guard.hold().is_valid());
    assert!(guard.release().await.is_err_and(|error| error.loss() == Some(LossReason::Broken)));
}

#[test]
fn what_was_released_cannot_be_lost() {
    let control = HoldControl::new(LockName::new("orders/42").unwrap(), None, Clock::system());
    control.release().unwrap();
    control.lose(LossReason::Broken);
    assert_eq!(control.hold().end(), Some(HoldEnd::Released));
}
