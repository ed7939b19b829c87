//! A hold that is gone from the server while its holder lives.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLockExt, ErrorKind, LossReason};

use crate::case::{cases, ensure};
use crate::diary::Diary;
use crate::stage::{LONG, ROOM, Stage, Waiter, key, soon};

cases!("loss":
    everything_is_flushed,
    a_flush_costs_no_waiter_its_wait,
    the_key_is_deleted,
    the_key_is_stolen,
    a_stolen_key_is_not_deleted_by_the_one_who_lost_it,
    a_release_tells_of_a_loss_that_nobody_has_noticed_yet,
    a_broken_hold_is_told_at_once,
);

/// What the next renewal finds is told long before a lease ends.
const LEASE: &str = "lease=12s";

/// A renewal every three seconds, and an answer.
const NOTICED_WITHIN: Duration = Duration::from_secs(9);

async fn is_told(words: &[&str], expected: LossReason) -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LEASE).await?;
    let lock = client.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    let token = guard.token();
    let began = Instant::now();
    stage.server.command(words).await?;
    let (reason, told) = diary.abort().await?;
    ensure!(reason == expected, "{words:?} was told as {reason:?}");
    ensure!(told < began + NOTICED_WITHIN, "told after {:?}", told - began);
    ensure!(soon("lost()", guard.lost()).await? == expected && !guard.hold().is_valid(), "no loss");
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(expected))), "the release was answered {released:?}");
    client.idle().await;
    stage.server.command(&["DEL", &key(ROOM, 'l')]).await?;
    let again = soon("the lock", lock.acquire()).await??;
    ensure!(again.token() > token, "the token fell from {token:?} to {:?}", again.token());
    again.release().await?;
    ensure!(diary.aborts() == 1, "{:?}", diary.events());
    Ok(())
}

/// The fence is gone as well, and the tokens rise all the same.
async fn everything_is_flushed() -> Outcome {
    is_told(&["FLUSHALL"], LossReason::Deleted).await
}

async fn the_key_is_deleted() -> Outcome {
    is_told(&["DEL", &key(ROOM, 'l')], LossReason::Deleted).await
}

async fn the_key_is_stolen() -> Outcome {
    is_told(&["SET", &key(ROOM, 'l'), "thief 1 1 - {}"], LossReason::Taken).await
}

/// They lose their places, and whoever asks again first is the first.
async fn a_flush_costs_no_waiter_its_wait() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.lock(ROOM)?.acquire().await?;
    let (one, other) = (stage.client("lease=4s").await?, stage.client("lease=4s").await?);
    let first = Waiter::of(&one)?;
    stage.queued(1).await?;
    let second = Waiter::of(&other)?;
    stage.queued(2).await?;
    stage.server.command(&["FLUSHALL"]).await?;
    let served = |waiter: Waiter| async {
        let (guard, _) = waiter.granted().await?;
        Ok::<_, Failure>(guard.release().await?)
    };
    tokio::try_join!(served(first), served(second))?;
    drop(held);
    holder.idle().await;
    stage.nothing_is_left("after all of them").await
}

async fn a_stolen_key_is_not_deleted_by_the_one_who_lost_it() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.lock(ROOM)?.acquire().await?;
    let theft = "thief 1 1 - {}";
    stage.server.command(&["SET", &key(ROOM, 'l'), theft]).await?;
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Taken))), "answered {released:?}");
    client.idle().await;
    let left = stage.text(&["GET", &key(ROOM, 'l')]).await?;
    ensure!(left.as_deref() == Some(theft), "the key says {left:?}");
    Ok(())
}

async fn a_release_tells_of_a_loss_that_nobody_has_noticed_yet() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.command(&["DEL", &key(ROOM, 'l')]).await?;
    let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Deleted))), "answered {released:?}");
    // It was the owner who ended it: nobody else is told.
    ensure!(diary.aborts() == 0, "{:?}", diary.events());
    Ok(())
}

/// By a message: the next renewal would be more than a minute away.
async fn a_broken_hold_is_told_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, operator) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = ours.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    let status = operator.status(ROOM).await?;
    let began = Instant::now();
    operator.break_holder(ROOM, &status.holders[0].id).await?;
    let (reason, told) = diary.abort().await?;
    ensure!(reason == LossReason::Broken, "lost because {reason}");
    ensure!(told < began + Duration::from_secs(30), "told after {:?}", told - began);
    ensure!(!guard.hold().is_valid(), "a broken hold is valid");
    Ok(())
}
