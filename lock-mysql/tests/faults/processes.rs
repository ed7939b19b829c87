//! Processes that hold or wait and are killed or paused.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::helper::Helper;
use crate::stage::{LONG, ROOM, Stage, Waiter, with_options};

cases!("processes":
    a_killed_holder_frees_the_lock_at_once,
    a_killed_waiter_leaves_the_queue,
    a_stopped_holder_keeps_the_lock_for_its_lease,
    a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it,
);

/// If the server freed the lock only at the end of the lease, the next waiter would have to wait for minutes.
async fn a_killed_holder_frees_the_lock_at_once(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let mut holder = Helper::start(&with_options(&stage.url(), LONG), ROOM).await?;
    holder.acquired().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    holder.kill().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_killed_waiter_leaves_the_queue(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
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

async fn a_stopped_holder_keeps_the_lock_for_its_lease(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let mut holder = Helper::start(&with_options(&stage.url(), "lease=6s"), ROOM).await?;
    holder.acquired().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    holder.stop().await?;
    let asked = Instant::now();
    let silent = stage.longest_silence(&stage.holder().await?).await?;
    let (guard, granted) = waiter.granted().await?;
    let took = granted.duration_since(asked);
    ensure!(took + silent >= Duration::from_secs(6), "granted after {took:?}, and {silent:?} before");
    holder.resume().await?;
    holder.says("lost: its lease expired").await?;
    ensure!(guard.hold().is_valid(), "what the stopped holder did ended the next hold");
    Ok(guard.release().await?)
}

/// The grant waits for the process in the socket, and is outdated when the process continues.
async fn a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut sleeper = Helper::start(&with_options(&stage.url(), "lease=4s"), ROOM).await?;
    stage.queued(1).await?;
    sleeper.stop().await?;
    held.release().await?;
    let lock = client.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    sleeper.resume().await?;
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid(), "the hold of the one who was awake has ended");
    guard.release().await?;
    sleeper.acquired().await
}
