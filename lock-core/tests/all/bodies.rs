//! Tests of bodies under a lock, and of tasks that wait for themselves.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{SOON, name};
use lock_core::{
    ClientBuilder, DistributedLock, ErrorKind, LockClient, LockError, LockName, LossReason, Operation, Owner,
};
use lock_memory::{Loss, MemoryOptions, MemoryServer, Told as Notice};
use tokio::sync::Notify;

const NAME: &str = "orders/42";
const SHORT: Duration = Duration::from_millis(5);

fn locks() -> LockClient {
    MemoryServer::new().client().unwrap()
}

fn lock() -> Arc<dyn DistributedLock> {
    locks().mutex(NAME).unwrap()
}

/// What a service has: its own error, into which a lock's error converts.
#[derive(Debug, PartialEq)]
enum PayError {
    Declined,
    Lock(ErrorKind),
}

impl From<LockError> for PayError {
    fn from(error: LockError) -> Self {
        Self::Lock(error.kind())
    }
}

/// Sets a flag when it is dropped.
struct Noted<'a>(&'a AtomicBool);

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn the_error_of_the_body_and_that_of_the_lock_are_one() {
    let locks = locks();
    let lock = locks.mutex(NAME).unwrap();
    let declined = lock.with_lock(async |_| Err::<(), _>(PayError::Declined)).await;
    assert_eq!(declined, Err(PayError::Declined));
    assert!(!lock.is_locked());
    let held = lock.acquire().await.unwrap();
    let refused = lock.with_lock_for(SHORT, async |_| Ok::<_, PayError>(())).await;
    assert_eq!(refused, Err(PayError::Lock(ErrorKind::Busy)));
    assert_eq!(lock.try_with_lock(async |_| Ok::<_, PayError>(())).await, Ok(None));
    held.release().await.unwrap();
    assert_eq!(lock.try_with_lock(async |_| Ok::<_, PayError>(7)).await, Ok(Some(7)));
    locks.close(SOON).await.unwrap();
    let closed = lock.with_lock(async |_| Ok::<_, PayError>(())).await;
    assert_eq!(closed, Err(PayError::Lock(ErrorKind::Closed)));
}

#[tokio::test]
async fn a_body_does_not_run_without_the_lock() {
    let lock = lock();
    let _held = lock.acquire().await.unwrap();
    let body = async |_| -> Result<(), LockError> { panic!("the body ran") };
    assert_eq!(lock.with_lock_for(SHORT, body).await.unwrap_err().kind(), ErrorKind::Busy);
    assert!(lock.try_with_lock(body).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loss_drops_the_body_before_the_caller_learns_of_it() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    let dropped = AtomicBool::new(false);
    let error = lock
        .with_lock(async |_| {
            let _noted = Noted(&dropped);
            server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
            pending::<()>().await;
            Ok::<_, LockError>(())
        })
        .await
        .unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(LossReason::Deleted)));
    assert!(dropped.load(Ordering::SeqCst));
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn a_result_that_comes_with_the_loss_is_not_returned() {
    let server = MemoryServer::new();
    let lock = server.client().unwrap().mutex(NAME).unwrap();
    for result in [Ok(()), Err(PayError::Declined)] {
        let outcome = lock
            .with_lock(async |_| {
                server.lose(&name(NAME), Loss::Delete, Notice::AtOnce);
                result
            })
            .await;
        assert_eq!(outcome, Err(PayError::Lock(ErrorKind::Lost)));
    }
}

