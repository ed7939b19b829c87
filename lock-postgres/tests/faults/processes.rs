//! Processes that hold or wait and are killed or paused.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use conformance_tests::faults::helper::Helper;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, with_options};

cases!("processes":
    a_killed_holder_frees_the_lock_at_once,
    a_killed_waiter_leaves_the_queue,
    a_stopped_holder_keeps_the_lock_for_its_lease,
    a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it,
);

/// If the server freed the lock only at the end of the lease, the next waiter would have to wait for minutes.
async fn a_killed_holder_frees_the_lock_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let mut holder = Helper::start(&with_options(&stage.url(), LONG), ROOM).await?;
    holder.acquired().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    holder.kill().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_killed_waiter_leaves_the_queue() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut first = Helper::start(&with_options(&stage.url(), LONG), ROOM).await?;
    stage.queued(1).await?;
    let second = stage.client(LONG).await?;
    let waiter = Waiter::of(&second)?;
    stage.queued(2).await?;
    first.kill().await?;
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_stopped_holder_keeps_the_lock_for_its_lease() -> Outcome {
    let lease = Duration::from_secs(6);
    let stage = Stage::new().await?;
    let mut holder = Helper::start(&with_options(&stage.url(), "lease=6s"), ROOM).await?;
    holder.acquired().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let session = stage.holder().await?;
    holder.stop().await?;
    let stopped = Instant::now();
    // When the server has sent the answer to its last message, the session becomes idle.
    let silent = stage
        .number(&format!(
            "SELECT ceil(extract(epoch FROM clock_timestamp()-state_change)*1000)::bigint FROM pg_stat_activity WHERE pid={session}"
        ))
        .await?;
    let (guard, granted) = waiter.granted().await?;
    let silence = granted.duration_since(stopped) + Duration::from_millis(silent);
    ensure!(silence + Duration::from_millis(50) >= lease, "granted after a silence of {silence:?}");
    guard.release().await?;
    holder.resume().await?;
    let reason = holder.lost().await?;
    ensure!(!reason.is_empty(), "it does not say why");
    Ok(())
}

async fn a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, next) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let mut first = Helper::start(&with_options(&stage.url(), "lease=6s"), ROOM).await?;
    stage.queued(1).await?;
    let second = Waiter::of(&next)?;
    stage.queued(2).await?;
    first.stop().await?;
    held.release().await?;
    // The server grants it the lock, and takes it back after the lease.
    let (guard, _) = second.granted().await?;
    first.resume().await?;
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid(), "both have the lock");
    guard.release().await?;
    first.acquired().await
}
