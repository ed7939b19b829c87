//! Cases: owners and reentry.

use std::time::Duration;

use crate::{Outcome, ensure};
use lock_core::{ErrorKind, LockClient, Owner};
use tokio::runtime::Handle;

use crate::case::cases;
use crate::stage::Stage;

cases!("owners":
    a_task_enters_again,
    a_thread_enters_again,
    a_scope_enters_again,
    a_guard_makes_a_second_guard_of_the_same_hold,
    the_body_of_with_lock_enters_again,
    branches_of_one_task_with_guards_exclude_each_other,
    tasks_of_one_client_exclude_each_other,
    a_scope_releases_at_its_end_what_it_still_holds,
    a_wait_for_oneself_is_an_error_and_leaves_nothing,
);

/// Locks and unlocks as the current owner, and checks that it is one hold from the first to the last.
async fn enters_again(stage: &Stage, ours: &LockClient, theirs: &LockClient) -> Outcome {
    let lock = ours.mutex("room")?;
    lock.lock().await?;
    let token = lock.hold().and_then(|hold| hold.token());
    lock.lock().await?;
    ensure!(lock.try_lock().await?, "the owner was refused");
    ensure!(lock.try_lock_for(Duration::ZERO).await?, "the owner was refused");
    ensure!(lock.hold_count() == 4, "four entries count as {}", lock.hold_count());
    ensure!(lock.hold().and_then(|hold| hold.token()) == token, "reentry changed the token");
    for _ in 0..4 {
        ensure!(lock.is_held(), "not held although entries are left");
        stage.is_held(theirs, "room").await?;
        lock.unlock().await?;
    }
    ensure!(!lock.is_held() && lock.hold_count() == 0, "held after the last unlock");
    let kind = lock.unlock().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::NotOwner), "one unlock too many was answered {kind:?}");
    stage.is_free(theirs, "room").await
}

async fn a_task_enters_again(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    enters_again(stage, &ours, &theirs).await
}

/// Inside `block_on` there is no task: the thread is the owner.
async fn a_thread_enters_again(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let runtime = Handle::current();
    tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| runtime.block_on(enters_again(stage, &ours, &theirs)));
            thread.join().unwrap_or_else(|_| Err(crate::Failure::new("the thread panicked")))
        })
    })
}

async fn a_scope_enters_again(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    Owner::new().scope(enters_again(stage, &ours, &theirs)).await?;
    // A scope that two tasks share is one owner.
    let owner = Owner::new();
    let lock = ours.mutex("room")?;
    owner.scope(lock.lock()).await?;
    // What a scope still holds at its end is released in the background.
    stage.becomes_free(&theirs, "room").await
}

async fn a_guard_makes_a_second_guard_of_the_same_hold(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let first = ours.mutex("room")?.acquire().await?;
    let second = first.reenter()?;
    ensure!(first.token() == second.token(), "reentry changed the token");
    first.release().await?;
    ensure!(second.hold().is_valid(), "released while a second guard is left");
    stage.is_held(&theirs, "room").await?;
    let third = second.reenter()?;
    drop(second);
    stage.is_held(&theirs, "room").await?;
    third.release().await?;
    stage.is_free(&theirs, "room").await
}

async fn the_body_of_with_lock_enters_again(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let inner = lock.clone();
    let result = lock
        .with_lock(|hold| async move {
            let entered = inner.try_lock().await?;
            inner.unlock().await?;
            Ok::<_, lock_core::LockError>(entered && hold.is_valid())
        })
        .await?;
    ensure!(result, "the body could not enter the lock that it runs under");
    stage.is_free(&theirs, "room").await
}

async fn branches_of_one_task_with_guards_exclude_each_other(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    let inside = std::sync::atomic::AtomicU32::new(0);
    let branch = || async {
        for _ in 0..20 {
            let guard = lock.acquire().await?;
            let others = inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::task::yield_now().await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            ensure!(others == 0, "{others} other branches of the task held the lock");
            guard.release().await?;
        }
        Ok(())
    };
    let (first, second, third) = tokio::join!(branch(), branch(), branch());
    first.and(second).and(third)
}

async fn tasks_of_one_client_exclude_each_other(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    lock.lock().await?;
    let other = lock.clone();
    let refused = tokio::spawn(async move { other.try_lock().await }).await?;
    ensure!(!refused?, "two tasks of one client hold the lock");
    let other = lock.clone();
    let unlocked = tokio::spawn(async move { other.unlock().await }).await?;
    let kind = unlocked.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::NotOwner), "another task's unlock was answered {kind:?}");
    ensure!(lock.is_held(), "another task's unlock released the lock");
    Ok(lock.unlock().await?)
}

async fn a_scope_releases_at_its_end_what_it_still_holds(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let forgetful = async {
        lock.lock().await?;
        lock.lock().await
    };
    Owner::new().scope(forgetful).await?;
    stage.becomes_free(&theirs, "room").await
}

async fn a_wait_for_oneself_is_an_error_and_leaves_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    lock.lock().await?;
    let of_task = stage.soon("the error", lock.acquire()).await?;
    lock.unlock().await?;
    stage.soon("the undoing", ours.idle()).await?;
    stage.is_free(&theirs, "room").await?;
    let of_body = stage.soon("the error", lock.with_lock(async |_| lock.acquire().await)).await?;
    for waited in [of_task, of_body] {
        let kind = waited.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Deadlock), "a wait for oneself ended with {kind:?}");
    }
    stage.soon("the undoing", ours.idle()).await?;
    stage.is_free(&theirs, "room").await
}
