//! Waits hold snapshots, which must not keep others waiting.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, until};

cases!("concurrently":
    an_index_is_built_beside_waiters,
    a_wait_with_an_old_snapshot_begins_anew_behind_those_of_others,
);

/// Several times what building the index takes: a client looks after its waits every ten seconds.
const BOUND: Duration = Duration::from_mins(2);

pub async fn build_an_index(stage: &Stage) -> Outcome {
    stage.query("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await?;
    let building = stage.query("CREATE INDEX CONCURRENTLY ON big (number)");
    let built = tokio::time::timeout(BOUND, building).await;
    built.map_err(|_| Failure::new(format!("the index: not within {BOUND:?}")))?.map(drop)
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
    build_an_index(&stage).await?;
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

/// `VACUUM` removes nothing that the snapshot of a wait might show.
async fn a_wait_with_an_old_snapshot_begins_anew_behind_those_of_others() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client(LONG).await?;
    let first = Waiter::of(&client)?;
    stage.queued(1).await?;
    // Each takes a number of its own.
    stage
        .query("DO $$BEGIN FOR number IN 1..50001 LOOP PERFORM pg_current_xact_id();COMMIT;END LOOP;END$$")
        .await?;
    let later = stage.client(LONG).await?;
    let second = Waiter::of(&later)?;
    stage.queued(2).await?;
    let oldest = "SELECT max(age(backend_xmin)) FROM pg_stat_activity WHERE wait_event='advisory' AND datname=current_database()";
    until("the wait begins anew", || async {
        Ok(stage.number(oldest).await? < 50_000 && stage.waiters().await?.len() == 2)
    })
    .await?;
    held.release().await?;
    let (guard, _) = second.granted().await?;
    ensure!(!first.is_finished(), "both have the lock");
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}
