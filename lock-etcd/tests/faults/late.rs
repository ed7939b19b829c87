//! Requests and answers that are late or lost: nothing of an attempt that was given up appears afterwards.

use std::time::Duration;

use conformance_tests::{Failure, Losing, Outcome};
use lock_core::{LockClient, LockError};
use test_servers::{EtcdRequest, TcpProxy};

use crate::case::{cases, ensure};
use crate::stage::{LONG, PREFIX, ROOM, Stage, Waiter, drop_after, soon, until};

cases!("late":
    a_request_that_arrives_after_its_undoing_creates_nothing,
    a_request_that_arrives_after_the_release_creates_nothing,
    what_is_dropped_at_any_moment_leaves_nothing,
    a_known_outcome_leaves_no_tombstone,
    a_slot_that_ends_while_it_is_forgotten_is_gone,
);

/// A client that gives up a request early, and its lease not at all.
const HASTY: &str = "lease=5m&timeout=500ms";

/// The tombstones of all clients.
async fn tombstones(stage: &Stage) -> Outcome<usize> {
    Ok(stage.server.keys(&format!("{PREFIX}/~undone/")).await?.len())
}

/// How often a case repeats a race with what was held back: the server does not carry out all of it, as the client has given it up.
const ROUNDS: usize = 5;

/// Lets go what the proxy has held back, and waits until it has arrived: the server has ended the connection of it, and carried
/// out what was asked for after that.
async fn let_it_arrive(client: &LockClient, proxy: &TcpProxy) -> Outcome {
    proxy.let_go();
    until("one connection is left", || async { Ok(proxy.connections() == 1) }).await?;
    until("an answer", || async { Ok(client.ping().await.is_ok()) }).await?;
    client.mutex("another room")?.acquire().await?.release().await?;
    Ok(())
}

async fn nothing_has_appeared(stage: &Stage) -> Outcome {
    let line = stage.line().await?;
    ensure!(line.is_empty(), "a late request has created {line:?}");
    Ok(())
}

/// The request is held back on a connection that stays open towards the server, while the client undoes it on another one.
async fn a_request_that_arrives_after_its_undoing_creates_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let client = stage.client_at(proxy.address(), HASTY).await?;
    for round in 1..=ROUNDS {
        proxy.hold_request(EtcdRequest::Create);
        let lock = client.mutex(ROOM)?;
        tokio::select! {
            biased;
            () = proxy.is_held() => {}
            granted = lock.acquire() => return Err(Failure::new(format!("{granted:?} without an answer"))),
        }
        soon("the undoing", client.idle()).await?;
        ensure!(tombstones(&stage).await? == round, "no tombstone");
        let_it_arrive(&client, &proxy).await?;
        nothing_has_appeared(&stage).await?;
    }
    stage.is_free(&client, "then").await
}

/// A first request is late, a repeated one gets the lock, which is released before the first one arrives.
async fn a_request_that_arrives_after_the_release_creates_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let client = stage.client_at(proxy.address(), HASTY).await?;
    for round in 1..=ROUNDS {
        proxy.hold_request(EtcdRequest::Create);
        let waiter = Waiter::of(&client)?;
        soon("the request", proxy.is_held()).await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
        let_it_arrive(&client, &proxy).await?;
        nothing_has_appeared(&stage).await?;
        ensure!(tombstones(&stage).await? == round, "no tombstone");
    }
    Ok(())
}

async fn what_is_dropped_at_any_moment_leaves_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for micros in (0..60).map(|step| step * 25) {
        drop_after(client.mutex(ROOM)?.acquire(), Duration::from_micros(micros)).await?;
    }
    soon("the undoing", client.idle()).await?;
    ensure!(stage.line().await?.is_empty(), "{:?} is left", stage.line().await?);
    stage.is_free(&client, "then").await?;
    client.close(Duration::from_secs(20)).await?;
    until("the tombstones have gone", || async { Ok(tombstones(&stage).await? == 0) }).await
}

async fn a_known_outcome_leaves_no_tombstone() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let other = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    // Long enough for the answer to its request: without one the outcome would not be known.
    let refused = other.mutex(ROOM)?.acquire_for(Duration::from_secs(5)).await;
    ensure!(refused.is_err(), "granted");
    guard.release().await?;
    soon("the undoing", other.idle()).await?;
    ensure!(tombstones(&stage).await? == 0, "a tombstone");
    // Its request may have arrived, and so it leaves one.
    proxy.lose_reply(EtcdRequest::Create, Losing::Cut);
    let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    guard.release().await?;
    stage.is_free(&other, "after a lost answer").await
}

async fn a_slot_that_ends_while_it_is_forgotten_is_gone() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.server.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=5m&timeout=60s").await?;
    client.once(ROOM, "today")?.run(async |_| Ok::<_, LockError>(())).await?;
    let slots = format!("{PREFIX}/~remembered/");
    let slot = stage.server.command(&["get", "--prefix", &slots, "-w", "fields"]).await?;
    let lease = slot.lines().find_map(|line| line.strip_prefix("\"Lease\" : ")?.parse::<u64>().ok());
    let lease = lease.ok_or_else(|| Failure::new(slot))?;
    // The question for the rest of it, before the request to end it.
    proxy.hold_request(EtcdRequest::KeepAlive);
    let (forgotten, ended) = tokio::join!(client.forget(ROOM, "today"), async {
        soon("a request", proxy.is_held()).await?;
        let ended = stage.server.command(&["lease", "revoke", &format!("{lease:x}")]).await;
        proxy.let_go();
        ended
    });
    ended?;
    ensure!(!forgotten?, "it was there");
    Ok(())
}
