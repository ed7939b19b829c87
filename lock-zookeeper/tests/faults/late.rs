//! Requests that the client gave up and that arrive late, on a connection that another one has replaced.

use conformance_tests::Outcome;
use lock_core::LockError;
use test_servers::{Direction, TcpProxy, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::stage::{IMPATIENT, LONG, ROOM, Stage, Waiter, release_patiently, soon, until};

cases!("late":
    a_delete_that_arrives_when_the_lock_is_held_anew,
    a_delete_that_arrives_when_others_hold_and_wait,
    a_creation_that_arrives_after_it_was_undone,
    a_creation_that_arrives_after_it_was_done_again,
);

/// The caller of a release waits as long as the hold would have lasted. With such a session that usually leaves three seconds after
/// the client library has found the connection dead.
const RELEASES_ANEW: &str = "session_timeout=15s";

/// The way through `old` is blocked with requests on it; the client uses the other way, and has succeeded before the old requests
/// arrive.
async fn a_delete_that_arrives_when_the_lock_is_held_anew() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), RELEASES_ANEW).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let asked = old.requests(ZooKeeperRequest::Delete);
    release_patiently(&client, guard).await?;
    ensure!(old.requests(ZooKeeperRequest::Delete) > asked, "nothing is on its way");
    let again = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    stage.is_held_by(&again, "after the late delete").await?;
    again.release().await?;
    stage.nothing_is_left("at the end").await
}

async fn a_delete_that_arrives_when_others_hold_and_wait() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), RELEASES_ANEW).await?;
    let (second, third) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let next = stage.in_line(&second, 2).await?;
    let last = stage.in_line(&third, 3).await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    release_patiently(&client, guard).await?;
    let (held, _) = next.granted().await?;
    let nodes = stage.nodes().await?;
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    stage.is_held_by(&held, "after the late delete").await?;
    ensure!(stage.nodes().await? == nodes && !last.is_finished(), "another client lost a place");
    held.release().await?;
    let (guard, _) = last.granted().await?;
    Ok(guard.release().await?)
}

async fn a_creation_that_arrives_after_it_was_undone() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    stage.works(&client).await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let asked = old.requests(ZooKeeperRequest::Create);
    let waiter = Waiter::of(&client)?;
    until("the request is on its way", || async { Ok(old.requests(ZooKeeperRequest::Create) > asked) })
        .await?;
    waiter.give_up().await?;
    soon("the undoing", client.idle()).await?;
    ensure!(new.requests(ZooKeeperRequest::List) > 0, "it was not undone over the new connection");
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    stage.nothing_is_left_now("arrived").await?;
    stage.works(&client).await
}

async fn a_creation_that_arrives_after_it_was_done_again() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), IMPATIENT).await?;
    let other = stage.client(LONG).await?;
    stage.works(&client).await?;
    old.blackhole(Direction::ToServer);
    switch.turn_to(new.address());
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    let waiter = stage.in_line(&other, 2).await?;
    old.heal();
    until("what was on its way has arrived", || async { Ok(old.connections() == 0) }).await?;
    ensure!(stage.nodes().await?.len() == 2, "{:?}", stage.nodes().await?);
    stage.is_held_by(&guard, "arrived").await?;
    let released: Result<(), LockError> = guard.release().await;
    released?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("at the end").await
}
