//! Processes that are killed while they hold or wait.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;

use crate::case::{cases, ensure};
use crate::helper::Helper;
use crate::stage::{LONG, ROOM, Stage, Waiter, until, with_options};

cases!("processes":
    a_killed_holder_keeps_the_lock_until_its_lease_ends_and_no_longer,
    a_killed_waiter_is_skipped_at_once,
);

/// The waiter asks when the lease ends: its next heartbeat would be more than a minute away.
async fn a_killed_holder_keeps_the_lock_until_its_lease_ends_and_no_longer() -> Outcome {
    let stage = Stage::new().await?;
    let mut holder = Helper::start(&with_options(&stage.server.url(), "lease=3s"), ROOM).await?;
    holder.acquired().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    holder.kill().await?;
    let asked = Instant::now();
    let left = stage.lease_left().await?;
    let (guard, granted) = waiter.granted().await?;
    let took = granted.duration_since(asked);
    // The server counts whole milliseconds.
    ensure!(took + Duration::from_millis(1) >= left, "granted after {took:?}, the lease lasted {left:?}");
    Ok(guard.release().await?)
}

/// If it were skipped only at its deadline, the next waiter would have to wait for minutes.
async fn a_killed_waiter_is_skipped_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut first = Helper::start(&with_options(&stage.server.url(), LONG), ROOM).await?;
    stage.queued(1).await?;
    let second = stage.client(LONG).await?;
    let waiter = Waiter::of(&second)?;
    stage.queued(2).await?;
    first.kill().await?;
    until("the server has noticed", || async { Ok(stage.connections().await?.len() == 2) }).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}
