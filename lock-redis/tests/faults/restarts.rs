//! A server that restarts, with or without its data.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use test_servers::Data;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{ROOM, Stage, soon};

cases!("restarts":
    without_its_data_and_the_hold_is_lost,
    the_delay_after_a_restart_keeps_everybody_out,
    the_delay_is_reported_to_a_single_try,
    the_delay_is_over_for_a_server_that_runs_for_long,
    without_its_data_tokens_rise_for_one_that_hands_off_locally,
);

/// As after a failover to a replica without data.
async fn without_its_data_and_the_hold_is_lost() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=20s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let token = guard.token();
    stage.server.restart(Data::Lost).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "lost because {reason}");
    let released = guard.release().await.map_err(|error| error.kind());
    ensure!(released == Err(ErrorKind::Lost), "the release was answered {released:?}");
    let again = soon("the lock", lock.acquire()).await??;
    ensure!(again.token() > token, "the token fell from {token:?} to {:?}", again.token());
    again.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}

/// The server counts whole seconds since its start, and the last one may have been short.
async fn the_delay_after_a_restart_keeps_everybody_out() -> Outcome {
    let delay = Duration::from_secs(4);
    let stage = Stage::new().await?;
    let client = stage.client("lease=60s&restart_delay=4s").await?;
    just_before_a_new_second().await?;
    let before = Instant::now();
    stage.server.restart(Data::Lost).await?;
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    let old = before.elapsed();
    ensure!(old >= delay, "an old client acquired {old:?} after the restart");
    guard.release().await?;
    just_before_a_new_second().await?;
    let before = Instant::now();
    stage.server.restart(Data::Lost).await?;
    // The server counts whole seconds, and by now another one than when it started.
    tokio::time::sleep(Duration::from_millis(250)).await;
    let client = stage.client("lease=60s&restart_delay=4s").await?;
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    let new = before.elapsed();
    ensure!(new >= delay, "a new client acquired {new:?} after the restart");
    Ok(guard.release().await?)
}

async fn just_before_a_new_second() -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let wanted = Duration::from_millis(850);
    let fraction = Duration::from_nanos(now.subsec_nanos().into());
    let pause = (wanted + Duration::from_secs(1)).saturating_sub(fraction);
    tokio::time::sleep(pause).await;
    Ok(())
}

async fn the_delay_is_reported_to_a_single_try() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=60s&restart_delay=1h").await?;
    let lock = client.mutex(ROOM)?;
    for answer in [lock.try_acquire().await, lock.try_acquire_for(Duration::from_millis(200)).await] {
        let Err(error) = answer else {
            return Err(conformance_tests::Failure::new("a server that has just been started gave the lock"));
        };
        ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains("restart_delay"), "{error}");
    }
    client.idle().await;
    stage.nothing_is_left("after the refusals").await
}

async fn the_delay_is_over_for_a_server_that_runs_for_long() -> Outcome {
    let stage = Stage::new().await?;
    tokio::time::sleep(Duration::from_millis(3200)).await;
    let client = stage.client("lease=60s&restart_delay=1s").await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "the lock is free and was not given");
    Ok(())
}

/// What a hold has reserved and not used does not put the fence ahead of the clock, which alone is left then.
async fn without_its_data_tokens_rise_for_one_that_hands_off_locally() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=12s&local_handoff=1000/1h").await?;
    let lock = client.mutex(ROOM)?;
    let mut last = None;
    for _ in 0..300 {
        let guard = lock.acquire().await?;
        last = guard.token();
        guard.release().await?;
    }
    stage.server.command(&["FLUSHALL"]).await?;
    let guard = lock.acquire().await?;
    ensure!(guard.token() > last, "{last:?} was followed by {:?}", guard.token());
    Ok(guard.release().await?)
}
