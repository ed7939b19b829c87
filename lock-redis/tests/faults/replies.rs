//! Requests that the server carries out, but whose replies do not arrive.

use conformance_tests::Outcome;
use lock_core::Operation;
use test_servers::{Direction, Losing, TcpProxy};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Stage, soon, until};

cases!("replies":
    of_a_renewal,
    an_old_request_that_arrives_late_takes_nothing,
    an_old_request_takes_nothing_when_the_address_comes_back,
    an_old_release_that_arrives_late_ends_no_new_hold,
);

const WAYS: [Losing; 3] = [Losing::Cut, Losing::ResetHalfway, Losing::Silence];

/// A client whose unanswered requests fail soon.
const IMPATIENT: &str = "lease=60s&timeout=300ms";

async fn of_a_renewal() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=6s&timeout=300ms").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    for way in WAYS {
        let asked = proxy.requests(Operation::Renew);
        proxy.lose_reply(Operation::Renew, way);
        until("it was renewed again", || async { Ok(proxy.requests(Operation::Renew) >= asked + 2) }).await?;
        recorder.restored().await?;
    }
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}

/// The client gave the request up while it was on its way, and undid it over another connection. The request arrives after
/// that, but the client has told the server to close its connection.
async fn an_old_request_that_arrives_late_takes_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    stage.works(&client).await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let lock = client.mutex(ROOM)?;
    let asked = old.requests(Operation::Acquire);
    let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("the request is on its way", || async { Ok(old.requests(Operation::Acquire) > asked) }).await?;
    acquiring.abort();
    ensure!(
        acquiring.await.is_err_and(|ended| ended.is_cancelled()),
        "it was answered over the old connection"
    );
    soon("the undoing", client.idle()).await?;
    ensure!(new.requests(Operation::Cancel) > 0, "it was not undone over the new connection");
    stage.nothing_is_left("undone").await?;
    let calls = stage.calls().await?;
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    stage.nothing_is_left("arrived").await?;
    ensure!(stage.calls().await? == calls, "a request of the old connection was carried out");
    stage.works(&client).await
}

/// The address leads to another server for a while, and the client repeats and undoes the request only there. When the address
/// leads back, the first server still has the old connection, with a request on it that no cancel follows.
async fn an_old_request_takes_nothing_when_the_address_comes_back() -> Outcome {
    let (stage, elsewhere) = (Stage::new().await?, Stage::new().await?);
    let (old, between, new) = (stage.proxy()?, elsewhere.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    stage.works(&client).await?;
    let holder = elsewhere.client(LONG).await?;
    let _held = holder.mutex(ROOM)?.acquire().await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(between.address());
    let lock = client.mutex(ROOM)?;
    let asked = old.requests(Operation::Acquire);
    let acquiring = tokio::spawn(async move { lock.acquire().await.map(drop) });
    until("the request is on its way", || async { Ok(old.requests(Operation::Acquire) > asked) }).await?;
    elsewhere.queued(1).await?;
    acquiring.abort();
    soon("the undoing", client.idle()).await?;
    elsewhere.queued(0).await?;
    ensure!(old.requests(Operation::Cancel) == 0, "it was undone over the old connection");
    switch.turn_to(new.address());
    between.cut();
    elsewhere.server.kill()?;
    soon("the lock", client.mutex("another room")?.acquire()).await??.release().await?;
    ensure!(new.connections() == 1, "it does not lead back");
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    stage.nothing_is_left("arrived").await?;
    stage.works(&client).await
}

async fn an_old_release_that_arrives_late_ends_no_new_hold() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    soon("the release", guard.release()).await??;
    let again = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    let held = stage.holder().await?.map(|(_, token)| token);
    ensure!(held == again.token().map(lock_core::FencingToken::get), "the new hold has ended: {held:?}");
    Ok(again.release().await?)
}
