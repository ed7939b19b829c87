//! Tests of owners and of reentry.

use std::sync::Arc;

use crate::support::futures_block_on;
use lock_core::{DistributedLock, ErrorKind, LockError, Operation, Owner};
use lock_memory::MemoryServer;

fn lock() -> Arc<dyn DistributedLock> {
    MemoryServer::new().client().unwrap().mutex("orders/42").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_enters_again_and_another_does_not() {
    let lock = lock();
    let other = Arc::clone(&lock);
    tokio::spawn(async move {
        lock.lock().await.unwrap();
        assert!(lock.try_lock().await.unwrap());
        assert_eq!(lock.hold_count(), 2);
        let stranger = Arc::clone(&lock);
        assert!(!tokio::spawn(async move { stranger.try_lock().await.unwrap() }).await.unwrap());
        lock.unlock().await.unwrap();
        assert!(lock.is_held());
        lock.unlock().await.unwrap();
        assert!(!lock.is_held());
    })
    .await
    .unwrap();
    assert!(!other.is_locked());
}

#[test]
fn a_thread_inside_block_on_enters_again_and_another_does_not() {
    let lock = lock();
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let stranger = Arc::clone(&lock);
    runtime().block_on(async {
        lock.lock().await.unwrap();
        lock.lock().await.unwrap();
        let tried =
            std::thread::spawn(move || runtime().block_on(async { stranger.try_lock().await.unwrap() }));
        assert!(!tried.join().unwrap());
    });
    // The same thread in another runtime is the same owner.
    runtime().block_on(async {
        assert_eq!(lock.hold_count(), 2);
        lock.unlock().await.unwrap();
        lock.unlock().await.unwrap();
        assert!(!lock.is_locked());
    });
}

#[test]
fn outside_a_runtime_there_is_no_owner_but_guards_and_scopes_work() {
    let lock = lock();
    let error = futures_block_on(lock.lock()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoOwner);
    assert!(error.to_string().contains("acquire()"), "{error}");
    futures_block_on(async {
        lock.acquire().await.unwrap().release().await.unwrap();
        Owner::new().scope(async { lock.lock().await.unwrap() }).await;
    });
    assert!(!lock.is_locked());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scope_shares_its_hold_between_tasks_and_releases_at_its_end() {
    let lock = lock();
    let owner = Owner::new();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            let helper = Arc::clone(&lock);
            let inner = owner.scope(async move {
                assert!(helper.try_lock().await.unwrap());
                assert_eq!(helper.hold_count(), 2);
                // Left locked: the end of this inner scope undoes this entry and no other.
            });
            tokio::spawn(inner).await.unwrap();
            assert_eq!(lock.hold_count(), 1);
        })
        .await;
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn a_scope_that_is_dropped_half_way_releases_too() {
    let lock = lock();
    let scoped = Owner::new().scope(async {
        lock.lock().await.unwrap();
        std::future::pending::<()>().await;
    });
    assert!(crate::support::DropAfter::new(1, scoped).await.is_none());
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn an_inner_scope_may_unlock_what_the_outer_one_locked() {
    let lock = lock();
    let owner = Owner::new();
    owner
        .scope(async {
            lock.lock().await.unwrap();
            owner.scope(async { lock.unlock().await.unwrap() }).await;
            assert_eq!(lock.hold_count(), 0);
            lock.lock().await.unwrap();
        })
        .await;
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn branches_of_one_task_are_one_owner_but_their_guards_exclude_each_other() {
    let lock = lock();
    let (first, second) = tokio::join!(lock.try_lock(), lock.try_lock());
    assert_eq!((first.unwrap(), second.unwrap(), lock.hold_count()), (true, true, 2));
    lock.unlock().await.unwrap();
    lock.unlock().await.unwrap();

    let inside = std::cell::Cell::new(0);
    let branch = async || {
        for _ in 0..10 {
            let guard = lock.acquire().await.unwrap();
            assert_eq!(inside.replace(1), 0);
            tokio::task::yield_now().await;
            inside.set(0);
            guard.release().await.unwrap();
        }
    };
    tokio::join!(branch(), branch());
}

#[tokio::test]
async fn guards_of_one_hold_release_with_the_last_one() {
    let lock = lock();
    let first = lock.acquire().await.unwrap();
    let second = first.reenter().unwrap();
    assert_eq!(first.token(), second.token());
    assert!(lock.try_acquire().await.unwrap().is_none());
    drop(first);
    assert!(second.hold().is_valid());
    second.release().await.unwrap();
    assert!(lock.try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn with_lock_runs_its_body_in_the_guards_scope() {
    let lock = lock();
    let token = lock
        .with_lock(|hold| {
            let lock = Arc::clone(&lock);
            async move {
                lock.lock().await.unwrap();
                assert_eq!(lock.hold_count(), 2);
                hold.require_token()
            }
        })
        .await;
    assert!(token.is_ok());
    assert!(!lock.is_locked());
}

#[tokio::test]
async fn a_body_that_unlocks_once_too_often_has_no_result() {
    let lock = lock();
    for locks in 0..3 {
        let error = lock
            .with_lock(|_| {
                let lock = Arc::clone(&lock);
                async move {
                    for _ in 0..locks {
                        lock.lock().await.unwrap();
                    }
                    for _ in 0..=locks {
                        lock.unlock().await.unwrap();
                    }
                    // Free, and another owner may have it while the body continues.
                    assert!(lock.try_acquire().await.unwrap().is_some());
                    Ok::<_, LockError>(())
                }
            })
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotOwner);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unlock_by_another_owner_is_an_error_that_changes_nothing() {
    let lock = lock();
    lock.lock().await.unwrap();
    let stranger = Arc::clone(&lock);
    let error = tokio::spawn(async move { stranger.unlock().await.unwrap_err() }).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::NotOwner);
    assert!(lock.is_held());
    lock.unlock().await.unwrap();
    assert_eq!(lock.unlock().await.unwrap_err().kind(), ErrorKind::NotOwner);
}

#[tokio::test]
async fn a_guard_has_an_owner_of_its_own_and_the_task_beside_it_holds_nothing() {
    let lock = lock();
    let guard = lock.acquire().await.unwrap();
    assert!(!lock.is_held() && lock.hold().is_none());
    assert_eq!((lock.hold_count(), lock.hold_count_of(guard.owner()), lock.is_locked()), (0, 1, true));
    guard.release().await.unwrap();
}

/// The same owner has ended the only entry: nothing was lost.
#[tokio::test]
async fn a_guard_whose_entry_was_ended_enters_no_more() {
    let lock = lock();
    let guard = lock.acquire().await.unwrap();
    lock.release_as(guard.owner()).await.unwrap();
    let error = guard.reenter().unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::NotOwner, Operation::Acquire), "{error}");
}
