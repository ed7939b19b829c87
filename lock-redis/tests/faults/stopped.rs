//! A suspended server: it accepts connections and answers nothing.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{ROOM, Stage, Waiter};

cases!("stopped":
    for_half_of_the_lease_and_the_hold_goes_on,
    for_twice_the_lease_and_the_hold_is_lost_in_time,
    a_wait_that_ends_meanwhile_is_an_error,
    a_wait_that_ends_meanwhile_behind_another_is_an_error,
);

/// Of a caller that does not wait for ever. The server stops well before the client last asks it.
const WAIT: Duration = Duration::from_secs(12);

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

/// The attempt at the server belongs to a caller that waits for ever, and its next heartbeat is far away.
async fn a_wait_that_ends_meanwhile_behind_another_is_an_error() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client("lease=60s&timeout=500ms").await?, stage.client("lease=60s").await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&ours)?;
    stage.queued(1).await?;
    let lock = ours.mutex(ROOM)?;
    let second = tokio::spawn(async move { lock.try_acquire_for(WAIT).await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    stage.server.stop()?;
    let answered = second.await?.map_err(|error| error.kind());
    stage.server.resume()?;
    ensure!(matches!(answered, Err(ErrorKind::Unreachable)), "the wait was answered {answered:?}");
    held.release().await?;
    let (guard, _) = first.granted().await?;
    Ok(guard.release().await?)
}

/// It is unknown whether the other client still holds the lock.
async fn a_wait_that_ends_meanwhile_is_an_error() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client("lease=60s&timeout=500ms").await?, stage.client("lease=60s").await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let lock = ours.mutex(ROOM)?;
    let waiter = tokio::spawn(async move { lock.try_acquire_for(WAIT).await });
    stage.queued(1).await?;
    stage.server.stop()?;
    let answered = waiter.await?;
    let tried = ours.mutex("another room")?.try_acquire().await;
    stage.server.resume()?;
    for (what, answer) in [("the wait", answered), ("a try", tried)] {
        let kind = answer.map_err(|error| error.kind());
        ensure!(matches!(kind, Err(ErrorKind::Unreachable)), "{what} was answered {kind:?}");
    }
    held.release().await?;
    ours.idle().await;
    stage.nothing_is_left("after the wait").await
}
