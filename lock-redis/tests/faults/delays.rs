//! Networks that are slow, that cut messages into pieces, and that reset connections in the middle of a word.

use std::time::Duration;

use conformance_tests::Outcome;
use conformance_tests::faults::as_time_passes;
use lock_core::{LossReason, Operation};
use test_servers::{Direction, Losing};

use crate::case::{cases, ensure};
use crate::event_recorder::{Event, EventRecorder};
use crate::stage::{FROZEN, LONG, ROOM, Stage, Waiter, soon, until};

cases!("delays":
    of_a_third_of_the_lease_stop_the_holder_in_time,
    of_nine_tenths_of_the_lease_stop_the_holder_in_time,
    of_more_than_the_lease_stop_the_holder_in_time,
    of_a_tenth_of_the_lease_are_borne,
    a_server_that_was_always_far_away_is_waited_for,
    answers_that_are_late_one_after_the_other_break_nothing,
    answers_without_a_caller_break_nothing,
    everything_comes_in_pieces,
    replies_are_reset_halfway,
);

const LEASE: Duration = Duration::from_secs(3);

/// Renewals come too late or are given up; no other client has the lock before the holder has stopped. When the network is
/// quick again, the locks work as before.
async fn stops_in_time(delay: Duration) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ours = stage.client_at(proxy.address(), "lease=3s").await?;
    let theirs = stage.client(LONG).await?;
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    proxy.delay(Direction::ToServer, delay);
    proxy.delay(Direction::ToClient, delay);
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && !guard.hold().is_valid(), "lost because {reason}");
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    proxy.heal();
    drop(guard);
    soon("the release", ours.idle()).await?;
    until("its earlier connections are gone", || async { Ok(proxy.connections() == 1) }).await?;
    // This one carries nothing before the answer that was not sent before.
    ours.status(ROOM).await?;
    ensure!(next.hold().is_valid(), "the next hold has ended");
    next.release().await?;
    stage.works(&ours).await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}

async fn of_a_third_of_the_lease_stop_the_holder_in_time() -> Outcome {
    stops_in_time(LEASE.mul_f64(0.3)).await
}

async fn of_nine_tenths_of_the_lease_stop_the_holder_in_time() -> Outcome {
    stops_in_time(LEASE.mul_f64(0.9)).await
}

async fn of_more_than_the_lease_stop_the_holder_in_time() -> Outcome {
    stops_in_time(LEASE.mul_f64(1.1)).await
}

/// A renewal and its reply fit between two renewals, although the reply comes only when a tenth of the lease has passed.
async fn of_a_tenth_of_the_lease_are_borne() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let left = || guard.hold().remaining();
    for _ in 0..5 {
        proxy.hold_reply(Operation::Renew);
        // Less than a request may take, as a heartbeat may be on its way.
        time.advance(Duration::from_secs(45));
        as_time_passes(&time, "a renewal", proxy.is_held()).await?;
        time.advance(Duration::from_secs(30));
        let before = left();
        proxy.let_go();
        until("the reply arrives", || async { Ok(left() > before) }).await?;
    }
    ensure!(recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}

/// Connecting takes several round trips, each of which has the time of one request.
async fn a_server_that_was_always_far_away_is_waited_for() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    proxy.delay(Direction::ToServer, Duration::from_millis(400));
    proxy.delay(Direction::ToClient, Duration::from_millis(400));
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=2s").await?;
    stage.works(&client).await
}

/// Each reply takes longer than the server may stay silent, but other replies arrive all the time.
async fn answers_that_are_late_one_after_the_other_break_nothing() -> Outcome {
    late_answers_break_nothing(|_| true).await
}

/// The other replies are the sign of life, although their callers are gone.
async fn answers_without_a_caller_break_nothing() -> Outcome {
    late_answers_break_nothing(|step| step == 50).await
}

async fn late_answers_break_nothing(is_waited_for: impl Fn(u32) -> bool) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=2s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let connections = stage.connections().await?;
    let mut asking = Vec::new();
    for step in 0..60_u32 {
        // The delay grows little by little, so that there is no pause between two replies.
        proxy.delay(Direction::ToClient, Duration::from_millis(100) * step.min(40));
        let client = client.clone();
        let asked = tokio::spawn(async move { client.status(ROOM).await.map(drop) });
        tokio::time::sleep(Duration::from_millis(100)).await;
        if is_waited_for(step) {
            asking.push(asked);
        } else {
            asked.abort();
        }
    }
    for asked in asking {
        soon("the answer", asked).await???;
    }
    proxy.heal();
    ensure!(stage.connections().await? == connections, "another connection was made");
    guard.release().await?;
    ensure!(!recorder.events().contains(&Event::Suspect), "{:?}", recorder.events());
    Ok(())
}

async fn everything_comes_in_pieces() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    proxy.slice(Direction::ToServer);
    proxy.slice(Direction::ToClient);
    let (ours, theirs) =
        (stage.client_at(proxy.address(), "lease=5m&timeout=30s").await?, stage.client(LONG).await?);
    for _ in 0..3 {
        let held = theirs.mutex(ROOM)?.acquire().await?;
        let waiter = Waiter::of(&ours)?;
        stage.queued(1).await?;
        ensure!(ours.status(ROOM).await?.waiters.len() == 1, "the waiter is not shown");
        held.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    ours.idle().await;
    stage.nothing_is_left("after the releases").await
}

async fn replies_are_reset_halfway() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=20s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    for _ in 0..5 {
        proxy.lose_reply(Operation::Acquire, Losing::ResetHalfway);
        let guard = soon("the lock", lock.acquire()).await??;
        ensure!(stage.holder().await?.is_some(), "held, and the server does not know it");
        proxy.lose_reply(Operation::Release, Losing::ResetHalfway);
        soon("the release", guard.release()).await??;
        client.idle().await;
        stage.nothing_is_left("after a release").await?;
    }
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}
