//! Sessions that end while their client lives: everything in them is gone from the server, or goes a little later.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::ErrorKind;
use test_servers::{TcpProxy, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::logs;
use crate::stage::{
    BY_THE_END_OF_A_SESSION, LONG, Lost, NODES_OF_A_HOLD, ROOM, Stage, Waiter, connect_patiently, refusal,
    soon, until,
};

cases!("sessions":
    the_node_of_a_dying_session_is_not_adopted,
    the_node_of_a_dying_waiter_is_waited_for_no_longer_than_its_session,
    ended_while_waiting,
    ended_while_waiting_and_first_in_line,
    ended_while_holding,
    ended_while_releasing,
    ended_before_a_creation_arrives,
    ended_before_the_answer_to_a_creation_arrives,
    ended_again_and_again,
    a_timeout_that_the_server_does_not_agree_to_is_reported_once,
    a_timeout_that_is_too_short_for_the_margin_is_refused,
);

/// A session that the client gives up soon.
const DYING: &str = "session_timeout=6s";

/// The client gives up its session, which lives on at the server for a minute, and then has contact again.
async fn gives_up(stage: &Stage, proxy: &TcpProxy, session: i64) -> Outcome {
    proxy.sever();
    ensure!(
        stage.server.prolong_session(session).await?,
        "the session ended before its client could give it up"
    );
    let servers = format!("servers={}", proxy.address());
    let session = format!("session={session:#x}");
    until("the client has given its session up", || async {
        Ok(!logs::lines_with(&["the session has ended", &servers, &session]).is_empty())
    })
    .await?;
    proxy.heal();
    Ok(())
}

/// The last lines that the log has about a session.
fn told_of(session: i64) -> Vec<String> {
    let mut lines = logs::lines_with(&[&format!("{session:#x}")]);
    lines.split_off(lines.len().saturating_sub(30))
}

async fn the_node_of_a_dying_session_is_not_adopted() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), DYING).await?;
    let lock = client.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let (old, session, token) = (stage.path(0).await?, stage.session(0).await?, guard.token());
    gives_up(&stage, &proxy, session).await?;
    drop(guard);
    let again = stage.in_line(&client, 2).await?;
    stage.waits(1).await?;
    ensure!(stage.path(0).await? == old && !again.is_finished(), "it holds, and its dying node is first");
    ensure!(stage.server.close_session(session).await?, "the old session has ended by itself");
    let (again, _) = again.granted().await?;
    stage.is_held_by(&again, "in the new session").await?;
    ensure!(again.token() > token, "{:?} after {token:?}", again.token());
    Ok(again.release().await?)
}

/// Its client lives, and is at the end of the queue again.
async fn the_node_of_a_dying_waiter_is_waited_for_no_longer_than_its_session() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) = (stage.client_at(proxy.address(), DYING).await?, stage.client(LONG).await?);
    let held = other.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let (dead, session) = (stage.path(1).await?, stage.session(1).await?);
    gives_up(&stage, &proxy, session).await?;
    stage.nodes_are(3).await?;
    held.release().await?;
    stage.nodes_are(2).await?;
    stage.waits(1).await?;
    ensure!(stage.path(0).await? == dead && !waiter.is_finished(), "it holds, and its dying node is first");
    ensure!(stage.server.close_session(session).await?, "the old session has ended by itself");
    let (guard, _) = waiter.granted().await?;
    stage.is_held_by(&guard, "in the new session").await?;
    guard.release().await?;
    stage.nothing_is_left("at the end").await
}

async fn ended_while_waiting() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = first.mutex(ROOM)?.acquire().await?;
    let unlucky = stage.in_line(&second, 2).await?;
    let lucky = stage.in_line(&third, 3).await?;
    let session = stage.session(1).await?;
    stage.server.close_session(session).await?;
    until("it stands in line in another session", || async {
        Ok(stage.nodes().await?.len() == 3 && stage.session(2).await? != session)
    })
    .await?;
    held.release().await?;
    let (guard, _) = lucky.granted().await?;
    ensure!(!unlucky.is_finished(), "both hold");
    guard.release().await?;
    let (guard, _) = unlucky.granted().await?;
    stage.is_held_by(&guard, "in the new session").await?;
    guard.release().await?;
    stage.nothing_is_left_now("at the end").await
}

/// The lock becomes free at the moment when the session of the next waiter ends.
async fn ended_while_waiting_and_first_in_line() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for _ in 0..5 {
        let held = other.mutex(ROOM)?.acquire().await?;
        let waiter = stage.in_line(&client, 2).await?;
        let session = stage.session(1).await?;
        let (released, closed) = tokio::join!(held.release(), stage.server.close_session(session));
        released?;
        closed?;
        let (guard, _) = waiter.granted().await?;
        if stage.nodes().await?.is_empty() {
            // The client held the lock for a moment, in the session that has ended.
            let reason = soon("the loss", guard.lost()).await?;
            let is_sound = reason.is_some_and(|reason| BY_THE_END_OF_A_SESSION.contains(&reason));
            ensure!(is_sound, "another reason: {reason:?}: {:?}", told_of(session));
        } else {
            stage.is_held_by(&guard, "in the new session").await?;
        }
        drop(guard);
        client.idle().await;
        stage.nothing_is_left("after both").await?;
    }
    stage.works(&client).await
}

