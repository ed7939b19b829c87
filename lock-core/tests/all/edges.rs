//! Tests of two events at the same time: a loss and a reentry, a cancelled wait and a grant, an old guard and a new
//! hold.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::support::{
    LEASE, Recorder, SOON, Timed, Told, advance_to_next, eventually, futures_block_on, name, next,
    nothing_more,
};
use lock_core::{
    ClientBuilder, Clock, DistributedLock, EngineChoice, ErrorKind, Hold, LockClient, LockError, LossReason,
    Moment, Operation, Owner, Sleep, Wait,
};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};

const NAME: &str = "orders/42";

fn is_pending<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> bool {
    matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Pending)
}

/// Creates a client whose grants wait until the test's own runtime runs.
fn client_of_this_runtime(server: &MemoryServer) -> LockClient {
    server.client_with(MemoryOptions::new(), ClientBuilder::new().engine(EngineChoice::Caller)).unwrap()
}

/// Has a waker woken at a moment, unless that is over.
fn wakes_at(clock: &Clock, moment: Moment, waker: &Waker) -> Option<Sleep> {
    let mut sleep = clock.sleep_until(moment);
    let woken = std::pin::Pin::new(&mut sleep).poll(&mut Context::from_waker(waker));
    woken.is_pending().then_some(sleep)
}

