//! Clients that are closed or dropped.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient};
use test_servers::ZooKeeperRequest;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, refusal, soon, until};

cases!("clients":
    a_closed_client_ends_its_session_at_once,
    a_closed_client_that_holds_and_waits_leaves_nothing,
    what_was_dropped_is_certain_when_a_client_is_closed,
    a_dropped_client_leaves_nothing,
    a_client_is_closed_without_contact,
    a_closed_client_connects_no_more,
);

async fn a_closed_client_ends_its_session_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    guard.release().await?;
    ensure!(stage.knows_session(session).await?, "the session ended with the hold");
    is_closed_with(&client, &stage, session).await
}

/// How long closing a client waits for the servers to end its session.
const WAITED_FOR: Duration = Duration::from_millis(900);

/// Closes the client. Its session is over afterwards, or soon after if the server is slow.
async fn is_closed_with(client: &LockClient, stage: &Stage, session: i64) -> Outcome {
    let began = Instant::now();
    soon("the end", client.close(Duration::from_secs(30))).await??;
    let closed_within = began.elapsed();
    let lives_on = stage.knows_session(session).await?;
    ensure!(
        !lives_on || closed_within >= WAITED_FOR,
        "closed after {closed_within:?}, and the session lives on"
    );
    // By itself it would end after a minute.
    let ended = until("the session has ended", || async { Ok(!stage.knows_session(session).await?) });
    tokio::time::timeout(Duration::from_secs(30), ended)
        .await
        .map_err(|_| Failure::new("the session lives on"))?
}

async fn a_closed_client_that_holds_and_waits_leaves_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = other.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&client, 2).await?;
    let mine = client.mutex("another room")?.acquire().await?;
    // The client releases what is still held when the time is up.
    let _ = soon("the end", client.close(Duration::from_millis(300))).await?;
    let ended = soon("the wait", waiter.granted()).await?;
    ensure!(ended.is_err(), "a closed client waits on");
    // A busy server may end the session only after the client has ended. By itself the session would end after a minute.
    let directory = stage.directory("another room");
    stage.nodes_are(1).await?;
    until("the other room is empty", || async {
        Ok(stage.server.children(&directory).await?.unwrap_or_default().is_empty())
    })
    .await?;
    ensure!(!mine.hold().is_valid(), "a closed client holds on");
    stage.is_held_by(&held, "after the end of the waiter").await?;
    Ok(held.release().await?)
}

/// A process that ends after the close has nothing left to do.
async fn what_was_dropped_is_certain_when_a_client_is_closed() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for _ in 0..3 {
        let guard = client.mutex(ROOM)?.acquire().await?;
        drop(guard);
    }
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    drop(guard);
    is_closed_with(&client, &stage, session).await?;
    stage.nothing_is_left_now("after the end").await
}

async fn a_dropped_client_leaves_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let session = stage.session(0).await?;
    let waiter = stage.in_line(&other, 2).await?;
    drop((guard, client));
    let (guard, _) = waiter.granted().await?;
    until("the session has ended", || async { Ok(!stage.knows_session(session).await?) }).await?;
    guard.release().await?;
    stage.nothing_is_left_now("at the end").await
}

/// Closing does not wait for a server that does not answer; the session ends by itself.
async fn a_client_is_closed_without_contact() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "session_timeout=8s").await?;
    let other = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let waiter = stage.in_line(&other, 2).await?;
    proxy.sever();
    let _ = soon("the end", client.close(Duration::from_millis(500))).await?;
    ensure!(!guard.hold().is_valid(), "a closed client holds on");
    let (next, _) = waiter.granted().await?;
    Ok(next.release().await?)
}

async fn a_closed_client_connects_no_more() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    stage.works_as_time_passes(&client, &time).await?;
    soon("the end", client.close(Duration::from_secs(10))).await??;
    until("the connection has ended", || async { Ok(proxy.connections() == 0) }).await?;
    let error = refusal(lock.acquire().await.map(drop))?;
    ensure!(error.kind() == ErrorKind::Closed, "{error:?}");
    time.advance(Duration::from_secs(600));
    // What the end or the time had made it do comes before all that this one does.
    stage.works(&stage.client_at(proxy.address(), LONG).await?).await?;
    ensure!(proxy.requests(ZooKeeperRequest::Connect) == 2, "it has connected again");
    Ok(())
}