#[tokio::test]
async fn a_body_of_a_body_enters_again_also_across_other_locks() {
    let locks = locks();
    let (outer, other) = (locks.mutex("outer").unwrap(), locks.mutex("other").unwrap());
    outer
        .with_lock(async |first| {
            other
                .with_lock(async |_| {
                    outer
                        .with_lock(async |second| {
                            assert_eq!(first.id(), second.id());
                            other.lock().await?; // of the body around this one
                            assert_eq!((outer.hold_count(), other.hold_count()), (2, 2));
                            assert!(outer.is_held() && other.is_held());
                            other.unlock().await
                        })
                        .await?;
                    outer.lock().await // left to the end of the outer body
                })
                .await?;
            assert_eq!((outer.hold_count(), other.is_locked()), (2, false));
            Ok::<_, LockError>(())
        })
        .await
        .unwrap();
    assert!(!outer.is_locked());
}

#[tokio::test]
async fn a_body_enters_again_what_its_task_has_locked() {
    let lock = lock();
    lock.lock().await.unwrap();
    lock.with_lock(async |_| {
        assert_eq!(lock.hold_count(), 2);
        Ok::<_, LockError>(())
    })
    .await
    .unwrap();
    assert!(lock.is_held());
    lock.unlock().await.unwrap();
}

#[tokio::test]
async fn bodies_in_the_branches_of_one_task_exclude_each_other_unless_the_task_has_the_lock() {
    let locks = locks();
    let (outer, inner) = (locks.mutex("outer").unwrap(), locks.mutex("inner").unwrap());
    let inside = AtomicBool::new(false);
    let branch = async || {
        inner
            .with_lock(async |_| {
                assert!(!inside.swap(true, Ordering::SeqCst));
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                Ok::<_, LockError>(())
            })
            .await
    };
    outer
        .with_lock(async |_| {
            let (first, second) = tokio::join!(branch(), branch());
            first.and(second)
        })
        .await
        .unwrap();
}

#[tokio::test]
async fn bodies_of_one_owner_side_by_side_give_back_each_its_own_entry_whichever_ends_first() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    for lock in [client.mutex(NAME).unwrap(), client.mutex_all(["a", "b"]).unwrap()] {
        for (last, unlocks) in [(0, None), (1, None), (0, Some(0)), (0, Some(1)), (1, Some(0)), (1, Some(1))]
        {
            let one_has_ended = Notify::new();
            let branch = async |number| {
                let ended = lock.with_lock(async |_| {
                    tokio::task::yield_now().await;
                    if number == last {
                        one_has_ended.notified().await;
                    }
                    if unlocks == Some(number) { lock.unlock().await } else { Ok::<_, LockError>(()) }
                });
                let kind = ended.await.err().map(|error| error.kind());
                one_has_ended.notify_one();
                assert_eq!(
                    kind,
                    (unlocks == Some(number)).then_some(ErrorKind::NotOwner),
                    "{last} {unlocks:?}"
                );
            };
            let outer = lock.with_lock(async |hold| {
                tokio::join!(branch(0), branch(1));
                assert_eq!((lock.hold_count(), hold.is_valid()), (1, true), "{last} {unlocks:?}");
                Ok::<_, LockError>(())
            });
            outer.await.unwrap();
            client.idle().await;
            assert!(!lock.is_locked() && server.is_empty(), "{last} {unlocks:?}: something is left");
        }
    }
}

#[tokio::test]
async fn an_inner_body_that_unlocks_too_often_fails_and_the_outer_one_keeps_the_lock() {
    let lock = lock();
    let inner = lock
        .with_lock(async |hold| {
            let inner = lock.with_lock(async |_| lock.unlock().await).await.unwrap_err();
            assert!(hold.is_valid());
            assert_eq!(lock.hold_count(), 1);
            Ok::<_, LockError>(inner)
        })
        .await
        .unwrap();
    assert_eq!(inner.kind(), ErrorKind::NotOwner);
    assert!(inner.to_string().contains("unlocked more often"), "{inner}");
    assert!(!lock.is_locked());
}

