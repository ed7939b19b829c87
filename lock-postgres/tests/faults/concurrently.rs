//! Waits hold snapshots, which must not keep others waiting.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, soon};

cases!("concurrently":
    an_index_is_built_beside_waiters,
    an_index_is_built_beside_waiters_that_poll,
);

/// Many times what building the index takes.
const BOUND: Duration = Duration::from_secs(20);

async fn build_an_index(stage: &Stage) -> Outcome<Duration> {
    stage.query("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await?;
    let began = Instant::now();
    soon("the index", stage.query("CREATE INDEX CONCURRENTLY ON big (number)")).await??;
    Ok(began.elapsed())
}

async fn an_index_is_built_beside_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client(LONG).await?;
    let first = Waiter::of(&client)?;
    stage.queued(1).await?;
    // Waits for several locks are of one client, too.
    let other = holder.mutex("another room")?.acquire().await?;
    let beside = Waiter::start(client.mutex("another room")?);
    stage.queued(2).await?;
    let later = stage.client(LONG).await?;
    let waiters = [first, Waiter::of(&later)?];
    stage.queued(3).await?;
    let took = build_an_index(&stage).await?;
    ensure!(took < BOUND, "the index took {took:?}");
    ensure!(held.hold().is_valid(), "the lock was lost");
    stage.queued(3).await?;
    held.release().await?;
    // Those of one client may have overtaken those of the other.
    let [first, second] = waiters.map(|waiter| {
        tokio::spawn(async move {
            let (guard, _) = waiter.granted().await?;
            Outcome::Ok(guard.release().await?)
        })
    });
    first.await??;
    second.await??;
    other.release().await?;
    let (guard, _) = beside.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

async fn an_index_is_built_beside_waiters_that_poll() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client("lease=10m&wait=poll").await?;
    let waiter = Waiter::of(&client)?;
    let took = build_an_index(&stage).await?;
    ensure!(took < BOUND, "the index took {took:?}");
    ensure!(stage.waiters().await?.is_empty(), "a session waits at the server");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}
