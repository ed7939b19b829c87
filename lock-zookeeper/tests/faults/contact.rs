//! Servers that cannot be reached or do not answer: what the holder learns, and what the waiter.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{ErrorKind, LossReason};
use test_servers::{Data, Direction, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    ENDING, LONG, ROOM, Stage, Waiter, as_time_passes, connect, lost_at_its_deadline, refusal, session_of,
    soon, until,
};

cases!("contact":
    a_hold_whose_deadline_has_passed_does_not_stay_behind_in_a_session_that_recovers,
    a_hold_is_given_back_by_a_session_that_recovers_after_any_lease_would_have_ended,
    a_grant_heard_of_by_one_who_is_not_heard_is_none,
    a_hold_is_lost_before_its_silent_session_ends,
    a_hold_is_lost_at_its_deadline_while_answers_are_swallowed,
    the_way_of_the_granting_answer_does_not_lengthen_a_hold,
    a_lost_connection_is_reported_at_once_and_its_return_as_well,
    a_server_that_stands_still_for_half_a_session_costs_no_hold,
    a_server_that_stands_still_costs_the_hold_at_its_deadline,
    a_wait_that_ends_without_contact_is_an_error,
    a_wait_that_ends_without_an_answer_is_an_error,
    a_wait_that_ends_without_an_answer_behind_another_is_an_error,
    a_wait_that_ends_in_contact_is_none,
    a_try_without_contact_is_an_error_at_once,
    a_look_that_a_slow_server_does_not_answer_is_repeated,
    a_description_that_a_slow_server_does_not_answer_is_repeated,
    a_server_that_is_started_again_keeps_holds_and_places,
    nowhere,
);

/// In real time: the session ends at the server, which nothing but its own clock tells.
async fn a_hold_is_lost_before_its_silent_session_ends() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) =
        (stage.client_at(proxy.address(), &session_of(ENDING)).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let suspected = recorder.suspect().await?;
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && suspected <= aborted, "{reason:?}: {:?}", recorder.events());
    ensure!(!guard.hold().is_valid(), "still valid");
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    proxy.heal();
    drop(guard);
    soon("the rest", client.idle()).await?;
    stage.is_held_by(&next, "after all").await?;
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.works(&client).await
}

/// The server hears the client all the time, so the client has to release the node.
async fn a_hold_is_lost_at_its_deadline_while_answers_are_swallowed() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ((client, time), other) = (stage.frozen_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    proxy.blackhole(Direction::ToClient);
    let aborted = lost_at_its_deadline(&time, &guard, &recorder).await?;
    let (next, granted) = waiter.granted().await?;
    ensure!(aborted < granted, "another had the lock before the abort");
    proxy.heal();
    drop(guard);
    soon("the rest", client.idle()).await?;
    stage.is_held_by(&next, "after all").await?;
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.works(&client).await
}

/// The server counts the session from no later than the request: so does the client, whenever it has the answer.
async fn the_way_of_the_granting_answer_does_not_lengthen_a_hold() -> Outcome {
    let way = Duration::from_secs(5);
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let quick = client.mutex(ROOM)?.acquire().await?;
    let full = quick.hold().remaining();
    quick.release().await?;
    proxy.hold_reply(ZooKeeperRequest::Create);
    let waiter = Waiter::of(&client)?;
    soon("the answer", proxy.reply_is_held()).await?;
    time.advance(way);
    proxy.let_replies_go();
    let (guard, _) = waiter.granted().await?;
    let left = guard.hold().remaining();
    ensure!(left.map(|left| left + way) == full, "{left:?} is left of {full:?} after {way:?}");
    Ok(guard.release().await?)
}

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

