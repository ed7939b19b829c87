//! A paused server: it accepts connections and answers nothing.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::LossReason;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{ROOM, Stage, Waiter, soon};

cases!("stopped":
    for_half_of_the_lease_and_the_hold_goes_on,
    for_twice_the_lease_and_the_hold_is_lost_in_time,
);

async fn for_half_of_the_lease_and_the_hold_goes_on(flavour: MySqlFlavour) -> Outcome {
    // Long enough for a machine that is late by seconds after half of it.
    let lease = Duration::from_secs(16);
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=16s&timeout=500ms").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let stopped = Instant::now();
    stage.server.stop()?;
    recorder.suspect().await?;
    tokio::time::sleep((lease / 2).saturating_sub(stopped.elapsed())).await;
    stage.server.resume()?;
    recorder.restored().await?;
    tokio::time::sleep(lease).await;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.works(&client).await
}

async fn for_twice_the_lease_and_the_hold_is_lost_in_time(flavour: MySqlFlavour) -> Outcome {
    // Long enough that a machine which is late within the tolerance is still in time.
    let lease = Duration::from_secs(12);
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client("lease=12s").await?, stage.client("lease=12s").await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    let stopped = Instant::now();
    stage.server.stop()?;
    let suspected = recorder.suspect().await?;
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && suspected <= aborted, "{:?}", recorder.events());
    ensure!(aborted < stopped + lease, "told {:?} after the server stopped", aborted - stopped);
    tokio::time::sleep((lease * 2).saturating_sub(stopped.elapsed())).await;
    ensure!(!waiter.is_finished(), "granted by a server that stands still");
    stage.server.resume()?;
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    drop(guard);
    soon("the undoing", ours.idle()).await?;
    tokio::time::sleep(lease).await;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.works(&ours).await
}