fn away(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation).retryable()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_finds_its_loss_by_locking_again_strands_no_waiter() {
    struct LockAgain(Arc<dyn DistributedLock>, Owner);
    impl Wake for LockAgain {
        fn wake(self: Arc<Self>) {
            let error = futures_block_on(self.0.acquire_as(self.1, Wait::Forever)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Lost);
        }
    }
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let owner = Owner::new();
    // Rings at the deadline, before the deadline's own alarm.
    let deadline = timed.clock.now().plus(Duration::from_millis(9_700));
    let _alarm = wakes_at(&timed.clock, deadline, &Arc::new(LockAgain(Arc::clone(&lock), owner)).into());
    let _guard = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    timed.server.faults().sever();
    let mut waiting = Box::pin(lock.acquire());
    assert!(is_pending(waiting.as_mut()));
    timed.time.advance_to(deadline);
    timed.server.faults().heal();
    timed.server.lose(&name(NAME), Loss::Expire, Notice::WhenAsked);
    let time = timed.time.clone();
    let passing = tokio::spawn(async move {
        loop {
            time.advance(Duration::from_millis(20));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    drop(tokio::time::timeout(SOON, waiting).await.expect("the next waiter is served").unwrap());
    passing.abort();
}

/// The server says at last that it is gone, and only the thread for deadlines is later.
#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_is_found_after_the_deadline_is_an_expiry() {
    struct Tell(MemoryServer);
    impl Wake for Tell {
        fn wake(self: Arc<Self>) {
            assert!(self.0.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
        }
    }
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    // Rings at the deadline, before the deadline's own alarm.
    let deadline = timed.clock.now().plus(Duration::from_millis(9_700));
    let _alarm = wakes_at(&timed.clock, deadline, &Arc::new(Tell(timed.server.clone())).into());
    let guard = lock.acquire().await.unwrap();
    timed.server.faults().sever();
    timed.time.advance_to(deadline);
    let reason = tokio::time::timeout(SOON, guard.hold().lost()).await.expect("the loss is found");
    assert_eq!(reason, Some(LossReason::Expired));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_not_granted_again_before_the_abort_margin_is_over() {
    let timed = Timed::new();
    let margin = Duration::from_secs(3);
    let builder = Timed::builder(&timed.clock).abort_margin(margin);
    let client = timed.server.client_with(MemoryOptions::new().lease(LEASE), builder).unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    for _ in 0..1000 {
        timed.server.faults().inject(Operation::Renew, Fault::Fail(away(Operation::Renew)));
    }
    let rival = timed.other().mutex(NAME).unwrap();
    timed.time.advance(Duration::from_millis(6_700));
    assert_eq!(guard.lost().await, Some(LossReason::Expired));
    for _ in 0..30 {
        timed.time.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
        assert!(rival.try_acquire().await.unwrap().is_none());
    }
    // The holder may have learned of it a little late.
    timed.time.advance(Duration::from_millis(100));
    client.idle().await;
    assert!(rival.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn an_owner_that_had_the_hold_in_hand_does_not_pass_it_on() {
    let server = MemoryServer::new();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = client_of_this_runtime(&server).mutex(NAME).unwrap();
    let owner = Owner::new();
    let mut first = lock.acquire_as(owner, Wait::Forever);
    let mut second = lock.acquire_as(owner, Wait::Forever);
    let mut other = Box::pin(lock.acquire());
    assert!(is_pending(first.as_mut()) && is_pending(second.as_mut()) && is_pending(other.as_mut()));
    stranger.release().await.unwrap();
    let first = tokio::time::timeout(SOON, first).await.unwrap().unwrap().unwrap();
    let hold = first.hold().clone();
    first.release().await.unwrap();
    drop(second);
    let other = tokio::time::timeout(SOON, other).await.unwrap().unwrap();
    assert!(!hold.is_valid() && hold.token() < other.token());
}

#[tokio::test]
async fn a_reentry_before_the_first_look_is_an_acquisition_with_all_its_events() {
    let server = MemoryServer::new();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = client_of_this_runtime(&server).mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let owner = Owner::new();
    let mut waiting = lock.acquire_as(owner, Wait::Forever);
    assert!(is_pending(waiting.as_mut()));
    stranger.release().await.unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    let guard = lock.acquire_as(owner, Wait::Try).await.unwrap().unwrap();
    drop(waiting);
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    assert!(!guard.hold().is_valid());
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Abort(LossReason::Deleted)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_waiter_has_gone_has_no_events() {
    let server = MemoryServer::new();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let mut waiting = Box::pin(lock.acquire());
    assert!(is_pending(waiting.as_mut()));
    stranger.release().await.unwrap();
    eventually("it is granted", || lock.is_locked()).await;
    drop(waiting);
    client.idle().await;
    assert!(server.is_empty());
    nothing_more(&told, &lock);
}

#[tokio::test]
async fn an_old_guard_does_not_end_a_new_hold_of_its_owner() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let owner = Owner::new();
    let old = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    assert_eq!(lock.acquire_as(owner, Wait::Forever).await.unwrap_err().kind(), ErrorKind::Lost);
    let new = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    assert_eq!(old.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(new.hold().is_valid());
}

#[tokio::test]
async fn the_end_of_a_scope_does_not_end_what_another_scope_of_its_owner_entered_after_a_loss() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let owner = Owner::new();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let (lost, is_lost) = tokio::sync::oneshot::channel::<()>();
    let (first_lock, losing) = (Arc::clone(&lock), server.clone());
    let first = tokio::spawn(owner.scope(async move {
        first_lock.lock().await.unwrap();
        losing.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
        assert_eq!(first_lock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
        lost.send(()).unwrap();
        ended.await.unwrap();
    }));
    is_lost.await.unwrap();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            let hold = lock.hold().unwrap();
            end.send(()).unwrap();
            first.await.unwrap();
            assert!(hold.is_valid(), "{:?}", hold.end());
        })
        .await;
    assert!(server.is_empty());
}

#[tokio::test]
async fn an_entry_that_ends_in_silence_leaves_the_word_of_the_loss_to_the_others() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let owner = Owner::new();
    let guard = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            let lost = owner.scope(async {
                lock.lock().await.unwrap();
                server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
            });
            // Three entries are lost. Two end without a caller that could receive the report: one with a scope, one
            // with a guard.
            lost.await;
            drop(guard);
            assert_eq!(lock.unlock().await.unwrap_err().loss(), Some(LossReason::Deleted));
            assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
        })
        .await;

    // When all entries have ended without a caller, no report is left for the owner's next hold.
    drop(lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap());
    let guard = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    drop(guard);
    drop(lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_goes_after_the_deadline_and_before_its_report_leaves_the_word_of_the_loss() {
    struct Drops(Mutex<Option<lock_core::LockGuard>>);
    impl Wake for Drops {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let owner = Owner::new();
    let drops = Arc::new(Drops(Mutex::default()));
    // Rings at the deadline, before the deadline's own alarm.
    let deadline = timed.clock.now().plus(Duration::from_millis(9_700));
    let _alarm = wakes_at(&timed.clock, deadline, &Arc::clone(&drops).into());
    *drops.0.lock().unwrap() = lock.acquire_as(owner, Wait::Forever).await.unwrap();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            timed.server.faults().sever();
            timed.time.advance_to(deadline);
            assert_eq!(lock.unlock().await.unwrap_err().loss(), Some(LossReason::Expired));
        })
        .await;
}

#[tokio::test]
async fn an_unlocked_entry_is_not_undone_again_at_the_end_of_its_scope() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let owner = Owner::new();
    let guard = lock.acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            lock.unlock().await.unwrap();
        })
        .await;
    assert!(guard.hold().is_valid());
}

