//! `pg_terminate_backend` and `pg_cancel_backend` for holders and waiters.

use conformance_tests::Outcome;
use conformance_tests::faults::event_recorder::EventRecorder;
use lock_core::{ErrorKind, LossReason};

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, ensure, soon};

cases!("terminations":
    a_terminated_holder_learns_of_it,
    all_locks_of_a_terminated_session_are_lost,
    a_cancelled_holder_holds,
    a_terminated_waiter_waits_again,
    a_cancelled_waiter_waits_again,
    an_idle_session_that_was_terminated_costs_nothing,
);

async fn a_terminated_holder_learns_of_it() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(WATCHFUL).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    stage.terminate(&stage.holder().await?).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    let (next, _) = waiter.granted().await?;
    ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    let kind = guard.release().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    soon("the undoing", ours.idle()).await?;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    next.release().await?;
    stage.works(&ours).await
}

async fn all_locks_of_a_terminated_session_are_lost() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(WATCHFUL).await?;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    ensure!(stage.held().await? == 20, "{} are held", stage.held().await?);
    let session = stage.holder_of("room 0").await?.unwrap_or_default();
    ensure!(stage.holder_of("room 19").await?.as_ref() == Some(&session), "they do not share a session");
    stage.terminate(&session).await?;
    for guard in &guards {
        let reason = soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    }
    drop(guards);
    stage.nothing_is_left(&client, "after the loss").await?;
    stage.works(&client).await
}

async fn a_cancelled_holder_holds() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(WATCHFUL).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.holder().await?;
    for _ in 0..50 {
        stage.cancel(&session).await?;
    }
    ensure!(stage.holder().await? == session && guard.hold().is_valid(), "the lock was lost");
    guard.release().await?;
    stage.nothing_is_left(&client, "after the release").await
}

async fn a_terminated_waiter_waits_again() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    stage.terminate(&stage.waiters().await?.concat()).await?;
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_cancelled_waiter_waits_again() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    for _ in 0..5 {
        stage.queued(1).await?;
        stage.cancel_waiter().await?;
    }
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "after the release").await
}

async fn an_idle_session_that_was_terminated_costs_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage
        .query("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename='locks' AND datname=current_database()")
        .await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}