async fn ended_while_holding() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for _ in 0..3 {
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        let waiter = stage.in_line(&other, 2).await?;
        stage.server.close_session(stage.session(0).await?).await?;
        let (reason, _) = recorder.abort().await?;
        ensure!(BY_THE_END_OF_A_SESSION.contains(&reason), "told as {reason:?}");
        ensure!(!guard.hold().is_valid(), "still valid");
        let released = guard.release().await.map_err(|error| (error.kind(), error.loss()));
        ensure!(released == Err((ErrorKind::Lost, Some(reason))), "answered {released:?}, told {reason:?}");
        let (next, _) = waiter.granted().await?;
        stage.is_held_by(&next, "after the loss").await?;
        next.release().await?;
        stage.works(&client).await?;
    }
    Ok(())
}

/// The release is on its way when the session ends; no waiter is blocked.
async fn ended_while_releasing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let other = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    proxy.hold_request(ZooKeeperRequest::Delete);
    let releasing = tokio::spawn(guard.release());
    soon("the release", proxy.is_held()).await?;
    stage.server.close_session(stage.session(0).await?).await?;
    let (next, _) = waiter.granted().await?;
    proxy.let_go();
    let released = soon("the answer", releasing).await??.map_err(|error| error.kind());
    ensure!(matches!(released, Ok(()) | Err(ErrorKind::Lost)), "answered {released:?}");
    soon("the rest", client.idle()).await?;
    stage.is_held_by(&next, "after the release").await?;
    next.release().await?;
    stage.works(&client).await
}

async fn ended_before_a_creation_arrives() -> Outcome {
    ended_around_a_creation(Lost::Request).await
}

async fn ended_before_the_answer_to_a_creation_arrives() -> Outcome {
    ended_around_a_creation(Lost::Answer).await
}

async fn ended_around_a_creation(kept_back: Lost) -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let mine = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    let wanted = client.mutex("another room")?;
    match kept_back {
        Lost::Request => proxy.hold_request(ZooKeeperRequest::Create),
        Lost::Answer => proxy.hold_reply(ZooKeeperRequest::Create),
    }
    let waiter = Waiter::start(Arc::clone(&wanted));
    match kept_back {
        Lost::Request => soon("the request", proxy.is_held()).await?,
        Lost::Answer => soon("the answer", proxy.is_held()).await?,
    }
    stage.server.close_session(session).await?;
    proxy.let_go();
    let (guard, _) = waiter.granted().await?;
    soon("the loss", mine.lost()).await?;
    drop(mine);
    // The answer may have come before the event of the end, and the event before this line.
    let directory = stage.directory("another room");
    let nodes = stage.server.children(&directory).await?.unwrap_or_default();
    ensure!(nodes.is_empty() || nodes.len() == NODES_OF_A_HOLD, "{nodes:?}");
    if nodes.is_empty() {
        soon("the loss of what was made in the old session", guard.lost()).await?;
    } else {
        ensure!(guard.hold().is_valid(), "there is a node, and no hold");
    }
    drop(guard);
    soon("the end", client.idle()).await?;
    let again = soon("the lock", wanted.acquire()).await??;
    ensure!(again.hold().is_valid(), "no hold in the new session");
    again.release().await?;
    stage.works(&client).await
}

/// Each session is a new one, and none stays behind.
async fn ended_again_and_again() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = other.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let mut sessions = Vec::new();
    for _ in 0..4 {
        until("it stands in line in a new session", || async {
            Ok(stage.nodes().await?.len() == 2 && !sessions.contains(&stage.session(1).await?))
        })
        .await?;
        let session = stage.session(1).await?;
        stage.server.close_session(session).await?;
        sessions.push(session);
    }
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    for session in sessions {
        // A client that connects again at that moment may keep a closed session in the server's list for a while. It cannot be
        // resumed, and has no nodes.
        ensure!(!stage.server.prolong_session(session).await?, "the session {session:x} lives");
    }
    stage.nothing_is_left("at the end").await
}

async fn a_timeout_that_the_server_does_not_agree_to_is_reported_once() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("session_timeout=87s").await?;
    let lock = client.mutex(ROOM)?;
    let guard = lock.acquire().await?;
    let remaining = guard.hold().remaining().unwrap_or_default();
    // Two thirds of a minute, which is the longest session of the server.
    ensure!(remaining <= Duration::from_secs(40) && remaining > Duration::from_secs(30), "{remaining:?}");
    stage.server.close_session(stage.session(0).await?).await?;
    soon("the loss", guard.lost()).await?;
    drop(guard);
    stage.works(&client).await?;
    let told = logs::lines_with(&["WARN", "asked=87s", "negotiated=60s"]);
    ensure!(told.len() == 1, "{told:?}");
    Ok(())
}

/// The servers insist on longer sessions than the client asked for, or on shorter ones.
async fn a_timeout_that_is_too_short_for_the_margin_is_refused() -> Outcome {
    let stage = Stage::new().await?;
    let error = refusal(connect_patiently(&stage.url("session_timeout=10m&abort_margin=45s")).await)?;
    ensure!(error.kind() == ErrorKind::InvalidOption && !error.is_retryable(), "{error:?}");
    let text = error.to_string();
    ensure!(text.contains("session_timeout") && text.contains("margin"), "{text}");
    Ok(())
}
