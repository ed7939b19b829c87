//! Silent connections that do not end: what is sent arrives late or never.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use test_servers::{Direction, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Stage, Waiter, soon, until};

cases!("silence":
    a_holder_whose_requests_vanish_stops_before_anyone_else_has_the_lock,
    a_holder_whose_answers_vanish_stops_before_anyone_else_has_the_lock,
    a_holder_whom_nothing_reaches_stops_before_anyone_else_has_the_lock,
    a_waiter_whom_nothing_reaches_is_passed_over,
    a_wait_that_the_server_has_forgotten_begins_anew,
    a_wait_that_ends_in_silence_is_an_error,
    an_unused_connection_may_be_silent,
);

const LATE: Duration = Duration::from_secs(4);

async fn a_holder_whose_requests_vanish_stops_before_anyone_else_has_the_lock(
    flavour: MySqlFlavour,
) -> Outcome {
    stops_in_time(flavour, &[Direction::ToServer]).await
}

async fn a_holder_whose_answers_vanish_stops_before_anyone_else_has_the_lock(
    flavour: MySqlFlavour,
) -> Outcome {
    stops_in_time(flavour, &[Direction::ToClient]).await
}

async fn a_holder_whom_nothing_reaches_stops_before_anyone_else_has_the_lock(
    flavour: MySqlFlavour,
) -> Outcome {
    stops_in_time(flavour, &[Direction::ToServer, Direction::ToClient]).await
}

/// The server ends the session after `wait_timeout`, and the holder learns of the loss before.
async fn stops_in_time(flavour: MySqlFlavour, directions: &[Direction]) -> Outcome {
    // Long enough that a machine which is late within the tolerance is still in time.
    let lease = Duration::from_secs(12);
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (ours, theirs) = (stage.client_at(proxy.address(), "lease=12s").await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    let severed = Instant::now();
    for direction in directions {
        proxy.blackhole(*direction);
    }
    let suspected = recorder.suspect().await?;
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && suspected <= aborted, "{:?}", recorder.events());
    ensure!(aborted < severed + lease, "told {:?} after the last contact", aborted - severed);
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    // The server waits for a lease after the last message that arrived there, which was sent within an interval.
    ensure!(
        granted < severed + lease * 5 / 4 + LATE,
        "granted {:?} after the last contact",
        granted - severed
    );
    proxy.heal();
    drop(guard);
    soon("the undoing", ours.idle()).await?;
    ensure!(next.hold().is_valid() && recorder.aborts() == 1, "{:?}", recorder.events());
    next.release().await?;
    stage.works(&ours).await
}

/// The server grants it the lock, and frees the lock after the lease: no client waits for ever.
async fn a_waiter_whom_nothing_reaches_is_passed_over(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, next) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let silent = stage.client_at(proxy.address(), "lease=6s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&silent)?;
    stage.queued(1).await?;
    let second = Waiter::of(&next)?;
    stage.queued(2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    held.release().await?;
    let (guard, _) = second.granted().await?;
    ensure!(!first.is_finished(), "the silent one was granted");
    // The grant that was on its way arrives now, and no longer counts.
    proxy.heal();
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid() && !first.is_finished(), "the late grant was believed");
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    Ok(guard.release().await?)
}

/// Its connection has ended at the server, which the client does not learn. All checks find that another client holds the lock.
async fn a_wait_that_the_server_has_forgotten_begins_anew(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    // The client checks the wait after an interval of fifteen seconds.
    let client = stage.client_at(proxy.address(), "lease=60s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    proxy.cut_at_server();
    stage.queued(0).await?;
    stage.queued(1).await?;
    ensure!(held.hold().is_valid() && !waiter.is_finished(), "the lock was given twice");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_wait_that_ends_in_silence_is_an_error(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=500ms").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let waiter = tokio::spawn(async move { lock.try_acquire_for(Duration::from_secs(8)).await });
    stage.queued(1).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let answer = soon("the end of the wait", waiter).await??.map_err(|error| error.kind());
    ensure!(matches!(answer, Err(ErrorKind::Unreachable)), "the wait was answered {answer:?}");
    proxy.heal();
    soon("the undoing", client.idle()).await?;
    stage.queued(0).await?;
    held.release().await?;
    stage.works(&client).await
}

/// The client replaces a silent connection without holds.
async fn an_unused_connection_may_be_silent(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=300ms").await?;
    stage.works(&client).await?;
    proxy.blackhole(Direction::ToClient);
    let kind = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unreachable), "a try was answered {kind:?}");
    proxy.heal();
    soon("the undoing", client.idle()).await?;
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await?;
    stage.works(&client).await
}
