//! Servers that cannot be reached or do not answer: what the holder learns, and what the waiter.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use test_servers::{Direction, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Stage, soon};

cases!("contact":
    a_hold_whose_deadline_has_passed_does_not_stay_behind_in_a_session_that_recovers,
    a_hold_is_given_back_by_a_session_that_recovers_after_any_lease_would_have_ended,
    a_grant_heard_of_by_one_who_is_not_heard_is_none,
    a_lost_connection_is_reported_at_once_and_its_return_as_well,
    a_look_that_a_slow_server_does_not_answer_is_repeated,
    a_description_that_a_slow_server_does_not_answer_is_repeated,
);

async fn a_hold_whose_deadline_has_passed_does_not_stay_behind_in_a_session_that_recovers() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "session_timeout=15s").await?;
    let other = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let session = stage.session(0).await?;
    let waiter = stage.in_line(&other, 2).await?;
    proxy.sever();
    // For a machine that stalls when contact is about to return.
    ensure!(stage.server.prolong_session(session).await?, "the session has ended already");
    recorder.abort().await?;
    ensure!(stage.nodes().await?.len() == 2, "no client was there to remove it");
    proxy.heal();
    let (next, _) = waiter.granted().await?;
    ensure!(stage.knows_session(session).await?, "only the end of its session has removed the node");
    stage.is_held_by(&next, "after the abort").await?;
    drop(guard);
    next.release().await?;
    stage.works(&client).await?;
    ensure!(stage.knows_session(session).await?, "the session has not recovered");
    Ok(())
}

/// A server that restarts gives its sessions their whole timeout, so they outlive what the core knows as a lease. The handles of
/// the hold that the caller keeps do not matter.
async fn a_hold_is_given_back_by_a_session_that_recovers_after_any_lease_would_have_ended() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "session_timeout=20s&abort_margin=4s").await?;
    let other = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let (lost, session) = (guard.lost(), stage.session(0).await?);
    let waiter = stage.in_line(&other, 2).await?;
    // Right after the request that proved that the session lives.
    proxy.sever();
    let severed = Instant::now();
    ensure!(stage.server.prolong_session(session).await?, "the session has ended already");
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired, "{reason:?}");
    // Four thirds of the session without the margin are over by then. The client has not given the session up yet: it tries to
    // connect after 25 seconds, and would give up after 28.
    tokio::time::sleep(Duration::from_secs(23).saturating_sub(severed.elapsed())).await;
    ensure!(!waiter.is_finished(), "another client has removed the node");
    proxy.heal();
    let (next, _) = waiter.granted().await?;
    ensure!(stage.knows_session(session).await?, "only the end of its session has removed the node");
    stage.is_held_by(&next, "after the outage").await?;
    ensure!(lost.await == Some(LossReason::Expired), "another reason");
    drop(guard);
    next.release().await?;
    soon("the rest", client.idle()).await?;
    stage.works(&client).await
}

/// The client's requests do not reach the server, which is about to end the session. The server's events do reach the client: that
/// no predecessor is left.
async fn a_grant_heard_of_by_one_who_is_not_heard_is_none() -> Outcome {
    let session = Duration::from_secs(8);
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "session_timeout=8s").await?;
    let (first, third) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let _bell = client.mutex("bell")?.acquire().await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let behind = stage.in_line(&third, 3).await?;
    stage.waits(1).await?;
    stage.is_watched(&[stage.path(1).await?], stage.session(1).await?).await?;
    proxy.blackhole(Direction::ToServer);
    // The client has to receive something now and then, or the client library takes the connection for dead.
    tokio::time::sleep(session.mul_f64(0.3)).await;
    let bell = stage.directory("bell");
    for node in stage.server.children(&bell).await?.unwrap_or_default() {
        stage.server.write(&format!("{bell}/{node}"), b"ring").await?;
    }
    tokio::time::sleep(session.mul_f64(0.3)).await;
    held.release().await?;
    let (guard, _) = behind.granted().await?;
    if waiter.is_finished() {
        let (mine, _) = waiter.granted().await?;
        ensure!(!mine.hold().is_valid(), "both hold");
        proxy.heal();
        return Ok(guard.release().await?);
    }
    proxy.heal();
    stage.nodes_are(2).await?;
    ensure!(!waiter.is_finished(), "both hold");
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    stage.is_held_by(&guard, "at last").await?;
    Ok(guard.release().await?)
}

async fn a_lost_connection_is_reported_at_once_and_its_return_as_well() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    // No heartbeat is due as long as the clock stands still.
    let (client, _) = stage.frozen_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    proxy.sever();
    recorder.suspect().await?;
    ensure!(guard.hold().is_valid(), "suspect is not lost");
    let status = soon("the answer", client.status(ROOM)).await?;
    ensure!(status.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unreachable), "{status:?}");
    proxy.heal();
    recorder.restored().await?;
    stage.is_held_by(&guard, "after the return").await?;
    guard.release().await?;
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    stage.nothing_is_left_now("after the release").await
}

/// For longer than the client waits for one answer, which is an eighth of the session.
const SLOW: Duration = Duration::from_secs(8);

async fn a_look_that_a_slow_server_does_not_answer_is_repeated() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    proxy.hold_request(ZooKeeperRequest::Sync);
    let looking = tokio::spawn({
        let client = client.clone();
        async move { client.status(ROOM).await }
    });
    soon("the look", proxy.is_held()).await?;
    time.advance(SLOW);
    proxy.let_go();
    let status = soon("the answer", looking).await???;
    ensure!(status.holders.len() == 1, "{status:?}");
    Ok(guard.release().await?)
}

async fn a_description_that_a_slow_server_does_not_answer_is_repeated() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let leader = soon("the lead", client.election(ROOM)?.campaign("one")).await??;
    proxy.hold_request(ZooKeeperRequest::Change);
    let proclaiming = tokio::spawn(async move {
        let proclaimed = leader.proclaim("two").await;
        (leader, proclaimed)
    });
    soon("the new value", proxy.is_held()).await?;
    time.advance(SLOW);
    proxy.let_go();
    let (leader, proclaimed) = soon("the answer", proclaiming).await??;
    proclaimed?;
    let status = client.status(ROOM).await?;
    ensure!(status.holders[0].value.as_deref() == Some("two"), "{status:?}");
    Ok(leader.resign().await?)
}
