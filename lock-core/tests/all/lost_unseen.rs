//! Tests of grants that are lost before code has seen them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{ByHand, Recorder, Timed, Told, eventually, name, next, nothing_more};
use lock_core::{DistributedLock, ErrorKind, LossReason, Operation, Owner, Wait};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};

const NAME: &str = "orders/42";

/// A server, and a waiter that has been granted the lock and has not seen it yet. Another one waits behind it.
async fn granted_unseen<F: Future>(
    server: &MemoryServer,
    lock: &Arc<dyn DistributedLock>,
    waits: impl FnOnce() -> F,
) -> ByHand<F> {
    let theirs = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let waiter = ByHand::begun(waits());
    eventually("it waits at the server", || server.waiting_for(&name(NAME)) == 1).await;
    theirs.release().await.unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    waiter
}

/// Lets time pass until the next grant.
async fn granted_again(timed: &Timed, lock: &Arc<dyn DistributedLock>) {
    eventually("it is granted again", || {
        let is_granted = lock.is_locked();
        if !is_granted {
            timed.time.advance(Duration::from_millis(1));
        }
        is_granted
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grants_that_are_lost_before_their_waiter_has_looked_are_repeated_ever_more_slowly() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let waiter = granted_unseen(&timed.server, &lock, || lock.acquire()).await;
    for round in 0..7 {
        let lost_at = timed.clock.now();
        assert!(timed.server.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
        granted_again(&timed, &lock).await;
        let paused = timed.clock.now().since(lost_at);
        let least = Duration::from_millis(5) * 2_u32.pow(round);
        assert!(paused >= least, "{paused:?} after {round} losses before");
    }
    waiter.output().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_lost_before_its_waiter_has_looked_does_not_end_the_wait() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let waiter = granted_unseen(&server, &lock, || lock.acquire()).await;
    let behind = ByHand::begun(lock.acquire());
    // A foreign holder has it meanwhile.
    assert!(server.lose(&name(NAME), Loss::Steal, Notice::AtOnce));
    assert!(!lock.is_locked());
    let mut waiter = waiter;
    assert!(waiter.poll().is_none(), "the wait has ended");
    assert!(server.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
    // In its place: before the one that came later.
    let guard = waiter.output().await.unwrap();
    assert!(guard.hold().is_valid());
    guard.release().await.unwrap();
    behind.output().await.unwrap().release().await.unwrap();
    // There are no events about a grant that no owner has seen.
    let all: Vec<_> = (0..4).map(|_| next(&told)).collect();
    assert_eq!(all, [Told::Acquired, Told::Released, Told::Acquired, Told::Released]);
    nothing_more(&told, &lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn branches_of_one_owner_wait_on_together_when_their_grant_is_lost_unseen() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let owner = Owner::new();
    let first = granted_unseen(&server, &lock, || lock.acquire_as(owner, Wait::Forever)).await;
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    eventually("it is granted again", || lock.is_locked()).await;
    // Reentry, although the first branch has not seen the grant.
    let second = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    // Now one branch has seen the hold, so the other gets its loss as the result.
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    assert_eq!(first.output().await.unwrap_err().loss(), Some(LossReason::Deleted));
    assert_eq!(second.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_enters_again_after_an_unseen_loss_gets_no_report_of_it() {
    let timed = Timed::new();
    let builder = Timed::builder(&timed.clock).max_hold(Duration::from_secs(60));
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let lock = client.mutex(NAME).unwrap();
    let owner = Owner::new();
    let first = granted_unseen(&timed.server, &lock, || lock.acquire_as(owner, Wait::Forever)).await;
    timed.time.advance(Duration::from_secs(60));
    let second = ByHand::begun(lock.acquire_as(owner, Wait::Forever));
    granted_again(&timed, &lock).await;
    let second = second.output().await.unwrap().unwrap();
    let guards = (first.output().await.unwrap().unwrap(), second);
    assert!(guards.0.hold().is_valid());
    assert_eq!(guards.0.token(), guards.1.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_try_learns_of_a_loss_before_it_has_looked() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Acquire, Fault::DelayReply(gate.clone()));
    let trying = ByHand::begun(lock.try_acquire());
    gate.open();
    eventually("it is granted", || lock.is_locked()).await;
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    assert_eq!(trying.output().await.unwrap_err().loss(), Some(LossReason::Deleted));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_grant_is_lost_unseen_ends_at_its_deadline_all_the_same() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let waits = || lock.try_acquire_for(Duration::from_secs(5));
    let waiter = granted_unseen(&timed.server, &lock, waits).await;
    timed.server.lose(&name(NAME), Loss::Steal, Notice::AtOnce);
    eventually("it waits at the server again", || {
        timed.time.advance(Duration::from_millis(1));
        timed.server.waiting_for(&name(NAME)) == 1
    })
    .await;
    timed.time.advance(Duration::from_secs(5));
    // Without the lock, whether or not the server has reported the foreign holder by then.
    assert!(!matches!(waiter.output().await, Ok(Some(_))));
}
