//! A suspended server: it accepts connections and answers nothing.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::LossReason;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{ROOM, Stage, Waiter};

cases!("stopped":
    for_half_of_the_lease_and_the_hold_goes_on,
    for_twice_the_lease_and_the_hold_is_lost_in_time,
);

async fn for_half_of_the_lease_and_the_hold_goes_on() -> Outcome {
    let lease = Duration::from_secs(12);
    let stage = Stage::new().await?;
    let client = stage.client("lease=12s&timeout=500ms").await?;
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
    stage.nothing_is_left("after the release").await?;
    stage.works(&client).await
}

async fn for_twice_the_lease_and_the_hold_is_lost_in_time() -> Outcome {
    let lease = Duration::from_secs(8);
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client("lease=8s").await?, stage.client("lease=8s").await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    stage.server.stop()?;
    let stopped = Instant::now();
    let suspected = recorder.suspect().await?;
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && suspected <= aborted, "{:?}", recorder.events());
    // The last renewal that arrived was sent before the server stopped.
    ensure!(aborted < stopped + lease, "told {:?} after the server stopped", aborted - stopped);
    tokio::time::sleep((lease * 2).saturating_sub(stopped.elapsed())).await;
    ensure!(!waiter.is_finished(), "granted by a server that stands still");
    stage.server.resume()?;
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    drop(guard);
    ours.idle().await;
    // The renewals and the release of the lost hold have arrived by now, and did nothing to the next one.
    tokio::time::sleep(lease).await;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.works(&ours).await
}
