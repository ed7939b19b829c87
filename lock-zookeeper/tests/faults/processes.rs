//! Processes that hold or wait and are killed or paused.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::LossReason;

use crate::case::{cases, ensure};
use crate::helper::Helper;
use crate::stage::{LONG, ROOM, Stage};

cases!("processes":
    a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it,
    a_waiter_that_stood_still_across_its_grant_without_other_waiters,
    a_holder_that_stood_still_for_longer_than_its_session_says_that_it_has_lost,
    a_killed_holder_keeps_the_lock_until_its_session_ends,
    a_killed_waiter_is_skipped,
);

const SESSION: Duration = Duration::from_secs(12);

const SHORT: &str = "session_timeout=12s";

/// The event of the grant waits for the process in the socket, and is outdated when the process continues.
async fn a_waiter_that_stood_still_across_its_grant_does_not_believe_in_it() -> Outcome {
    let stage = Stage::new().await?;
    let (client, third) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut sleeper = Helper::start(&stage.url(SHORT), ROOM).await?;
    stage.nodes_are(2).await?;
    let dead = stage.path(1).await?;
    let last = stage.in_line(&third, 3).await?;
    sleeper.stop().await?;
    held.release().await?;
    let (guard, _) = last.granted().await?;
    ensure!(stage.server.node(&dead).await?.is_none(), "given to the one behind it while its session lived");
    sleeper.resume().await?;
    // It is in the queue again, with another session.
    stage.nodes_are(2).await?;
    ensure!(sleeper.has_not_said("acquired").await, "it believed in its grant");
    stage.is_held_by(&guard, "beside the one that runs again").await?;
    guard.release().await?;
    sleeper.acquired().await
}

async fn a_waiter_that_stood_still_across_its_grant_without_other_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut sleeper = Helper::start(&stage.url(SHORT), ROOM).await?;
    stage.nodes_are(2).await?;
    let dead = stage.path(1).await?;
    sleeper.stop().await?;
    held.release().await?;
    stage.is_gone(&dead).await?;
    sleeper.resume().await?;
    sleeper.acquired().await?;
    let nodes = stage.nodes().await?;
    ensure!(nodes.len() == 1, "it holds by {nodes:?}");
    Ok(())
}

async fn a_holder_that_stood_still_for_longer_than_its_session_says_that_it_has_lost() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut sleeper = Helper::start(&stage.url(SHORT), ROOM).await?;
    sleeper.acquired().await?;
    let waiter = stage.in_line(&client, 2).await?;
    sleeper.stop().await?;
    let (guard, _) = waiter.granted().await?;
    sleeper.resume().await?;
    let reason = sleeper.lost().await?;
    // Either reason, whichever it finds out first.
    let sound = [LossReason::Expired, LossReason::SessionClosed].map(|reason| reason.to_string());
    ensure!(sound.contains(&reason), "lost because {reason}");
    stage.is_held_by(&guard, "beside the one that runs again").await?;
    Ok(guard.release().await?)
}

/// Two session timeouts are long even for a busy machine.
async fn a_killed_holder_keeps_the_lock_until_its_session_ends() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut holder = Helper::start(&stage.url(SHORT), ROOM).await?;
    holder.acquired().await?;
    let waiter = stage.in_line(&client, 2).await?;
    holder.kill().await?;
    let killed = Instant::now();
    let (guard, granted) = waiter.granted().await?;
    let took = granted - killed;
    // The last sign of life was at most a sixth of a session earlier.
    ensure!(took > SESSION / 2 && took < SESSION * 4, "granted after {took:?}");
    Ok(guard.release().await?)
}

async fn a_killed_waiter_is_skipped() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut first = Helper::start(&stage.url(SHORT), ROOM).await?;
    stage.nodes_are(2).await?;
    let dead = stage.path(1).await?;
    let second = stage.client(LONG).await?;
    let waiter = stage.in_line(&second, 3).await?;
    first.kill().await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(stage.server.node(&dead).await?.is_none(), "skipped while its session lived");
    guard.release().await?;
    stage.nothing_is_left_now("after the release").await
}
