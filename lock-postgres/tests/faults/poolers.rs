//! A pooler in front of the server: one that gives a session to several clients is refused.

use conformance_tests::Outcome;
use conformance_tests::faults::event_recorder::EventRecorder;
use lock_core::{ErrorKind, LossReason};
use test_servers::{PgBouncer, left_out};

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, connect, ensure, soon};

cases!("poolers":
    are_refused_in_all_modes,
    that_drop_what_they_do_not_know_are_refused,
    in_session_mode_keep_the_promise,
    that_pass_a_session_on_keep_it_for_its_next_client,
    show_the_locks_of_a_session_and_not_its_tag,
);

const MODES: [&str; 3] = ["transaction", "statement", "session"];

async fn is_refused(stage: &Stage, pooler: &PgBouncer) -> Outcome {
    let error = connect(&stage.url_at(pooler.address())).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    ensure!(error.map(|error| error.kind()) == Some(ErrorKind::Unsupported), "answered {text:?}");
    ensure!(text.contains("pooler=session"), "{text}");
    Ok(())
}

async fn are_refused_in_all_modes() -> Outcome {
    if left_out("pgbouncer").is_some() {
        return Ok(());
    }
    let stage = Stage::new().await?;
    for mode in MODES {
        is_refused(&stage, &stage.server.pooler(mode, &[]).await?).await?;
    }
    Ok(())
}

/// Then the session of the server has neither the lease nor the tag.
async fn that_drop_what_they_do_not_know_are_refused() -> Outcome {
    if left_out("pgbouncer").is_some() {
        return Ok(());
    }
    let stage = Stage::new().await?;
    for mode in MODES {
        let pooler = stage.server.pooler(mode, &[("ignore_startup_parameters", "options")]).await?;
        is_refused(&stage, &pooler).await?;
    }
    Ok(())
}

async fn in_session_mode_keep_the_promise() -> Outcome {
    if left_out("pgbouncer").is_some() {
        return Ok(());
    }
    let stage = Stage::new().await?;
    let pooler = stage.server.pooler("session", &[]).await?;
    let (address, options) = (pooler.address(), "pooler=session&lease=10m&validation_interval=50ms");
    let (ours, theirs) = (stage.client_at(address, options).await?, stage.client_at(address, options).await?);
    let lock = ours.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    let waiter = Waiter::of(&ours)?;
    stage.queued(1).await?;
    waiter.give_up().await?;
    stage.queued(0).await?;
    guard.release().await?;
    let recorder = EventRecorder::of(&lock);
    let _guard = lock.acquire().await?;
    stage.terminate(&stage.holder().await?).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    stage.works(&theirs).await
}

const THROUGH: &str = "pooler=session&lease=10m";

/// A client that has lost its connection makes sure that the server has nothing of it. By then another client has its session.
async fn that_pass_a_session_on_keep_it_for_its_next_client() -> Outcome {
    if left_out("pgbouncer").is_some() {
        return Ok(());
    }
    let stage = Stage::new().await?;
    let pooler = stage.server.pooler("session", &[("default_pool_size", "1")]).await?;
    let proxy = stage.proxy()?;
    proxy.turn_to(pooler.address());
    let ours = stage.client_at(proxy.address(), THROUGH).await?;
    let lost = ours.mutex(ROOM)?.acquire().await?;
    let session = stage.holder().await?;
    // Its next connection, which the pooler has no session for.
    proxy.turn_to(stage.server.address());
    proxy.cut();
    let theirs = stage.client_at(pooler.address(), THROUGH).await?;
    let guard = soon("the lock", theirs.mutex(ROOM)?.acquire()).await??;
    ensure!(stage.holder().await? == session, "the session was not passed on");
    // Only now it learns that its connection has ended, and repeats the release until the server has nothing of it.
    let _ = soon("the release", lost.release()).await?;
    soon("the undoing", ours.idle()).await?;
    ensure!(stage.holder_of(ROOM).await? == Some(session), "the session of another client has ended");
    Ok(guard.release().await?)
}

async fn show_the_locks_of_a_session_and_not_its_tag() -> Outcome {
    if left_out("pgbouncer").is_some() {
        return Ok(());
    }
    let stage = Stage::new().await?;
    let pooler = stage.server.pooler("session", &[]).await?;
    let address = pooler.address();
    let (ours, operator) = (stage.client_at(address, THROUGH).await?, stage.client(LONG).await?);
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let holder = guard.hold().id();
    let shown: Vec<_> = operator.status(ROOM).await?.holders.into_iter().map(|shown| shown.id).collect();
    ensure!(shown == [holder.clone()], "{shown:?}");
    let broken = operator.break_holder(ROOM, &holder).await?;
    ensure!(broken.taken_away && broken.also_lost == Some(Vec::new()), "{broken:?}");
    Ok(())
}
