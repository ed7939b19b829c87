//! `KILL` and `KILL QUERY` of holders and of waiters.

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{ENDED_SOON, KILLABLE, LONG, ROOM, Stage, Waiter, as_time_passes, soon, until};

cases!("kills":
    a_killed_holder_is_notified,
    all_locks_of_a_killed_connection_are_lost,
    the_first_to_notice_notifies_all,
    an_interrupted_holder_holds,
    a_killed_waiter_waits_again,
    an_interrupted_waiter_waits_again,
    an_interrupted_release_is_repeated,
    an_idle_connection_that_was_killed_costs_nothing,
);

async fn a_killed_holder_is_notified(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(KILLABLE).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    stage.server.end_connection(&stage.holder().await?).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    let (next, _) = waiter.granted().await?;
    ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    let kind = guard.release().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    ours.idle().await;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    next.release().await?;
    stage.works(&ours).await
}

async fn all_locks_of_a_killed_connection_are_lost(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(KILLABLE).await?;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    ensure!(stage.connections().await? == 1, "{} connections", stage.connections().await?);
    let ids = stage.server.query("SELECT ID FROM information_schema.PROCESSLIST WHERE USER='locks'").await?;
    let id = ids.into_iter().flatten().flatten().next().unwrap_or_default();
    stage.server.end_connection(&id).await?;
    for guard in &guards {
        let reason = crate::stage::soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    }
    drop(guards);
    client.idle().await;
    stage.works(&client).await
}

/// Nothing else checks the connection in the time that passes for the client.
async fn the_first_to_notice_notifies_all(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (client, time) = stage.frozen_at(stage.server.address(), ENDED_SOON).await?;
    let (first, second) = (client.mutex("first")?.acquire().await?, client.mutex("second")?.acquire().await?);
    let connection = stage.holder_of("first").await?.unwrap_or_default();
    ensure!(stage.holder_of("second").await? == Some(connection.clone()), "each has a connection");
    stage.server.end_connection(&connection).await?;
    ensure!(second.hold().is_valid(), "the loss is reported before it can be noticed");
    let releasing = tokio::spawn(first.release());
    let reason = soon("the loss", second.lost()).await?;
    ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    // An error reports that the lock was lost.
    let _ = as_time_passes(&time, "the release", releasing).await??;
    Ok(())
}

async fn an_interrupted_holder_holds(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=10m&validation_interval=10ms").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let holder = stage.holder().await?;
    for _ in 0..500 {
        stage.server.query(&format!("KILL QUERY {holder}")).await?;
    }
    ensure!(stage.holder().await? == holder, "another connection has the lock");
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    guard.release().await?;
    stage.works(&client).await
}

async fn a_killed_waiter_waits_again(flavour: MySqlFlavour) -> Outcome {
    waits_again(flavour, "KILL").await
}

async fn an_interrupted_waiter_waits_again(flavour: MySqlFlavour) -> Outcome {
    waits_again(flavour, "KILL QUERY").await
}

async fn waits_again(flavour: MySqlFlavour, command: &str) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    for _ in 0..3 {
        stage.queued(1).await?;
        for id in stage.waiters().await? {
            // It may have ended by itself.
            let _ = stage.server.query(&format!("{command} {id}")).await;
        }
    }
    stage.queued(1).await?;
    ensure!(!waiter.is_finished() && held.hold().is_valid(), "the lock was given twice");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.works(&holder).await
}

/// Whatever the interruption hits, the lock is free after the release.
async fn an_interrupted_release_is_repeated(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let mut session = stage.server.session().await?;
    let lock = client.mutex(ROOM)?;
    for round in 0..500 {
        let guard = lock.acquire().await?;
        let holder = stage.holder().await?;
        let kill = format!("KILL QUERY {holder}");
        let (released, _) = tokio::join!(guard.release(), async {
            for _ in 0..round % 5 {
                tokio::task::yield_now().await;
            }
            session.query(&kill).await
        });
        released?;
        let holder = stage.holder_of(ROOM).await?;
        ensure!(holder.is_none(), "round {round}: released, and still held");
    }
    Ok(())
}

/// A caller that tries does not notice that the server has ended a connection without holds.
async fn an_idle_connection_that_was_killed_costs_nothing(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(ENDED_SOON).await?;
    stage.works(&client).await?;
    let ids = stage.server.query("SELECT ID FROM information_schema.PROCESSLIST WHERE USER='locks'").await?;
    for id in ids.into_iter().flatten().flatten() {
        stage.server.end_connection(&id).await?;
    }
    until("the server has ended it", || async { Ok(stage.connections().await? == 0) }).await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}
