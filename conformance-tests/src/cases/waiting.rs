//! Waits end when they are to end, and what they answer is so.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{DistributedLock, DistributedLockExt, LockClient};
use tokio::time::Instant;

use crate::case::{Need, cases};
use crate::failure::{Failure, Outcome, ensure};
use crate::probe::ByHand;
use crate::stage::Stage;

cases!("waiting":
    a_wait_of_zero_tries_once,
    the_longest_wait_ends_with_the_grant,
    a_wait_that_ends_before_the_grant_is_refused,
    a_wait_that_ends_after_the_grant_is_granted,
    a_wait_that_ends_with_the_grant_is_decided_once,
    one_deadline_covers_the_local_and_the_remote_wait [Need::Order],
    a_short_wait_behind_a_long_one_ends_in_time,
);

/// By how much a wait ends before or after a grant.
const APART: Duration = Duration::from_millis(50);

/// By how much a wait may be late on a machine that has other things to do.
const GENEROUS: Duration = Duration::from_secs(5);

async fn a_wait_of_zero_tries_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = theirs.lock("door")?;
    let held = ours.lock("door")?.acquire().await?;
    let began = Instant::now();
    ensure!(!lock.try_lock_for(Duration::ZERO).await?, "a lock that is held was granted");
    ensure!(lock.try_acquire_for(Duration::ZERO).await?.is_none(), "a lock that is held was granted");
    ensure!(began.elapsed() < GENEROUS, "trying twice took {:?}", began.elapsed());
    held.release().await?;
    ensure!(lock.try_lock_for(Duration::ZERO).await?, "a free lock was refused");
    Ok(lock.unlock().await?)
}

async fn the_longest_wait_ends_with_the_grant(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = theirs.lock("door")?;
    ensure!(lock.try_lock_for(Duration::MAX).await?, "a free lock was refused");
    lock.unlock().await?;
    let held = ours.lock("door")?.acquire().await?;
    let mut waiter = ByHand::new(lock.try_acquire_for(Duration::MAX));
    ensure!(waiter.poll().is_none(), "a lock that is held was answered for at once");
    stage.queued(&ours, "door", 1).await?;
    held.release().await?;
    stage.soon("the grant", waiter.wants_poll()).await?;
    let granted = waiter.poll().ok_or_else(|| Failure::new("woken and not answered"))??;
    let granted = granted.ok_or_else(|| Failure::new("a wait without an end was refused"))?;
    Ok(granted.release().await?)
}

/// Answers whether the lock was granted within `wait`, and checks that the answer is so at the server.
async fn decided(
    stage: &Stage,
    waiter: &LockClient,
    observer: &LockClient,
    wait: Duration,
) -> Outcome<Option<Duration>> {
    let began = Instant::now();
    let answer = waiter.lock("door")?.try_acquire_for(wait).await?;
    let took = began.elapsed();
    ensure!(took < wait + GENEROUS, "a wait of {wait:?} took {took:?}");
    let Some(guard) = answer else {
        ensure!(took >= wait, "a wait of {wait:?} was refused after {took:?}");
        return Ok(None);
    };
    ensure!(guard.hold().is_valid(), "granted, and not held: {:?}", guard.hold().end());
    stage.is_held(observer, "door").await?;
    guard.release().await?;
    Ok(Some(took))
}

async fn a_wait_that_ends_before_the_grant_is_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for _ in 0..3 {
        let held = ours.lock("door")?.acquire().await?;
        let answer = decided(stage, &theirs, &ours, Duration::from_millis(150)).await?;
        ensure!(answer.is_none(), "a lock that is held was granted");
        tokio::time::sleep(APART).await;
        held.release().await?;
        // A grant that comes late goes back.
        stage.becomes_free(&ours, "door").await?;
    }
    Ok(())
}

/// Waits that end at `end` after the release, over and over; answers how many were granted.
async fn released_before_the_end(stage: &Stage, end: Duration, rounds: usize) -> Outcome<usize> {
    let stage_clients = (stage.client().await?, stage.client().await?, stage.client().await?);
    let (ours, theirs, observer) = stage_clients;
    let wait = Duration::from_millis(200);
    let mut granted = 0;
    for _ in 0..rounds {
        let held = ours.lock("door")?.acquire().await?;
        let release = async {
            tokio::time::sleep(wait.saturating_sub(end)).await;
            held.release().await
        };
        let (released, answer) = tokio::join!(release, decided(stage, &theirs, &observer, wait));
        released?;
        granted += usize::from(answer?.is_some());
        stage.becomes_free(&observer, "door").await?;
    }
    Ok(granted)
}

/// A machine that is busy may be late once, but not every time.
async fn a_wait_that_ends_after_the_grant_is_granted(stage: &Stage) -> Outcome {
    let granted = released_before_the_end(stage, APART, 5).await?;
    ensure!(granted > 0, "none of 5 waits that ended {APART:?} after the release was granted");
    Ok(())
}

/// The answer may be either, and must be so.
async fn a_wait_that_ends_with_the_grant_is_decided_once(stage: &Stage) -> Outcome {
    for late in [0, 1, 2] {
        released_before_the_end(stage, Duration::from_millis(late), 4).await?;
    }
    Ok(())
}

/// Half of the time is spent behind a task of the same client, the rest behind another client.
async fn one_deadline_covers_the_local_and_the_remote_wait(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let wait = Duration::from_secs(3);
    let lock = ours.lock("door")?;
    let their_lock = theirs.lock("door")?;
    let held = lock.acquire().await?;
    let mut stranger = ByHand::new(their_lock.acquire());
    ensure!(stranger.poll().is_none(), "a lock that is held was granted");
    stage.queued(&ours, "door", 1).await?;
    let pass_on = async {
        tokio::time::sleep(wait / 2).await;
        held.release().await?;
        stage.soon("the stranger's turn", stranger.wants_poll()).await?;
        stranger.poll().ok_or_else(|| Failure::new("woken and not served"))?.map_err(Failure::from)
    };
    let began = Instant::now();
    let (their_guard, answer) = tokio::join!(pass_on, lock.try_acquire_for(wait));
    let took = began.elapsed();
    ensure!(answer?.is_none(), "a lock that another client holds was granted");
    // Two deadlines, one after the other, would make it half as long again.
    ensure!(took >= wait && took < wait + wait * 2 / 5, "a wait of {wait:?} took {took:?}");
    Ok(their_guard?.release().await?)
}

/// The local queue has one attempt at the server for all, which must not keep the second waiter longer than it wants.
async fn a_short_wait_behind_a_long_one_ends_in_time(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.lock("door")?.acquire().await?;
    let lock: Arc<dyn DistributedLock> = ours.lock("door")?;
    let mut long = ByHand::new(lock.acquire());
    ensure!(long.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "door", 1).await?;
    let answer = decided(stage, &ours, &theirs, Duration::from_millis(100)).await?;
    ensure!(answer.is_none(), "a lock that is held was granted");
    held.release().await?;
    stage.soon("the long wait", long.wants_poll()).await?;
    let granted = long.poll().ok_or_else(|| Failure::new("woken and not served"))??;
    Ok(granted.release().await?)
}
