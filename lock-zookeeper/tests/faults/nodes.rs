//! Nodes that another program deletes, and waiters that leave the middle of the queue.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{ErrorKind, FencingToken, LossReason};
use test_servers::{Losing, NodeKind, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, NO_LONGER_NEW, NODES_OF_A_HOLD, ROOM, Stage, Waiter, soon, until};

cases!("nodes":
    a_predecessor_that_gives_up_hands_nothing_over,
    all_predecessors_but_the_holder_give_up_at_once,
    the_own_node_deleted_while_waiting,
    the_own_node_deleted_far_back_in_the_queue,
    the_own_node_of_one_that_waits_far_back_for_long,
    the_own_node_deleted_together_with_the_holders,
    the_own_node_deleted_while_there_is_no_contact,
    the_own_node_deleted_while_holding,
    the_own_node_deleted_before_the_grant_is_read,
    the_own_node_written_to_by_another_program,
    a_release_reports_a_loss_that_was_not_noticed_before,
    the_directory_deleted_while_held,
    the_directory_deleted_while_waited_for,
    the_directory_deleted_between_acquisitions,
    a_waiter_keeps_its_place_when_its_connection_is_reset,
    a_heartbeat_for_many_finds_the_ones_that_are_gone,
);

/// Whichever waiter between the holder and the last one gives up.
async fn a_predecessor_that_gives_up_hands_nothing_over() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (third, last) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for gives_up in [0, 1] {
        let held = first.mutex(ROOM)?.acquire().await?;
        let mut between = vec![stage.in_line(&second, 2).await?, stage.in_line(&third, 3).await?];
        let waiter = stage.in_line(&last, 4).await?;
        between.remove(gives_up).give_up().await?;
        stage.nodes_are(3).await?;
        stage.waits(1).await?;
        stage.waits(2).await?;
        ensure!(!waiter.is_finished(), "it holds what another holds");
        stage.is_held_by(&held, "before the one that gave up").await?;
        held.release().await?;
        let (guard, _) = between.remove(0).granted().await?;
        stage.waits(1).await?;
        ensure!(!waiter.is_finished(), "it holds what the one before it holds");
        stage.is_held_by(&guard, "after the one that gave up").await?;
        guard.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

async fn all_predecessors_but_the_holder_give_up_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let first = stage.client(LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let (mut waiters, mut clients) = (Vec::new(), Vec::new());
    for count in 2..8 {
        let client = stage.client(LONG).await?;
        waiters.push(stage.in_line(&client, count).await?);
        clients.push(client);
    }
    let last = stage.client(LONG).await?;
    let waiter = stage.in_line(&last, 8).await?;
    for waiter in waiters {
        waiter.give_up().await?;
    }
    stage.nodes_are(2).await?;
    stage.waits(1).await?;
    ensure!(!waiter.is_finished(), "it holds what another holds");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left_now("at the end").await
}

/// The waiter goes to the end of the queue, and does not get the lock before its turn.
async fn the_own_node_deleted_while_waiting() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = first.mutex(ROOM)?.acquire().await?;
    let unlucky = stage.in_line(&second, 2).await?;
    let lucky = stage.in_line(&third, 3).await?;
    let path = stage.path(1).await?;
    stage.server.delete(&path).await?;
    stage.nodes_are(3).await?;
    held.release().await?;
    let (guard, _) = lucky.granted().await?;
    stage.is_held_by(&guard, "after the holder").await?;
    ensure!(!unlucky.is_finished(), "both hold");
    guard.release().await?;
    let (guard, _) = unlucky.granted().await?;
    stage.is_held_by(&guard, "at last").await?;
    Ok(guard.release().await?)
}

