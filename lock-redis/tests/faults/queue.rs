//! Places in the server's queue.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::Operation;
use test_servers::ServerOptions;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, key, soon, until};

cases!("queue":
    a_blip_while_the_lock_is_held_costs_no_place,
    a_blip_across_a_hand_off_costs_no_place,
    a_push_that_is_not_sent_is_found_by_the_heartbeat,
    a_subscriber_to_every_channel_keeps_no_dead_waiter_alive,
    a_wait_asks_before_it_ends,
);

async fn a_blip_while_the_lock_is_held_costs_no_place() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let ours = stage.client_at(proxy.address(), LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&ours)?;
    stage.queued(1).await?;
    let second = Waiter::of(&other)?;
    stage.queued(2).await?;
    let channels = stage.channels().await?;
    proxy.cut();
    until("the waiter has told its new channel", || async {
        let waiters = stage.texts(&["HVALS", &key(ROOM, 'w')]).await?;
        let mut new = stage.channels().await?.into_iter().filter(|channel| !channels.contains(channel));
        Ok(new.any(|channel| waiters.iter().any(|waiter| waiter.contains(&channel))))
    })
    .await?;
    stage.queued(2).await?;
    held.release().await?;
    let (guard, _) = first.granted().await?;
    ensure!(!second.is_finished(), "the second had the lock together with the first");
    guard.release().await?;
    let (guard, _) = second.granted().await?;
    Ok(guard.release().await?)
}

/// The lock passes the waiter while it is disconnected. It comes back to its place before all that came later.
async fn a_blip_across_a_hand_off_costs_no_place() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, other, last) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let ours = stage.client_at(proxy.address(), LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&ours)?;
    stage.queued(1).await?;
    let second = Waiter::of(&other)?;
    stage.queued(2).await?;
    let third = Waiter::of(&last)?;
    stage.queued(3).await?;
    proxy.sever();
    until("the server has noticed", || async { Ok(stage.connections().await?.len() == 3) }).await?;
    held.release().await?;
    let (guard, _) = second.granted().await?;
    stage.queued(1).await?;
    proxy.heal();
    stage.queued(2).await?;
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    ensure!(!third.is_finished(), "the third had the lock together with the first");
    guard.release().await?;
    let (guard, _) = third.granted().await?;
    Ok(guard.release().await?)
}

/// The server hands the lock off without a message, because the user that releases may not publish.
async fn a_push_that_is_not_sent_is_found_by_the_heartbeat() -> Outcome {
    let silent = ServerOptions::new().user("silent", "pw", &["~distlock:* &distlock:* +@all -publish"]);
    let stage = Stage::with(silent).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client("lease=12s").await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    held.release().await?;
    let token = stage.holder().await?.map(|(_, token)| token);
    let (guard, _) = waiter.granted().await?;
    let found = guard.token().map(lock_core::FencingToken::get);
    ensure!(found.is_some() && found == token, "handed over with {token:?}, and {found:?} was found");
    Ok(guard.release().await?)
}

/// The number of receivers that `PUBLISH` returns is no sign of life of a waiter.
async fn a_subscriber_to_every_channel_keeps_no_dead_waiter_alive() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let gone = stage.client_at(proxy.address(), LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let _gone = Waiter::of(&gone)?;
    stage.queued(1).await?;
    let next = Waiter::of(&other)?;
    stage.queued(2).await?;
    let mut curious = tokio::net::TcpStream::connect(stage.server.address()).await?;
    tokio::io::AsyncWriteExt::write_all(&mut curious, b"PSUBSCRIBE *\r\n").await?;
    until("a client listens to everything", || async { Ok(stage.number(&["PUBSUB", "NUMPAT"]).await? == 1) })
        .await?;
    proxy.sever();
    until("the server has noticed", || async { Ok(stage.connections().await?.len() == 2) }).await?;
    held.release().await?;
    let (guard, _) = next.granted().await?;
    Ok(guard.release().await?)
}

/// A wait that ends before its first heartbeat is due: the core wants to know whether the server still has it.
async fn a_wait_asks_before_it_ends() -> Outcome {
    const BEFORE_THE_END: Duration = Duration::from_millis(4300);
    const REST: Duration = Duration::from_millis(700);
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let (client, time) = stage.frozen_at(proxy.address(), "lease=24s&timeout=1s").await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let waiting = tokio::spawn(async move { lock.try_acquire_for(BEFORE_THE_END + REST).await });
    stage.queued(1).await?;
    until("it has its place", || async { Ok(proxy.requests(Operation::Acquire) == 1) }).await?;
    // What is asked later is answered later.
    client.ping().await?;
    time.advance(BEFORE_THE_END);
    until("it asks", || async { Ok(proxy.requests(Operation::Acquire) == 2) }).await?;
    client.ping().await?;
    time.advance(REST);
    let guard = soon("the end of the wait", waiting).await???;
    ensure!(guard.is_none(), "it has a lock that is held");
    Ok(held.release().await?)
}