/// The lock was free in between, so the body was not exclusive.
#[tokio::test]
async fn a_body_that_unlocks_and_locks_again_fails_and_leaves_nothing() {
    let server = MemoryServer::new();
    let client = server.client().unwrap();
    let lock = client.mutex(NAME).unwrap();
    for entries in 1..=2 {
        let error = lock
            .with_lock(async |hold| {
                lock.unlock().await?;
                for _ in 0..entries {
                    lock.lock().await?;
                }
                assert!(!hold.is_valid() && lock.is_held());
                Ok::<_, LockError>(())
            })
            .await
            .unwrap_err();
        assert_eq!((error.kind(), error.name().map(LockName::as_str)), (ErrorKind::NotOwner, Some(NAME)));
        client.idle().await;
        assert!(!lock.is_locked() && server.is_empty(), "{entries} entries: something is left");
    }
}

#[tokio::test]
async fn an_explicit_scope_in_a_body_does_not_enter_again() {
    let lock = lock();
    lock.with_lock(async |_| {
        assert!(!Owner::new().scope(lock.try_lock()).await?);
        Ok::<_, LockError>(())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_future_of_a_body_can_be_spawned() {
    let lock = lock();
    let task = tokio::spawn(async move {
        let body = async |_| {
            tokio::task::yield_now().await;
            Ok::<_, LockError>(lock.hold_count())
        };
        lock.with_lock(body).await
    });
    assert_eq!(task.await.unwrap().unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_ever_for_oneself_is_an_error_and_a_bounded_one_is_not() {
    let lock = lock();
    lock.lock().await.unwrap();
    let error = lock.acquire().await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Deadlock, Operation::Acquire));
    assert!(error.to_string().contains("orders/42") && error.to_string().contains("with_lock()"), "{error}");
    assert!(lock.try_acquire_for(SHORT).await.unwrap().is_none());
    // The wait has left nothing in the queue.
    lock.unlock().await.unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let inside = lock.with_lock(async |_| lock.acquire().await).await.unwrap_err();
    assert_eq!(inside.kind(), ErrorKind::Deadlock);
    // A task of its own may wait for the body that started it.
    let theirs = Arc::clone(&lock);
    let waiting = lock
        .with_lock(async move |_| {
            let waiting = Arc::clone(&theirs);
            Ok::<_, LockError>(tokio::spawn(async move { waiting.acquire().await }))
        })
        .await
        .unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_guard_may_be_released_elsewhere_so_waiting_for_it_is_no_error() {
    let lock = lock();
    let first = lock.acquire().await.unwrap();
    let (second, ()) = tokio::join!(lock.acquire(), async { first.release().await.unwrap() });
    second.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_error_of_a_wait_names_the_holder_of_this_client_and_of_another() {
    let server = MemoryServer::new();
    let client = |label: &str| {
        server
            .client_with(MemoryOptions::new(), ClientBuilder::new().label(label))
            .unwrap()
            .mutex(NAME)
            .unwrap()
    };
    let (ours, theirs) = (client("ours"), client("theirs"));
    let mut ids = Vec::new();
    for (holder, label, whose) in [
        (&ours, "ours", "another owner of this client"),
        (&theirs, "theirs", "another client of this process"),
    ] {
        let guard = holder.acquire().await.unwrap();
        for wait in [Duration::ZERO, SHORT] {
            let error = ours.acquire_for(wait).await.unwrap_err();
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::Busy, true));
            let named = error.holder().unwrap();
            assert_eq!((named.label.as_deref(), &named.id), (Some(label), &guard.hold().id()));
            assert!(error.to_string().contains(&format!("another owner holds it: {label}@")), "{error}");
            assert!(error.to_string().contains(whose), "{error}");
        }
        ids.push(guard.hold().id());
        guard.release().await.unwrap();
    }
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_hold_has_the_id_that_the_status_shows() {
    let locks = locks();
    let guard = locks.mutex(NAME).unwrap().acquire().await.unwrap();
    let status = locks.status(NAME).await.unwrap();
    assert_eq!(status.holders[0].id, guard.hold().id());
    assert_eq!(guard.hold().require_token().ok(), guard.token());
}