/// One that has three before it does not watch its own node yet, and asks for it before its turn. Its clock stands still, so it does so
/// only because the second before it has left.
async fn the_own_node_deleted_far_back_in_the_queue() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let (last, _time) = stage.frozen(LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let between = [stage.in_line(&second, 2).await?, stage.in_line(&third, 3).await?];
    let waiter = stage.in_line(&last, 4).await?;
    stage.waits(3).await?;
    let was = stage.path(3).await?;
    stage.delete_all_of(3).await?;
    held.release().await?;
    let [second, third] = between;
    second.granted().await?.0.release().await?;
    let (guard, _) = third.granted().await?;
    stage.nodes_are(2).await?;
    ensure!(!waiter.is_finished() && stage.path(1).await? != was, "it holds without a node");
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    stage.is_held_by(&guard, "with its new node").await?;
    Ok(guard.release().await?)
}

/// If none before it leaves, it watches its own node after half a second.
async fn the_own_node_of_one_that_waits_far_back_for_long() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let (last, time) = stage.frozen(LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let between = [stage.in_line(&second, 2).await?, stage.in_line(&third, 3).await?];
    let waiter = stage.in_line(&last, 4).await?;
    stage.waits(3).await?;
    let (own, session) = (stage.path(3).await?, stage.session(3).await?);
    ensure!(!stage.server.watchers(&own).await?.contains(&session), "it is watched at once");
    time.advance(Duration::from_millis(500));
    stage.is_watched(&[own], session).await?;
    held.release().await?;
    for waiting in between {
        waiting.granted().await?.0.release().await?;
    }
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// Both events come at the same moment: a client that has lost its node does not get the lock because another node went.
async fn the_own_node_deleted_together_with_the_holders() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let foreign = format!("{}/_c_somebody-lock-", stage.directory(ROOM));
    for _ in 0..10 {
        let holders = stage.server.create(&foreign, b"", NodeKind::Numbered).await?;
        let waiter = stage.in_line(&client, 2).await?;
        let own = stage.path(1).await?;
        let behind = stage.in_line(&other, 3).await?;
        let both = tokio::join!(stage.server.delete(&own), stage.server.delete(&holders));
        ensure!(both == (Ok(true), Ok(true)), "{both:?}");
        // The client may have held the lock for a moment if the holder's node went first; it no longer does once it knows that its
        // own node is gone.
        let (guard, _) = behind.granted().await?;
        stage.is_held_by(&guard, "behind both").await?;
        guard.release().await?;
        let (mine, _) = waiter.granted().await?;
        if mine.hold().is_valid() && stage.nodes().await?.is_empty() {
            soon("the loss", mine.lost()).await?;
        }
        drop(mine);
        soon("the end", client.idle()).await?;
        stage.nothing_is_left("after both").await?;
    }
    Ok(())
}

/// When contact returns, the client learns of the events meanwhile in no particular order.
async fn the_own_node_deleted_while_there_is_no_contact() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) =
        (stage.client_at(proxy.address(), "session_timeout=30s").await?, stage.client(LONG).await?);
    let foreign = format!("{}/_c_somebody-lock-", stage.directory(ROOM));
    for round in 0..6 {
        let holders = stage.server.create(&foreign, b"", NodeKind::Numbered).await?;
        let waiter = stage.in_line(&client, 2).await?;
        let own = stage.path(1).await?;
        let behind = stage.in_line(&other, 3).await?;
        // The client may or may not watch its own node by now.
        if round % 3 != 0 {
            stage.is_watched(std::slice::from_ref(&own), stage.session(1).await?).await?;
        }
        proxy.sever();
        let gone = if round % 2 == 0 { [own, holders] } else { [holders, own] };
        for path in &gone {
            stage.server.delete(path).await?;
        }
        let (guard, _) = behind.granted().await?;
        proxy.heal();
        // The client is in the queue again.
        stage.nodes_are(2).await?;
        ensure!(!waiter.is_finished(), "both hold");
        stage.is_held_by(&guard, "behind both").await?;
        guard.release().await?;
        let (guard, _) = waiter.granted().await?;
        stage.is_held_by(&guard, "at last").await?;
        guard.release().await?;
    }
    Ok(())
}