#[tokio::test]
async fn a_release_that_fails_does_not_take_the_bodys_result_away_and_names_the_lock() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let broken = || Fault::Fail(LockError::new(ErrorKind::Server, Operation::Connect).because("on purpose"));
    server.faults().inject(Operation::Release, broken());
    assert_eq!(lock.with_lock(async |_| Ok::<_, LockError>(42)).await.unwrap(), 42);
    // The warning is tested in tracing_events.rs.
    let guard = lock.acquire().await.unwrap();
    server.faults().inject(Operation::Release, broken());
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.operation(), error.name()), (Operation::Release, Some(&name(NAME))));
}

#[tokio::test]
async fn a_grant_that_ends_before_the_client_has_seen_it_is_asked_for_again() {
    let server = MemoryServer::new();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    let lock = client_of_this_runtime(&server).mutex(NAME).unwrap();
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    eventually("it waits", || server.waiting_for(&name(NAME)) == 1).await;
    drop(stranger); // it is promoted, and its runtime has not run since
    assert!(server.lose(&name(NAME), Loss::Expire, Notice::AtOnce));
    tokio::time::timeout(SOON, waiting).await.expect("the lock is free").unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_that_fails_is_repeated_until_it_is_certain() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let stranger = server.client().unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    for _ in 0..3 {
        server.faults().inject(Operation::Cancel, Fault::Fail(away(Operation::Cancel)));
    }
    let lock = client.mutex(NAME).unwrap();
    assert!(crate::support::DropAfter::new(1, lock.acquire()).await.is_none());
    client.idle().await;
    assert_eq!(server.waiting_for(&name(NAME)), 0);
    stranger.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_hangs_is_given_up_and_sent_again() {
    let timed = Timed::new();
    let guard = timed.client.mutex(NAME).unwrap().acquire().await.unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Renew, Fault::Delay(gate.clone()));
    timed.time.advance(LEASE / 4);
    gate.reached().await;
    // The first renewal is given up before; no more time passes, however slow the machine is.
    let end = timed.clock.now().plus(LEASE / 2);
    eventually("another renewal gets through", || {
        advance_to_next(&timed.time, end);
        guard.hold().remaining().unwrap() > LEASE * 9 / 10
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_lease_counts_from_before_the_request_was_sent() {
    let timed = Timed::new();
    let guard = timed.client.mutex(NAME).unwrap().acquire().await.unwrap();
    let full = guard.hold().remaining().unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Renew, Fault::DelayReply(gate.clone()));
    timed.time.advance(LEASE / 4);
    gate.reached().await;
    let on_its_way = Duration::from_secs(2);
    timed.time.advance(on_its_way);
    gate.open();
    eventually("it is renewed", || guard.hold().remaining().unwrap() > full.saturating_sub(LEASE / 4)).await;
    assert!(guard.hold().remaining().unwrap() <= full.saturating_sub(on_its_way));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_lease_whose_release_fails_once_is_released() {
    let server = MemoryServer::new();
    let options = MemoryOptions::new().lease(Duration::MAX);
    let client = server.client_with(options, ClientBuilder::new()).unwrap();
    server.faults().inject(Operation::Release, Fault::Fail(away(Operation::Release)));
    client.mutex(NAME).unwrap().acquire().await.unwrap().release().await.unwrap();
    assert!(server.is_empty());
}

#[test]
fn an_alarm_that_owns_another_alarm_does_not_stop_the_deadlines() {
    struct Tells(Mutex<Sender<()>>, Mutex<Option<Sleep>>);
    impl Wake for Tells {
        fn wake(self: Arc<Self>) {
            drop(self.1.lock().unwrap().take());
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let clock = Clock::system();
    let (sender, told) = channel();
    let tells = |owned| Waker::from(Arc::new(Tells(Mutex::new(sender.clone()), Mutex::new(owned))));
    // Again, if the machine stands still for so long.
    let in_seconds = |seconds, waker| {
        let end = || clock.now().plus(Duration::from_secs(seconds));
        std::iter::repeat_with(|| wakes_at(&clock, end(), &waker)).find_map(|sleep| sleep).unwrap()
    };
    let inner = in_seconds(3600, tells(None));
    let _outer = in_seconds(1, tells(Some(inner)));
    told.recv_timeout(SOON).unwrap();
    let _next = in_seconds(1, tells(None));
    told.recv_timeout(SOON).expect("the deadline thread goes on");
}

#[test]
fn a_guard_in_a_thread_local_variable_may_end_with_its_thread() {
    std::thread_local! {
        static GUARD: std::cell::RefCell<Option<lock_core::LockGuard>> = const { std::cell::RefCell::new(None) };
    }
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    std::thread::spawn(move || {
        // Created before tokio's own thread-local variables, so it is dropped after them.
        GUARD.with(|_| ());
        let guard = futures_block_on(lock.acquire()).unwrap();
        GUARD.with(|slot| *slot.borrow_mut() = Some(guard));
    })
    .join()
    .unwrap();
    futures_block_on(client.idle());
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_losses_at_the_same_moment_are_both_reported_although_each_listener_waits_for_the_other() {
    for _ in 0..15 {
        let server = MemoryServer::new();
        let client = server.client().unwrap();
        let seen = Arc::new((Mutex::new(0), Condvar::new()));
        let mut guards = Vec::new();
        for lock in ["a", "b"].map(|name| client.mutex(name).unwrap()) {
            guards.push(lock.acquire().await.unwrap());
            let seen = Arc::clone(&seen);
            lock.add_listener(Arc::new(move |_: &Hold, _: &LossReason| {
                let mut count = seen.0.lock().unwrap();
                *count += 1;
                seen.1.notify_all();
                drop(seen.1.wait_timeout_while(count, SOON, |count| *count < 2).unwrap());
            }))
            .detach();
        }
        let ready = Arc::new(AtomicUsize::new(0));
        let losing = ["a", "b"].map(|lost| {
            let (server, ready) = (server.clone(), Arc::clone(&ready));
            std::thread::spawn(move || {
                ready.fetch_add(1, Ordering::SeqCst);
                while ready.load(Ordering::SeqCst) < 2 {
                    std::hint::spin_loop();
                }
                server.lose(&name(lost), Loss::Delete, Notice::AtOnce);
            })
        });
        for thread in losing {
            thread.join().unwrap();
        }
        let count = seen.0.lock().unwrap();
        let (count, _) = seen.1.wait_timeout_while(count, SOON / 4, |count| *count < 2).unwrap();
        assert_eq!(*count, 2);
        drop(count);
    }
}