async fn a_server_that_stands_still_for_half_a_session_costs_no_hold() -> Outcome {
    let stage = Stage::alone().await?;
    let (client, time) = stage.frozen(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.stop()?;
    time.advance(Duration::from_secs(30));
    stage.server.resume()?;
    until("it is renewed", || async { Ok(guard.hold().remaining() > Some(Duration::from_secs(15))) }).await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.nothing_is_left_now("after the release").await?;
    stage.works(&client).await
}

async fn a_server_that_stands_still_costs_the_hold_at_its_deadline() -> Outcome {
    let stage = Stage::alone().await?;
    let ((ours, time), theirs) = (stage.frozen(LONG).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = stage.in_line(&theirs, 2).await?;
    stage.server.stop()?;
    lost_at_its_deadline(&time, &guard, &recorder).await?;
    ensure!(!waiter.is_finished(), "granted by a server that stands still");
    stage.server.resume()?;
    let (next, _) = waiter.granted().await?;
    drop(guard);
    soon("the rest", ours.idle()).await?;
    stage.is_held_by(&next, "after all").await?;
    next.release().await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    stage.works(&ours).await
}

/// Of a caller that does not wait for ever.
const WAIT: Duration = Duration::from_secs(12);

async fn a_wait_that_ends_without_contact_is_an_error() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ((ours, time), theirs) = (stage.frozen_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let lock = ours.mutex(ROOM)?;
    let waiting = tokio::spawn(async move { lock.try_acquire_for(WAIT).await });
    stage.nodes_are(2).await?;
    proxy.sever();
    // Little by little: an answer that is already on its way may arrive now, and is old when the wait ends.
    let answered = as_time_passes(&time, "the answer", waiting).await??.map(|guard| guard.is_some());
    let error = refusal(answered)?;
    ensure!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    proxy.heal();
    soon("the undoing", ours.idle()).await?;
    stage.nodes_are(1).await?;
    Ok(held.release().await?)
}

/// The client library has not noticed anything yet.
async fn a_wait_that_ends_without_an_answer_is_an_error() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ((ours, time), theirs) = (stage.frozen_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let lock = ours.mutex(ROOM)?;
    let waiting = tokio::spawn(async move { lock.try_acquire_for(WAIT).await });
    stage.nodes_are(2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    // Little by little: an answer that is already on its way may arrive now, and is old when the wait ends.
    let answered = as_time_passes(&time, "the answer", waiting).await??.map(|guard| guard.is_some());
    let error = refusal(answered)?;
    ensure!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    proxy.heal();
    soon("the undoing", ours.idle()).await?;
    stage.nodes_are(1).await?;
    Ok(held.release().await?)
}

/// The attempt at the server belongs to a caller that waits for ever.
async fn a_wait_that_ends_without_an_answer_behind_another_is_an_error() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ((ours, time), theirs) = (stage.frozen_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let first = stage.in_line(&ours, 2).await?;
    let lock = ours.mutex(ROOM)?;
    let second = tokio::spawn(async move { lock.try_acquire_for(WAIT).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let answered = as_time_passes(&time, "the answer", second).await??.map(|guard| guard.is_some());
    let error = refusal(answered)?;
    ensure!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    proxy.heal();
    held.release().await?;
    let (guard, _) = first.granted().await?;
    Ok(guard.release().await?)
}

async fn a_wait_that_ends_in_contact_is_none() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = theirs.mutex(ROOM)?.acquire().await?;
    let answered = ours.mutex(ROOM)?.try_acquire_for(Duration::from_millis(500)).await?;
    ensure!(answered.is_none(), "given twice");
    soon("the undoing", ours.idle()).await?;
    stage.nodes_are(1).await?;
    Ok(held.release().await?)
}

async fn a_try_without_contact_is_an_error_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "session_timeout=30s").await?;
    stage.works(&client).await?;
    proxy.sever();
    let lock = client.mutex(ROOM)?;
    let tried = soon("the answer", lock.try_acquire()).await?.map(|guard| guard.is_some());
    let error = refusal(tried)?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    let waiter = Waiter::of(&client)?;
    proxy.heal();
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("at the end").await
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
    soon("the look", proxy.request_is_held()).await?;
    time.advance(SLOW);
    proxy.let_requests_go();
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
    soon("the new value", proxy.request_is_held()).await?;
    time.advance(SLOW);
    proxy.let_requests_go();
    let (leader, proclaimed) = soon("the answer", proclaiming).await??;
    proclaimed?;
    let status = client.status(ROOM).await?;
    ensure!(status.holders[0].value.as_deref() == Some("two"), "{status:?}");
    Ok(leader.resign().await?)
}

/// A server keeps sessions and nodes on its disk; a crash costs no client a lock.
async fn a_server_that_is_started_again_keeps_holds_and_places() -> Outcome {
    let stage = Stage::alone().await?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = first.mutex(ROOM)?.acquire().await?;
    let next = stage.in_line(&second, 2).await?;
    let last = stage.in_line(&third, 3).await?;
    let nodes = stage.nodes().await?;
    stage.server.restart(Data::Kept).await?;
    until("contact", || async { Ok(first.status(ROOM).await.is_ok()) }).await?;
    stage.is_held_by(&held, "after the restart").await?;
    ensure!(stage.nodes().await? == nodes, "a client has lost a place");
    held.release().await?;
    let (guard, _) = next.granted().await?;
    ensure!(!last.is_finished(), "both hold");
    guard.release().await?;
    let (guard, _) = last.granted().await?;
    Ok(guard.release().await?)
}

async fn nowhere() -> Outcome {
    let port = test_servers::free_port()?;
    let error = refusal(connect(&format!("zookeeper://127.0.0.1:{port}/locks?session_timeout=4s")).await)?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    Ok(())
}