/// Only the watch can tell: the client's clock stands still, so no heartbeat is due.
async fn the_own_node_deleted_while_holding() -> Outcome {
    let stage = Stage::new().await?;
    let ((client, time), other) = (stage.frozen(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for is_new in [true, false, true, false] {
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        let waiter = stage.in_line(&other, 2).await?;
        let path = stage.path(0).await?;
        if !is_new {
            time.advance(NO_LONGER_NEW);
            stage.is_watched(std::slice::from_ref(&path), stage.session(0).await?).await?;
        }
        stage.server.delete(&path).await?;
        if is_new {
            time.advance(NO_LONGER_NEW);
        }
        let (reason, _) = recorder.abort().await?;
        ensure!(reason == LossReason::Deleted, "told as {reason:?}");
        ensure!(!guard.hold().is_valid(), "still valid");
        let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
        ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Deleted))), "answered {released:?}");
        let (next, _) = waiter.granted().await?;
        client.idle().await;
        stage.is_held_by(&next, "after the loss").await?;
        next.release().await?;
    }
    stage.works(&client).await
}

/// The grant is on its way when its node is deleted.
async fn the_own_node_deleted_before_the_grant_is_read() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let other = stage.client(LONG).await?;
    stage.works(&other).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    proxy.hold_reply(ZooKeeperRequest::Create);
    let waiter = Waiter::of(&client)?;
    soon("the answer", proxy.is_held()).await?;
    stage.delete_all_of(0).await?;
    let next = soon("the lock", other.mutex(ROOM)?.acquire()).await??;
    proxy.let_go();
    let (guard, _) = waiter.granted().await?;
    time.advance(NO_LONGER_NEW);
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "told as {reason:?}");
    drop(guard);
    client.idle().await;
    stage.is_held_by(&next, "after the loss").await?;
    Ok(next.release().await?)
}

/// A program that writes notes into nodes ends no hold and no wait.
async fn the_own_node_written_to_by_another_program() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    for _ in 0..5 {
        for position in [0, 1] {
            stage.server.write(&stage.path(position).await?, b"note").await?;
        }
        stage.waits(1).await?;
    }
    stage.is_held_by(&guard, "after the notes").await?;
    ensure!(!waiter.is_finished(), "a note was a grant");
    // And the watches continue: a deletion is reported as such.
    stage.server.delete(&stage.path(0).await?).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "told as {reason:?}");
    drop(guard);
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_release_reports_a_loss_that_was_not_noticed_before() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    stage.works(&client).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    proxy.hold_reply(ZooKeeperRequest::Read);
    time.advance(NO_LONGER_NEW);
    soon("the watch", proxy.is_held()).await?;
    stage.server.delete(&stage.path(0).await?).await?;
    let releasing = tokio::spawn(guard.release());
    until("the release is asked for", || async { Ok(proxy.requests(ZooKeeperRequest::Delete) > 1) }).await?;
    proxy.let_go();
    let released = soon("the release", releasing).await??.map_err(|error| (error.kind(), error.loss()));
    ensure!(released == Err((ErrorKind::Lost, Some(LossReason::Deleted))), "answered {released:?}");
    // The owner ended the hold itself, so no listener hears of a loss.
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    Ok(())
}

/// Deletes the directory with everything in it.
async fn delete_directory(stage: &Stage) -> Outcome {
    let directory = stage.directory(ROOM);
    loop {
        for name in stage.server.children(&directory).await?.unwrap_or_default() {
            stage.server.delete(&format!("{directory}/{name}")).await?;
        }
        // A client may have created a node meanwhile.
        if stage.server.delete(&directory).await.is_ok() {
            return Ok(());
        }
    }
}

async fn the_directory_deleted_while_held() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let token = guard.token();
    delete_directory(&stage).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "told as {reason:?}");
    drop(guard);
    // The numbers start again, and the tokens still rise.
    let next = soon("the lock", other.mutex(ROOM)?.acquire()).await??;
    ensure!(next.token() > token, "{:?} after {token:?}", next.token());
    stage.is_held_by(&next, "in the new directory").await?;
    next.release().await?;
    client.idle().await;
    stage.works(&client).await
}

