//! Tests of losing a lock: one outcome, one event, in time.

use std::future::pending;
use std::sync::Arc;
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use crate::support::{ByHand, LEASE, Recorder, SOON, Timed, Told, eventually, name, next, nothing_more};
use lock_core::{
    ClientBuilder, DistributedLock, EngineChoice, ErrorKind, Hold, HoldEnd, LockError, LossReason, Operation,
    Owner, Wait,
};
use lock_kit::LockUrl;
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};

const NAME: &str = "orders/42";

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_while_held_is_a_level_and_one_event_and_the_owner_is_notified_once() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    lock.lock().await.unwrap();
    lock.lock().await.unwrap();
    let hold = lock.hold().unwrap();
    assert_eq!(next(&told), Told::Acquired);

    assert!(server.lose(&name(NAME), Loss::Delete, Notice::AtOnce));
    assert_eq!(next(&told), Told::Abort(LossReason::Deleted));
    assert_eq!(hold.lost().await, Some(LossReason::Deleted));
    assert_eq!(hold.end(), Some(HoldEnd::Lost(LossReason::Deleted)));
    assert_eq!(hold.remaining(), Some(Duration::ZERO));
    assert!(!lock.is_held() && lock.hold().is_none());

    let error = lock.unlock().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Deleted)));
    assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
    nothing_more(&told, &lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_the_end_of_a_hold_says_the_same_whenever_it_is_polled_again() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    for loss in [Some(LossReason::Deleted), None] {
        let guard = lock.acquire().await.unwrap();
        let end = loss.map_or(HoldEnd::Released, HoldEnd::Lost);
        let (mut lost, mut late) = (ByHand::begun(guard.lost()), ByHand::of(guard.lost()));
        let mut ended = ByHand::begun(guard.hold().ended());
        if loss.is_some() {
            server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
            lost.woken().await;
        }
        assert_eq!(guard.release().await.err().and_then(|error| error.loss()), loss);
        for _ in 0..3 {
            assert_eq!((lost.poll(), late.poll(), ended.poll()), (Some(loss), Some(loss), Some(end)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_front_is_free_after_a_loss_although_the_owner_never_unlocks() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    lock.lock().await.unwrap();
    let waiting = Arc::clone(&lock);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap().release().await });
    server.lose(&name(NAME), Loss::Expire, Notice::AtOnce);
    waiting.await.unwrap().unwrap();
    // The owner gets the error when it locks again, once.
    assert_eq!(lock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
    lock.lock().await.unwrap();
    lock.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_in_a_scope_gets_the_error_as_well() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    guard
        .owner()
        .scope(async {
            server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
            guard.hold().lost().await;
            assert_eq!(lock.lock().await.unwrap_err().kind(), ErrorKind::Lost);
        })
        .await;
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_of_a_lost_hold_says_so_and_cannot_be_reentered() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    server.lose(&name(NAME), Loss::Steal, Notice::AtOnce);
    assert_eq!(guard.lost().await, Some(LossReason::Taken));
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(LossReason::Taken));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_is_lost_while_its_reply_is_on_its_way_is_ignored_and_the_wait_goes_on() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let gate = Gate::new();
    server.faults().inject(Operation::Acquire, Fault::DelayReply(gate.clone()));
    let waiting = Arc::clone(&lock);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    gate.reached().await;
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    gate.open();
    let guard = waiting.await.unwrap();
    assert_eq!(guard.token().unwrap().get(), 2);
    assert!(guard.hold().is_valid());
    guard.release().await.unwrap();
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));

    // A caller that tries once has no time for another attempt.
    let gate = Gate::new();
    server.faults().inject(Operation::Acquire, Fault::DelayReply(gate.clone()));
    let trying = Arc::clone(&lock);
    let trying = tokio::spawn(async move { trying.try_acquire().await.map(drop) });
    gate.reached().await;
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    gate.open();
    assert_eq!(trying.await.unwrap().unwrap_err().loss(), Some(LossReason::Deleted));
    nothing_more(&told, &lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_that_the_release_finds_is_its_answer_and_no_abort_follows() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    let hold = guard.hold().clone();
    server.lose(&name(NAME), Loss::Delete, Notice::WhenAsked);
    assert_eq!(guard.release().await.unwrap_err().loss(), Some(LossReason::Deleted));
    assert_eq!(hold.end(), Some(HoldEnd::Lost(LossReason::Deleted)));
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
    nothing_more(&told, &lock);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_after_the_release_has_begun_fires_nothing() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    let gate = Gate::new();
    server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let releasing = tokio::spawn(guard.release());
    gate.reached().await;
    server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
    gate.open();
    assert_eq!(releasing.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
    nothing_more(&told, &lock);
}

/// A hold without a lease, which the server never ends by itself. Its guard is dropped, and because of `fault` its
/// release is not answered until `heal`.
async fn a_dropped_guard_ends_its_hold(fault: impl FnOnce(&MemoryServer), heal: impl FnOnce(&MemoryServer)) {
    let timed = Timed::new();
    let client = timed.other();
    let lock = client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    let hold = guard.hold().clone();
    fault(&timed.server);
    drop(guard);
    timed.time.advance(Duration::from_millis(9_999));
    assert_eq!(hold.end(), None);
    eventually("the hold ends", || {
        timed.time.advance(Duration::from_millis(1));
        hold.end().is_some()
    })
    .await;
    assert_eq!((hold.lost().await, hold.ended().await), (None, HoldEnd::Released));
    assert_eq!((next(&told), next(&told)), (Told::Acquired, Told::Released));
    // The release itself is repeated until the server has answered.
    assert!(!timed.server.is_empty());
    heal(&timed.server);
    eventually("it is released", || {
        timed.time.advance(Duration::from_secs(1));
        timed.server.is_empty()
    })
    .await;
    client.idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_for_its_observers_although_the_server_is_away() {
    a_dropped_guard_ends_its_hold(|server| server.faults().sever(), |server| server.faults().heal()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_for_its_observers_although_the_server_is_silent() {
    let gate = Gate::new();
    let silent = Fault::Delay(gate.clone());
    a_dropped_guard_ends_its_hold(
        |server| server.faults().inject(Operation::Release, silent),
        |_| gate.open(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn not_mine_on_a_repeated_release_means_released() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    server.faults().inject(Operation::Release, Fault::DropReply);
    guard.release().await.unwrap();
    assert!(server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_finds_a_loss() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    timed.server.lose(&name(NAME), Loss::Steal, Notice::WhenAsked);
    assert!(guard.hold().is_valid());
    timed.time.advance(LEASE / 4);
    assert_eq!(next(&told), Told::Abort(LossReason::Taken));
    assert!(!guard.hold().is_valid());
}

/// Lets `step` pass again and again, and lets the engine work in between, until `condition` holds. When `at_most` has
/// passed, it waits for the condition without letting more time pass: so on a slow machine nothing happens that takes
/// longer than that.
async fn advance_until(
    timed: &Timed,
    step: Duration,
    at_most: Duration,
    mut condition: impl FnMut() -> bool,
) -> Duration {
    let start = timed.clock.now();
    let passed = || timed.clock.now().since(start);
    eventually("it comes to be while time passes", || {
        let holds = condition();
        if !holds {
            timed.time.advance(step.min(at_most.saturating_sub(passed())));
        }
        holds
    })
    .await;
    passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_short_break_is_suspect_then_restored_and_a_long_one_is_lost_before_the_lease_ends() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    let step = Duration::from_millis(50);

    timed.server.faults().sever();
    let mut seen = Vec::new();
    advance_until(&timed, step, LEASE / 2, || {
        seen.extend(told.try_iter());
        !seen.is_empty()
    })
    .await;
    assert_eq!(seen, [Told::Suspect]);
    assert!(guard.hold().is_valid());

    timed.server.faults().heal();
    advance_until(&timed, step, LEASE / 4, || {
        seen.extend(told.try_iter());
        seen.len() == 2
    })
    .await;
    assert_eq!(seen, [Told::Suspect, Told::Restored]);

    // Renewed for many leases, without an event.
    for _ in 0..100 {
        timed.time.advance(LEASE / 10);
        eventually("it is renewed", || guard.hold().remaining().unwrap() > LEASE / 2).await;
    }
    assert!(told.try_recv().is_err());

    timed.server.faults().sever();
    let remaining = guard.hold().remaining().unwrap();
    // The renewal fails before the deadline, however slow the machine is.
    let mut waited = advance_until(&timed, step, LEASE / 2, || {
        seen.extend(told.try_iter());
        seen.len() == 3
    })
    .await;
    waited += advance_until(&timed, step, remaining.saturating_sub(waited), || {
        seen.extend(told.try_iter());
        seen.len() == 4
    })
    .await;
    assert_eq!(seen[2..], [Told::Suspect, Told::Abort(LossReason::Expired)]);
    assert_eq!(waited, remaining);
    assert!(waited < LEASE);
    timed.server.faults().heal();
    assert_eq!(guard.release().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_ends_at_the_length_that_the_client_bounds_it_to() {
    let timed = Timed::new();
    let builder = Timed::builder(&timed.clock).max_hold(Duration::from_secs(60));
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let lock = client.mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    timed.time.advance(Duration::from_millis(59_999));
    assert!(guard.hold().is_valid());
    timed.time.advance(Duration::from_millis(1));
    assert_eq!(guard.hold().end(), Some(HoldEnd::Lost(LossReason::Expired)));
    client.idle().await;
    assert!(timed.server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_does_not_lengthen_a_hold_beyond_that() {
    let timed = Timed::new();
    let builder = Timed::builder(&timed.clock).max_hold(LEASE * 2);
    let client = timed.server.client_with(MemoryOptions::new().lease(LEASE), builder).unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    for _ in 0..4 {
        let before = guard.hold().remaining();
        timed.time.advance(LEASE / 4);
        eventually("a renewal", || guard.hold().remaining() >= before).await;
    }
    timed.time.advance(LEASE / 4);
    eventually("the last renewal", || guard.hold().remaining() == Some(LEASE * 3 / 4)).await;
    timed.time.advance(LEASE * 3 / 4);
    assert_eq!(guard.hold().end(), Some(HoldEnd::Lost(LossReason::Expired)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_tells_how_long_ago_its_deadline_was() {
    let timed = Timed::new();
    let (longest, later) = (Duration::from_secs(60), Duration::from_secs(2));
    let builder = Timed::builder(&timed.clock).max_hold(longest);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    let (hold, told_before) = (guard.hold(), client.mutex("another").unwrap().acquire().await.unwrap());
    assert!(timed.server.lose(&name("another"), Loss::Delete, Notice::AtOnce));
    timed.time.advance(longest);
    assert_eq!((hold.end(), hold.overdue()), (Some(HoldEnd::Lost(LossReason::Expired)), Duration::ZERO));
    timed.time.advance(later);
    assert_eq!(hold.overdue(), later);
    // A hold that is lost for another reason has its deadline as well.
    assert_eq!(told_before.hold().overdue(), later);
    let unbound = timed.other().mutex("unbound").unwrap().acquire().await.unwrap();
    timed.time.advance(longest);
    assert_eq!(unbound.hold().overdue(), Duration::ZERO);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bound_of_nothing_is_refused() {
    let refused = |builder: ClientBuilder| {
        let error = MemoryServer::new().client_with(MemoryOptions::new(), builder).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        assert!(error.to_string().contains("max_hold"), "{error}");
    };
    refused(ClientBuilder::new().max_hold(Duration::ZERO));
    let mut options = LockUrl::parse("memory:?max_hold=0s").unwrap().options();
    refused(options.configure(ClientBuilder::new()).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_is_free_in_the_moment_in_which_its_holder_has_to_have_stopped() {
    let timed = Timed::new();
    let (longest, margin) = (Duration::from_secs(60), Duration::from_secs(3));
    let builder = Timed::builder(&timed.clock).max_hold(longest).abort_margin(margin);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let released = tokio::spawn({
        let gate = gate.clone();
        async move { gate.reached().await }
    });
    let _guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    timed.time.advance(longest);
    let step = Duration::from_millis(10);
    let waited = advance_until(&timed, step, 2 * margin, || released.is_finished()).await;
    assert!(waited >= margin + Duration::from_millis(100), "{waited:?}");
    gate.open();
    client.idle().await;
    assert!(timed.server.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_has_left_needs_no_abort_margin() {
    let timed = Timed::new();
    let (longest, margin) = (Duration::from_secs(60), Duration::from_secs(600));
    let builder = Timed::builder(&timed.clock).max_hold(longest).abort_margin(margin);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let acquire = async |name: &str| client.mutex(name).unwrap().acquire().await.unwrap();
    let (dropped, released, entered) = (acquire("a").await, acquire("b").await, acquire("c").await);
    let (once_more, again) = (entered.reenter().unwrap(), entered.reenter().unwrap());
    let catalog = client.rw_lock("d").unwrap();
    let owner = Owner::new();
    let writes = catalog.write().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    let reads = catalog.read().acquire_as(owner, Wait::Forever).await.unwrap().unwrap();
    let (busy, of_two) = (acquire("e").await, acquire("f").await);
    let at_work = of_two.reenter().unwrap();
    timed.time.advance(longest);
    assert_eq!(busy.lost().await, Some(LossReason::Expired));

    let rival = timed.other();
    let is_held = async |name: &str| !rival.status(name).await.unwrap().holders.is_empty();
    let len = async |wanted| eventually("one less is held", || timed.server.len() == wanted).await;
    assert_eq!(timed.server.len(), 6);
    drop((writes, entered, once_more));
    assert_eq!(of_two.release().await.unwrap_err().kind(), ErrorKind::Lost);
    drop(dropped);
    len(5).await;
    assert_eq!(released.release().await.unwrap_err().kind(), ErrorKind::Lost);
    len(4).await;
    assert!(is_held("c").await && is_held("d").await);
    drop(again);
    len(3).await;
    assert!(is_held("d").await);
    drop(reads);
    len(2).await;
    // It asks for the lock again, and may go on meanwhile.
    let next = client.mutex("e").unwrap().acquire_as(busy.owner(), Wait::Try).await;
    assert_eq!(next.unwrap_err().kind(), ErrorKind::Lost);
    drop((busy, at_work));
    let rest = advance_until(&timed, margin / 10, 2 * margin, || timed.server.is_empty()).await;
    assert!(rest >= margin, "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_body_or_another_entry_has_begun_keeps_its_abort_margin() {
    let timed = Timed::new();
    let (longest, margin) = (Duration::from_secs(60), Duration::from_secs(600));
    let builder = Timed::builder(&timed.clock).max_hold(longest).abort_margin(margin);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let in_body = async |lock: &dyn DistributedLock| {
        let body = async |_| {
            pending::<()>().await;
            Ok::<_, LockError>(())
        };
        lock.with_lock(body).await.unwrap_err().kind()
    };
    let (one, several) = (client.mutex("a").unwrap(), client.mutex_all(["b", "c"]).unwrap());
    let election = client.election("d").unwrap();
    let both = client.mutex_all(["e", "f"]).unwrap();
    let (owner, again) = (Owner::new(), Owner::new());
    let mut guards = Vec::new();
    for owner in [owner, owner] {
        guards.push(both.acquire_as(owner, Wait::Forever).await.unwrap().unwrap());
    }
    let asks_again = client.mutex_all(["g", "h"]).unwrap();
    guards.push(asks_again.acquire_as(again, Wait::Forever).await.unwrap().unwrap());
    let left = client.mutex("left").unwrap().acquire().await.unwrap();
    let mut bodies = ByHand::begun(async { tokio::join!(in_body(&*one), in_body(&*several)) });
    let (leads, led) = channel::<()>();
    let mut leads = Some(leads);
    let mut term = ByHand::begun(election.run(move |_| {
        let leads = leads.take();
        async move {
            pending::<()>().await;
            drop(leads);
        }
    }));
    eventually("all are held", || {
        let _ = (bodies.poll(), term.poll());
        timed.server.len() == 9
    })
    .await;
    timed.time.advance(longest);
    let mut ends = None;
    eventually("the bodies are dropped", || {
        ends = ends.or(bodies.poll());
        let _ = term.poll();
        ends.is_some() && led.try_recv() == Err(TryRecvError::Disconnected)
    })
    .await;
    assert_eq!(ends, Some((ErrorKind::Lost, ErrorKind::Lost)));
    drop(term);
    assert_eq!(both.release_as(owner).await.unwrap_err().kind(), ErrorKind::Lost);
    let asked = asks_again.acquire_as(again, Wait::Try).await;
    assert_eq!(asked.unwrap_err().kind(), ErrorKind::Lost);
    drop((guards, left));
    let rival = timed.other();
    let free = rival.mutex("left").unwrap();
    tokio::time::timeout(SOON, free.acquire()).await.unwrap().unwrap().release().await.unwrap();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        assert!(!rival.status(name).await.unwrap().holders.is_empty(), "{name} is free");
    }
    let rest = advance_until(&timed, margin / 10, 2 * margin, || timed.server.is_empty()).await;
    assert!(rest >= margin, "{rest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_abort_margin_comes_off_the_lease_and_a_lease_too_short_for_it_is_refused() {
    let timed = Timed::new();
    let client = |margin| {
        let builder = Timed::builder(&timed.clock).abort_margin(margin);
        timed.server.client_with(MemoryOptions::new().lease(LEASE), builder)
    };
    let guard = client(Duration::from_secs(3)).unwrap().mutex(NAME).unwrap().acquire().await.unwrap();
    assert_eq!(guard.hold().remaining(), Some(Duration::from_millis(6_700)));
    let error = client(Duration::from_secs(9)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidOption);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_remote_unlock_frees_the_local_front() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let broken = LockError::new(ErrorKind::Server, Operation::Release).because("on purpose");
    server.faults().inject(Operation::Release, Fault::Fail(broken));
    lock.lock().await.unwrap();
    assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::Server);
    assert!(!lock.is_locked());
    // The clean-up continues, so the next owner gets the lock from the server as well.
    tokio::time::timeout(SOON, lock.lock()).await.unwrap().unwrap();
    lock.unlock().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_not_answered_is_unconfirmed_by_the_deadline() {
    let timed = Timed::new();
    let lock = timed.client.mutex(NAME).unwrap();
    let guard = lock.acquire().await.unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::Delay(gate.clone()));
    let releasing = tokio::spawn(guard.release());
    gate.reached().await;
    advance_until(&timed, LEASE / 10, LEASE, || releasing.is_finished()).await;
    assert_eq!(releasing.await.unwrap().unwrap_err().kind(), ErrorKind::Unconfirmed);
    gate.open();
    timed.client.idle().await;
    assert!(timed.server.is_empty());
}

#[test]
fn a_holder_that_blocks_the_runtime_gets_the_abort_before_the_lease_ends() {
    let server = MemoryServer::new();
    // The abort comes after less than four seconds, which leaves time for a machine that hangs for a while.
    let (lease, margin) = (Duration::from_secs(12), Duration::from_secs(8));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        // The worst case: on the caller's runtime the renewals stop together with it.
        let builder = ClientBuilder::new().engine(EngineChoice::Caller).abort_margin(margin);
        let client = server.client_with(MemoryOptions::new().lease(lease), builder).unwrap();
        let rival = server.client().unwrap().mutex(NAME).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let (sender, told) = channel();
        lock.add_listener(Arc::new(move |hold: &Hold, _: &LossReason| {
            // The server still has the lock for this client: no other client can have it yet.
            let rivals = crate::support::futures_block_on(rival.try_acquire()).unwrap();
            let _ = sender.send((hold.held_for(), rivals.is_none()));
        }))
        .detach();
        let _guard = lock.acquire().await.unwrap();
        // This blocks the runtime until the abort has come.
        let (age, still_ours) = told.recv_timeout(SOON).unwrap();
        assert!(age < lease && still_ours, "told after {age:?}");
    });
}

#[tokio::test]
async fn an_engine_of_its_own_renews_while_the_callers_runtime_is_blocked() {
    let timed = Timed::new();
    let guard = timed.client.mutex(NAME).unwrap().acquire().await.unwrap();
    let full = guard.hold().remaining().unwrap();
    for _ in 0..8 {
        timed.time.advance(LEASE / 4);
        let begun = std::time::Instant::now();
        while guard.hold().remaining().unwrap() < full {
            assert!(begun.elapsed() < SOON, "it is not renewed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(guard.hold().is_valid());
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_break_is_reported_as_a_loss_and_takes_the_lock_from_that_holder_only() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    let told = Recorder::listen(&lock);
    let guard = lock.acquire().await.unwrap();
    assert_eq!(next(&told), Told::Acquired);
    let holder = client.status(NAME).await.unwrap().holders[0].id.clone();
    let broken = client.break_holder(NAME, &holder).await.unwrap();
    assert!(broken.taken_away);
    assert_eq!(next(&told), Told::Abort(LossReason::Broken));
    drop(guard);

    let later = lock.acquire().await.unwrap();
    let again = client.break_holder(NAME, &holder).await.unwrap();
    assert!(!again.taken_away);
    assert!(later.hold().is_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_holds_at_once_are_renewed_together() {
    let timed = Timed::new();
    let mut guards = Vec::new();
    for number in 0..10_000 {
        let lock = timed.client.mutex(format!("orders/{number}")).unwrap();
        guards.push(lock.acquire_as(Owner::new(), lock_core::Wait::Try).await.unwrap().unwrap());
    }
    assert_eq!(timed.server.len(), 10_000);
    for _ in 0..8 {
        timed.time.advance(LEASE / 4);
        let last = guards.last().unwrap().hold();
        eventually("all are renewed", || last.remaining().unwrap() > LEASE * 9 / 10).await;
    }
    assert!(guards.iter().all(|guard| guard.hold().is_valid()));
    for guard in guards {
        guard.release().await.unwrap();
    }
    assert!(timed.server.is_empty());
}

#[tokio::test]
async fn a_release_shortly_before_the_longest_hold_has_its_time_for_an_answer() {
    let timed = Timed::new();
    let longest = Duration::from_secs(60);
    let builder = Timed::builder(&timed.clock).max_hold(longest);
    let client = timed.server.client_with(MemoryOptions::new(), builder).unwrap();
    let guard = client.mutex(NAME).unwrap().acquire().await.unwrap();
    timed.time.advance(Duration::from_millis(59_950));
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Release, Fault::DelayReply(gate.clone()));
    let mut released = ByHand::begun(guard.release());
    timed.time.advance(Duration::from_secs(5));
    assert!(released.poll().is_none(), "there is no lease that could be over");
    gate.open();
    released.output().await.unwrap();
}
