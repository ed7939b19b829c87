//! Cases: closing a client in an orderly way.

use std::time::Duration;

use crate::{During, Outcome, ensure};
use lock_core::{ErrorKind, HoldEnd, LossReason};

use crate::case::cases;
use crate::probe::{ByHand, Event, EventRecorder};
use crate::stage::Stage;

cases!("closing":
    close_waits_for_releases,
    close_waits_for_what_is_held,
    close_ends_waits_and_refuses_new_ones,
    close_takes_what_is_still_held_and_tells_its_holder,
    a_signal_closes_the_client_and_its_holders_learn_of_it,
    idle_means_that_nothing_is_left,
);

async fn close_waits_for_releases(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    for _ in 0..stage.rounds(10) {
        let client = stage.client().await?;
        for number in 0..20 {
            drop(client.mutex(format!("room {number}"))?.acquire().await?);
        }
        client.close(stage.patience()).await.during("close")?;
        for number in 0..20 {
            // Immediately: what close has confirmed needs no more time.
            stage.is_free(&observer, &format!("room {number}")).await?;
        }
    }
    Ok(())
}

async fn close_waits_for_what_is_held(stage: &Stage) -> Outcome {
    let (ours, observer) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    let mut close = ByHand::new(ours.close(stage.patience()));
    ensure!(close.poll().is_none(), "closed while a lock is held");
    guard.release().await?;
    stage.soon("the end of close", close.wants_poll()).await?;
    while close.poll().is_none() {
        stage.soon("the end of close", close.wants_poll()).await?;
    }
    stage.is_free(&observer, "room").await
}

async fn close_ends_waits_and_refuses_new_ones(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 1).await?;
    ours.close(stage.patience()).await.during("close")?;
    let waiters = stage.harness().waiting_for(&theirs, held.hold().name()).await?;
    ensure!(waiters == 0, "{waiters} of a client that is closed wait at the server");
    let kind = waiter.poll().map(|answer| answer.map(drop).map_err(|error| error.kind()));
    ensure!(kind == Some(Err(ErrorKind::Closed)), "the wait was answered {kind:?}");
    let kind = lock.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Closed), "a new acquisition was answered {kind:?}");
    let kind = ours.mutex("another").map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Closed), "a new lock was answered {kind:?}");
    Ok(held.release().await?)
}

async fn close_takes_what_is_still_held_and_tells_its_holder(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    // Not a client of the stage, which closes its clients and expects no error.
    let client = stage.harness().client(stage.builder()).await?;
    let lock = client.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let kind = client.close(Duration::from_millis(10)).await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unconfirmed), "close with a lock held was answered {kind:?}");
    let end = guard.hold().end();
    ensure!(end == Some(HoldEnd::Lost(LossReason::ClientClosed)), "the hold ended as {end:?}");
    let told = recorder.has(|event| matches!(event, Event::Abort(..)).then_some(*event));
    stage.soon("on_abort", told).await?;
    let kind = guard.release().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    stage.becomes_free(&observer, "room").await
}

async fn a_signal_closes_the_client_and_its_holders_learn_of_it(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let (signal, comes) = tokio::sync::oneshot::channel::<()>();
    let closed = ours.close_on(comes, stage.patience());
    let guard = ours.mutex("room")?.acquire().await?;
    let mut closing = ByHand::new(ours.closing());
    ensure!(closing.poll().is_none(), "it closes before the signal");
    drop(signal);
    stage.soon("the begin of the close", closing.finish()).await?;
    let kind = ours.mutex("another").map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Closed), "a new lock was answered {kind:?}");
    ensure!(guard.hold().is_valid(), "lost by an orderly close: {:?}", guard.hold().end());
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    stage.soon("the end of the close", closed).await??;
    stage.is_free(&theirs, "room").await
}

async fn idle_means_that_nothing_is_left(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    for _ in 0..20 {
        drop(lock.acquire().await?);
        stage.soon("idle", ours.idle()).await?;
        stage.is_free(&theirs, "room").await?;
        let held = theirs.mutex("room")?.acquire().await?;
        let mut waiter = ByHand::new(lock.acquire());
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&theirs, "room", 1).await?;
        drop(waiter);
        stage.soon("idle", ours.idle()).await?;
        let waiters = stage.harness().waiting_for(&theirs, held.hold().name()).await?;
        ensure!(waiters == 0, "the client is idle, and {waiters} wait at the server");
        held.release().await?;
    }
    Ok(())
}
