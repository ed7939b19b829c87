//! Tests of what the server remembers beyond a hold, where its answer fails, comes late or is lost.

use std::time::Duration;

use crate::support::Timed;
use lock_core::{ErrorKind, LockError, LockOptions, LossReason, Operation};
use lock_memory::faults::{Fault, Gate};
use lock_memory::{Loss, Told};

const MINUTE: Duration = Duration::from_secs(60);

fn paused() -> LockOptions {
    LockOptions::new().at_least(MINUTE)
}

#[tokio::test]
async fn a_pause_ends_by_the_clock_of_the_server() {
    let timed = Timed::new();
    let lock = timed.client.mutex_with("nightly", paused()).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    timed.time.advance(Duration::from_secs(59));
    assert!(lock.try_acquire().await.unwrap().is_none());
    timed.time.advance(Duration::from_secs(1));
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_wait_goes_on_at_the_end_of_the_pause() {
    let timed = Timed::new();
    timed.client.mutex_with("nightly", paused()).unwrap().acquire().await.unwrap().release().await.unwrap();
    let lock = timed.other().mutex_with("nightly", paused()).unwrap();
    let waits = tokio::spawn(async move { lock.acquire().await });
    // The wait has found the pause, and has given the lock back.
    let memory = timed.client.mutex("nightly").unwrap();
    while timed.server.waiting_for(memory.name()) > 0 || memory.try_acquire().await.unwrap().is_none() {
        tokio::task::yield_now().await;
    }
    timed.client.idle().await;
    assert!(!waits.is_finished());
    while !waits.is_finished() {
        timed.time.advance(MINUTE);
        tokio::task::yield_now().await;
    }
    waits.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn an_unknown_answer_about_the_pause_fails_a_try_and_frees_the_lock() {
    let timed = Timed::new();
    let lock = timed.client.mutex_with("nightly", paused()).unwrap();
    let refusal = LockError::new(ErrorKind::Unreachable, Operation::Remember).retryable();
    timed.server.faults().inject(Operation::Remember, Fault::Fail(refusal));
    assert_eq!(lock.try_acquire().await.unwrap_err().kind(), ErrorKind::Unreachable);
    timed.client.idle().await;
    assert!(timed.server.is_empty());
    assert!(lock.try_acquire().await.unwrap().is_some(), "no pause has begun");
}

#[tokio::test]
async fn a_wait_that_is_dropped_while_the_server_is_asked_about_the_pause_leaves_nothing() {
    let timed = Timed::new();
    let lock = timed.client.mutex_with("nightly", paused()).unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Remember, Fault::Delay(gate.clone()));
    tokio::select! {
        biased;
        _ = lock.acquire() => panic!("it was granted"),
        () = gate.reached() => {}
    }
    timed.client.idle().await;
    assert!(timed.server.is_empty());
}

#[tokio::test]
async fn an_owner_that_enters_again_is_in_no_pause() {
    let timed = Timed::new();
    let lock = timed.client.mutex_with("nightly", paused()).unwrap();
    lock.lock().await.unwrap();
    lock.lock().await.unwrap();
    assert_eq!(lock.hold_count(), 2);
    lock.unlock().await.unwrap();
    lock.unlock().await.unwrap();
}

#[tokio::test]
async fn a_slot_whose_answer_was_lost_does_not_run() {
    let timed = Timed::new();
    let work = timed.client.once("poll", "12:07").unwrap();
    timed.server.faults().inject(Operation::Remember, Fault::DropReply);
    let error = work.run(async |_| Ok::<_, LockError>(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let again = work.run(async |_| Ok::<_, LockError>(())).await.unwrap();
    assert_eq!(again, None, "the server had remembered it");
}

#[tokio::test]
async fn a_slot_is_forgotten_after_its_time() {
    let timed = Timed::new();
    let work = timed.client.once("poll", "12:07").unwrap().keep(MINUTE);
    let run = async || work.run(async |_| Ok::<_, LockError>(())).await.unwrap();
    assert_eq!((run().await, run().await), (Some(()), None));
    timed.time.advance(MINUTE);
    assert_eq!(run().await, Some(()));
}

#[tokio::test]
async fn a_refusal_in_a_pause_says_until_when() {
    let timed = Timed::new();
    let lock = timed.client.mutex_with("nightly", paused()).unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    timed.time.advance(Duration::from_secs(10));
    let error = lock.acquire_for(Duration::ZERO).await.unwrap_err();
    assert_eq!((error.kind(), error.pause()), (ErrorKind::Busy, Some(Duration::from_secs(50))));
    assert!(error.holder().is_none());
    assert!(error.to_string().contains("kept free for 50s more"), "{error}");

    // Who does not keep to the pause gets it meanwhile, and is named.
    let plain = timed.client.mutex("nightly").unwrap();
    let _held = plain.acquire().await.unwrap();
    let error = lock.acquire_for(Duration::ZERO).await.unwrap_err();
    assert!(error.holder().is_some() && error.pause().is_some());
    assert!(error.to_string().contains("another owner holds it"), "{error}");
    assert_eq!(plain.acquire_for(Duration::ZERO).await.unwrap_err().pause(), None);
}

#[tokio::test]
async fn a_slot_without_a_body_runs_once_under_its_lock() {
    let timed = Timed::new();
    let slot = |slot| timed.client.once("poll", slot).unwrap();
    let guard = slot("12:07").acquire().await.unwrap().expect("it has not run");
    let error = slot("12:08").acquire_for(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    guard.release().await.unwrap();
    assert!(slot("12:07").acquire().await.unwrap().is_none());
    assert!(slot("12:08").acquire_for(Duration::ZERO).await.unwrap().is_some());
    timed.client.idle().await;
    assert!(!timed.client.status("poll").await.unwrap().is_held());
}

#[tokio::test]
async fn a_lock_that_was_lost_while_the_slot_was_taken_starts_no_work() {
    let timed = Timed::new();
    let once = timed.client.once("nightly", "monday").unwrap();
    let gate = Gate::new();
    timed.server.faults().inject(Operation::Remember, Fault::Delay(gate.clone()));
    let acquiring = tokio::spawn(async move { once.acquire().await });
    gate.reached().await;
    assert!(timed.server.lose(&crate::support::name("nightly"), Loss::Delete, Told::AtOnce));
    gate.open();
    let error = acquiring.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Deleted)));
}

#[tokio::test]
async fn work_that_fails_is_repeated_for_its_slot_until_it_has_succeeded() {
    let timed = Timed::new();
    let once = timed.client.once("nightly", "monday").unwrap().retry_failed();
    let fails = async |_| Err::<(), _>(LockError::new(ErrorKind::Internal, Operation::Hold));
    assert_eq!(once.run(fails).await.unwrap_err().kind(), ErrorKind::Internal);
    let guard = once.acquire().await.unwrap().unwrap();
    once.succeeded().await.unwrap();
    guard.release().await.unwrap();

    assert!(once.acquire().await.unwrap().is_none());
    timed.time.advance(Duration::from_secs(24 * 60 * 60));
    assert!(once.acquire().await.unwrap().is_some(), "it is forgotten");
}

#[tokio::test]
async fn work_whose_success_the_server_does_not_hear_of_is_an_error_and_runs_again() {
    let timed = Timed::new();
    let once = timed.client.once("nightly", "monday").unwrap().retry_failed();
    let outage = async |_| {
        let refusal = LockError::new(ErrorKind::Unreachable, Operation::Remember).retryable();
        timed.server.faults().inject(Operation::Remember, Fault::Fail(refusal));
        Ok::<_, LockError>(())
    };
    assert_eq!(once.run(outage).await.unwrap_err().kind(), ErrorKind::Unreachable);
    assert_eq!(once.run(async |_| Ok::<_, LockError>(7)).await.unwrap(), Some(7));
}
