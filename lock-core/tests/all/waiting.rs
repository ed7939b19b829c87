//! Tests of waiting for a lock: order, deadlines, and the results that a wait may have.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::{ByHand, SOON, Timed, eventually, name};
use lock_core::{ClientBuilder, DistributedLock, ErrorKind, LockError, Moment, Operation, Owner, Wait};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{MemoryOptions, MemoryServer, Replies};

const NAME: &str = "orders/42";

#[tokio::test(flavor = "multi_thread")]
async fn the_local_front_is_fifo_among_a_thousand_tasks() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let held = lock.acquire().await.unwrap();
    let turn = Arc::new(AtomicUsize::new(0));
    let mut tasks = Vec::new();
    for number in 0..1000 {
        let (lock, turn) = (Arc::clone(&lock), Arc::clone(&turn));
        let (queued, is_queued) = tokio::sync::oneshot::channel();
        tasks.push(tokio::spawn(async move {
            let mut acquiring = Box::pin(lock.acquire());
            std::future::poll_fn(|context| {
                assert!(acquiring.as_mut().poll(context).is_pending());
                std::task::Poll::Ready(())
            })
            .await;
            queued.send(()).unwrap();
            let guard = acquiring.await.unwrap();
            assert_eq!(turn.fetch_add(1, Ordering::SeqCst), number);
            guard.release().await.unwrap();
        }));
        is_queued.await.unwrap();
    }
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn at_most_one_attempt_of_a_client_waits_remotely_and_the_place_is_passed_on() {
    let server = MemoryServer::new();
    let holder = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let ours = server.client().unwrap().mutex(NAME).unwrap();
    let spawn = |lock: &Arc<dyn DistributedLock>| {
        let lock = Arc::clone(lock);
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    };
    let head = spawn(&ours);
    eventually("the head waits", || server.waiting_for(&name(NAME)) == 1).await;
    let second = spawn(&ours);
    let rival_client = server.client().unwrap();
    let rival = spawn(&rival_client.mutex(NAME).unwrap());
    eventually("the rival waits", || server.waiting_for(&name(NAME)) == 2).await;
    let queue = rival_client.status(NAME).await.unwrap().waiters;

    head.abort();
    assert!(head.await.unwrap_err().is_cancelled());
    // The same attempt is still first.
    assert_eq!(rival_client.status(NAME).await.unwrap().waiters[0].id, queue[0].id);
    holder.release().await.unwrap();
    let guard = second.await.unwrap();
    assert!(!rival.is_finished());
    guard.release().await.unwrap();
    rival.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn one_deadline_covers_the_local_and_the_remote_wait() {
    let timed = Timed::new();
    let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = timed.client.mutex(NAME).unwrap();
    let start = timed.clock.now();
    let waits = |length| ByHand::begun(lock.acquire_as(Owner::new(), Wait::within(length, start)));
    let mut long = waits(Duration::from_secs(5));
    eventually("the first waits remotely", || timed.server.waiting_for(&name(NAME)) == 1).await;
    // The second waits behind it, locally, and inherits its attempt; its own deadline counts all the same.
    let mut longer = waits(Duration::from_secs(7));
    timed.time.advance(Duration::from_millis(4_999));
    assert!(long.poll().is_none());
    timed.time.advance(Duration::from_millis(1));
    assert!(long.output().await.unwrap().is_none());
    assert!(longer.poll().is_none());
    timed.time.advance(Duration::from_secs(2));
    assert!(longer.output().await.unwrap().is_none());
    timed.client.idle().await;
    assert_eq!(timed.server.waiting_for(&name(NAME)), 0);
    stranger.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn zero_tries_once_and_the_greatest_duration_waits_for_ever() {
    let timed = Timed::new();
    let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = timed.client.mutex(NAME).unwrap();
    assert!(lock.try_acquire_for(Duration::ZERO).await.unwrap().is_none());
    assert_eq!(timed.server.waiting_for(&name(NAME)), 0);

    let waiting = Arc::clone(&lock);
    let waiting =
        tokio::spawn(async move { waiting.try_acquire_for(Duration::MAX).await.unwrap().is_some() });
    eventually("it waits", || timed.server.waiting_for(&name(NAME)) == 1).await;
    timed.time.advance(Duration::from_secs(100 * 365 * 24 * 3600));
    stranger.release().await.unwrap();
    assert!(waiting.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_with_the_server_unreachable_is_an_error() {
    let timed = Timed::new();
    let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = timed.client.mutex(NAME).unwrap();
    let waiting = Arc::clone(&lock);
    let waiting = tokio::spawn(async move { waiting.try_acquire_for(Duration::from_secs(5)).await });
    eventually("it waits", || timed.server.waiting_for(&name(NAME)) == 1).await;
    timed.server.faults().sever();
    // The driver has noticed once it sleeps before its next attempt.
    eventually("the outage is noticed", || {
        timed.time.next_alarm().is_some_and(|alarm| alarm < timed.clock.now().plus(Duration::from_secs(2)))
    })
    .await;
    timed.time.advance(Duration::from_secs(5));
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.is_retryable());
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    timed.server.faults().heal();
    drop(stranger);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_before_the_server_has_answered_is_an_error() {
    let timed = Timed::new();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Acquire, Fault::Delay(gate.clone()));
    let lock = timed.client.mutex(NAME).unwrap();
    let waiting = tokio::spawn(async move { lock.try_acquire_for(Duration::from_secs(5)).await });
    gate.reached().await;
    timed.time.advance(Duration::from_secs(5));
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    gate.open();
    timed.client.idle().await;
    assert!(timed.server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_errors_are_retried_while_a_waiter_is_left_and_a_lost_reply_holds_once() {
    let server = MemoryServer::new();
    let away = LockError::new(ErrorKind::Unreachable, Operation::Acquire).retryable();
    server.faults().inject(Operation::Acquire, Fault::Fail(away.clone()));
    server.faults().inject(Operation::Acquire, Fault::DropReply);
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let guard = tokio::time::timeout(SOON, lock.acquire()).await.unwrap().unwrap();
    // The grant whose reply was lost was found again, not made twice.
    assert_eq!(guard.token().unwrap().get(), 1);
    guard.release().await.unwrap();
    assert!(server.is_empty());

    server.faults().inject(Operation::Acquire, Fault::Fail(away));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_whose_reply_is_lost_leaves_nothing_behind() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    server.faults().inject(Operation::Acquire, Fault::DropReply);
    let lock = client.mutex(NAME).unwrap();
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    client.idle().await;
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_reported_to_each_waiter_and_not_retried() {
    let server = MemoryServer::new();
    let denied = LockError::new(ErrorKind::Denied, Operation::Acquire).because("no permission");
    server.faults().inject(Operation::Acquire, Fault::Fail(denied));
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let error = lock.acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Denied, Some(&name(NAME))));
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_of_two_branches_of_one_task_end_together() {
    let server = MemoryServer::new();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let both = async { tokio::join!(lock.lock(), lock.lock()) };
    let release = async {
        eventually("they wait", || server.waiting_for(&name(NAME)) == 1).await;
        stranger.release().await.unwrap();
    };
    let ((first, second), ()) =
        tokio::time::timeout(SOON, async { tokio::join!(both, release) }).await.unwrap();
    first.unwrap();
    second.unwrap();
    assert_eq!(lock.hold_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_right_after_a_dropped_guard_waits_for_the_release_that_is_on_its_way() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    drop(lock.acquire().await.unwrap());
    let trying = tokio::spawn(async move { lock.try_acquire().await.unwrap().is_some() });
    gate.reached().await;
    gate.open();
    assert!(trying.await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn tries_at_once_through_a_healthy_server_are_won_by_one_and_refused_to_the_rest() {
    let timed = Timed::new();
    let remote = MemoryOptions::new().replies(Replies::Later);
    let builder = Timed::builder(&timed.clock);
    let lock = timed.server.client_with(remote, builder).unwrap().mutex(NAME).unwrap();
    for _ in 0..50 {
        let tries = (0..4).map(|_| {
            let lock = Arc::clone(&lock);
            tokio::spawn(async move { lock.try_acquire().await.unwrap() })
        });
        // All are answered while the winner still holds.
        let mut guards = Vec::new();
        for tried in tries.collect::<Vec<_>>() {
            guards.extend(tokio::time::timeout(SOON, tried).await.unwrap().unwrap());
        }
        assert_eq!(guards.len(), 1);
        // The next round waits behind this release, which is on its way.
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_never_waits_although_others_behind_it_do() {
    let server = MemoryServer::new();
    let remote = MemoryOptions::new().replies(Replies::Later);
    let lock = server.client_with(remote, ClientBuilder::new()).unwrap().mutex(NAME).unwrap();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Acquire, Fault::Delay(gate.clone()));
    let trying = Arc::clone(&lock);
    let trying = tokio::spawn(async move { trying.try_acquire().await.unwrap().is_some() });
    gate.reached().await;
    let mut waiting = Box::pin(lock.acquire());
    std::future::poll_fn(|context| {
        assert!(waiting.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    gate.open();
    assert!(!tokio::time::timeout(SOON, trying).await.unwrap().unwrap());
    eventually("the other waits", || server.waiting_for(&name(NAME)) == 1).await;
    stranger.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_behind_a_release_that_is_not_answered_is_an_error() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    drop(guard);
    gate.reached().await;
    let wait = Wait::within(Duration::from_secs(5), timed.clock.now());
    let second = Arc::clone(&lock);
    let waiting =
        tokio::spawn(async move { second.acquire_as(Owner::new(), wait).await.map(|guard| guard.is_some()) });
    timed.time.advance(Duration::from_secs(2));
    // A caller that tries once gets the error as soon as the engine has seen that the answer is overdue, and not
    // before.
    let error = tokio::time::timeout(SOON, lock.try_acquire()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    timed.time.advance(Duration::from_secs(3));
    assert_eq!(waiting.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    gate.open();
    timed.client.idle().await;
    assert!(timed.server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_panics_costs_one_call() {
    let server = MemoryServer::new();
    server.faults().inject(Operation::Acquire, Fault::Panic);
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    assert_eq!(lock.acquire().await.unwrap_err().kind(), ErrorKind::Internal);
    lock.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_wait_behind_a_release_on_its_way_waits_for_the_answer() {
    let timed = Timed::new();
    for operation in [Operation::Release, Operation::Cancel] {
        let lock = timed.client.mutex(NAME).unwrap();
        let gate = Gate::new();
        timed.server.faults().inject(operation, Fault::DelayReply(gate.clone()));
        if operation == Operation::Release {
            drop(lock.acquire().await.unwrap());
        } else {
            let stranger = timed.other().mutex(NAME).unwrap().acquire().await.unwrap();
            assert!(crate::support::DropAfter::new(1, lock.acquire()).await.is_none());
            gate.reached().await;
            stranger.release().await.unwrap();
        }
        gate.reached().await;
        let wait = Wait::within(Duration::from_millis(200), timed.clock.now());
        let waiting = Arc::clone(&lock);
        let waiting = tokio::spawn(async move { waiting.acquire_as(Owner::new(), wait).await });
        timed.time.advance(Duration::from_millis(200));
        tokio::task::yield_now().await;
        gate.open();
        // The lock is free, and no other client has used it.
        let guard = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap().unwrap();
        guard.expect("it is free").release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_time_is_up_ends_when_another_is_granted_the_lock() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Acquire, Fault::Delay(gate.clone()));
    let head = ByHand::begun(lock.acquire());
    let length = Duration::from_millis(100);
    let mut behind = ByHand::begun(lock.try_acquire_for(length));
    timed.time.advance(length);
    assert!(behind.poll().is_none(), "the server has not been heard of");
    gate.open();
    let guard = head.output().await.unwrap();
    behind.woken().await;
    assert!(behind.output().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wait_until_a_moment_before_all_time_asks_the_server_once() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Acquire, Fault::Delay(gate.clone()));
    let head = ByHand::begun(lock.acquire());
    let late = ByHand::begun(lock.acquire_as(Owner::new(), Wait::Until(Moment::from_nanoseconds(0))));
    timed.time.advance(Duration::from_secs(1));
    assert_eq!(late.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
    gate.open();
    head.output().await.unwrap().release().await.unwrap();
}

/// The first answer to a release says that it has to be sent again, and then there is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_goes_on_after_the_first_answer_to_a_release_whatever_it_is() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let gate = Gate::new();
    let away = LockError::new(ErrorKind::Unreachable, Operation::Release).retryable();
    server.faults().inject(Operation::Release, Fault::Fail(away));
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let held = lock.acquire().await.unwrap();
    let waiting = ByHand::begun(lock.acquire());
    let released = ByHand::begun(held.release());
    gate.reached().await;
    eventually("it waits at the server", || server.waiting_for(&name(NAME)) == 1).await;
    assert!(!waiting.is_woken() && !released.is_woken());
    gate.open();
    released.output().await.unwrap();
    waiting.output().await.unwrap().release().await.unwrap();
    client.idle().await;
    assert!(server.is_empty());
}

/// Not because the one before was late.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_answered_late_does_not_end_the_waits_behind_the_next() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    for _ in 0..2 {
        let gate = Gate::new();
        timed.server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
        drop(lock.acquire().await.unwrap());
        gate.reached().await;
        let tried = ByHand::begun(lock.try_acquire());
        let wait = Wait::within(Duration::from_millis(500), timed.clock.now());
        let waiting = ByHand::begun(lock.acquire_as(Owner::new(), wait));
        timed.time.advance(Duration::from_millis(500));
        assert!(!tried.is_woken() && !waiting.is_woken(), "the answer is not overdue yet");
        timed.time.advance(Duration::from_millis(500));
        assert_eq!(tried.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
        assert_eq!(waiting.output().await.unwrap_err().kind(), ErrorKind::Unreachable);
        gate.open();
        timed.client.idle().await;
    }
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(timed.server.is_empty());
}