async fn the_directory_deleted_while_waited_for() -> Outcome {
    let stage = Stage::new().await?;
    let first = stage.client(LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let (mut waiters, mut clients) = (Vec::new(), Vec::new());
    for count in 2..6 {
        let client = stage.client(LONG).await?;
        waiters.push(stage.in_line(&client, count).await?);
        clients.push(client);
    }
    delete_directory(&stage).await?;
    soon("the loss", held.lost()).await?;
    let mut tokens: Vec<Option<FencingToken>> = Vec::new();
    let served = waiters.into_iter().map(|waiter| {
        tokio::spawn(async move {
            let (guard, _) = waiter.granted().await?;
            let token = guard.token();
            match guard.release().await {
                // The directory was deleted together with a hold.
                Err(error) if error.kind() == ErrorKind::Lost => {}
                released => released?,
            }
            Outcome::Ok(token)
        })
    });
    for one in served.collect::<Vec<_>>() {
        tokens.push(soon("each of them", one).await???);
    }
    tokens.sort_unstable();
    tokens.dedup();
    ensure!(tokens.len() == 4, "{tokens:?}");
    stage.nothing_is_left("after all of them").await
}

async fn the_directory_deleted_between_acquisitions() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for _ in 0..3 {
        stage.works(&client).await?;
        delete_directory(&stage).await?;
        stage.works(&client).await?;
        delete_directory(&stage).await?;
        stage.server.delete(&stage.root).await?;
    }
    Ok(())
}

async fn a_waiter_keeps_its_place_when_its_connection_is_reset() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (first, last) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let client = stage.client_at(proxy.address(), "session_timeout=20s").await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let behind = stage.in_line(&last, 3).await?;
    let places = stage.nodes().await?;
    for round in 0..4 {
        let connected = proxy.requests(ZooKeeperRequest::Connect);
        if round % 2 == 0 {
            proxy.cut();
        } else {
            proxy.lose_reply(ZooKeeperRequest::Ping, Losing::ResetHalfway);
            proxy.lose_reply(ZooKeeperRequest::Exists, Losing::ResetHalfway);
        }
        until("it has connected again", || async {
            Ok(proxy.requests(ZooKeeperRequest::Connect) > connected)
        })
        .await?;
        proxy.heal();
    }
    ensure!(stage.nodes().await? == places, "{:?} and not {places:?}", stage.nodes().await?);
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(!behind.is_finished(), "the next has it, too");
    guard.release().await?;
    let (guard, _) = behind.granted().await?;
    Ok(guard.release().await?)
}

/// How far the time goes on between two looks.
const A_MOMENT: Duration = Duration::from_millis(10);

/// It checks the first node that exists.
async fn a_heartbeat_for_many_finds_the_ones_that_are_gone() -> Outcome {
    let stage = Stage::new().await?;
    let (client, time) = stage.frozen(LONG).await?;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(client.mutex(format!("many-{number}"))?.acquire().await?);
    }
    for number in [0, 7, 19] {
        let directory = stage.directory(&format!("many-{number}"));
        let names = stage.server.children(&directory).await?.unwrap_or_default();
        ensure!(names.len() == NODES_OF_A_HOLD, "{names:?}");
        stage.server.delete(&format!("{directory}/{}", names[0])).await?;
    }
    // A heartbeat is due every ten seconds, and without them the holds would have ended after forty.
    for _ in 0..6 {
        time.advance(Duration::from_secs(10));
        // A second heartbeat may still be on its way when the time jumps: to the client it has no answer within ten seconds, and is
        // repeated a little later. So the time goes on, about as fast as it really does.
        until("the others are renewed", || async {
            let renewed =
                guards.iter().filter(|guard| guard.hold().remaining() > Some(Duration::from_secs(35)));
            let are_renewed = renewed.count() == 17;
            if !are_renewed {
                time.advance(A_MOMENT);
            }
            Ok(are_renewed)
        })
        .await?;
    }
    for number in [0, 7, 19] {
        let reason = soon("the loss", guards[number].lost()).await?;
        ensure!(reason == Some(LossReason::Deleted), "{number}: {reason:?}");
    }
    let valid = guards.iter().filter(|guard| guard.hold().is_valid()).count();
    ensure!(valid == 17, "{valid} of the others are valid after most of a session");
    Ok(())
}
