//! Connections that go silent without ending: what is sent arrives late or never.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, Clock, ErrorKind, LossReason};
use lock_kit::LockUrl;
use test_servers::{Direction, TcpProxy};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Stage, Waiter, until, with_options};

cases!("silence":
    a_silent_head_waiter_is_skipped_at_its_deadline,
    a_waiter_that_was_silent_for_a_lease_is_given_nothing,
    a_half_open_connection_is_replaced_and_the_hold_goes_on,
    a_waiter_on_a_half_open_connection_is_served,
    a_grant_that_was_pushed_into_silence_is_found,
    a_grant_that_is_pushed_lasts_from_the_last_heartbeat,
    a_silent_server_is_too_late_by_the_clients_own_clock,
);

/// As far as the server can see, its connection is open, so it gets the lock for as long as its last heartbeat is good for. The
/// next waiter learns that with its own heartbeat.
async fn a_silent_head_waiter_is_skipped_at_its_deadline() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let silent = stage.client_at(proxy.address(), "lease=9s").await?;
    let first = Waiter::of(&silent)?;
    stage.queued(1).await?;
    let second_client = stage.client("lease=3s").await?;
    let second = Waiter::of(&second_client)?;
    stage.queued(2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let (ours, _) = stage.holder().await?.ok_or_else(|| Failure::new("the lock is free"))?;
    held.release().await?;
    let asked = Instant::now();
    let left = stage.lease_left().await?;
    let (silents, _) =
        stage.holder().await?.ok_or_else(|| Failure::new("the lock was granted to no client"))?;
    ensure!(ours != silents, "the lock was not handed over");
    ensure!(left <= Duration::from_secs(9), "the silent waiter was given {left:?}");
    let (guard, granted) = second.granted().await?;
    let waited = granted.duration_since(asked);
    ensure!(waited + Duration::from_millis(1) >= left, "granted after {waited:?} instead of {left:?}");
    // The message that was pushed to the first waiter arrives now, and no longer means anything.
    proxy.heal();
    stage.queued(1).await?;
    ensure!(guard.hold().is_valid() && !first.is_finished(), "the late push was believed");
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    Ok(guard.release().await?)
}

/// The lock does not wait for it either: the next waiter would ask again only after more than a minute.
async fn a_waiter_that_was_silent_for_a_lease_is_given_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, next) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let silent = stage.client_at(proxy.address(), "lease=2s").await?;
    let first = Waiter::of(&silent)?;
    stage.queued(1).await?;
    let second = Waiter::of(&next)?;
    stage.queued(2).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(stage.channels().await?.len() == 3, "the server has noticed");
    held.release().await?;
    let (guard, _) = second.granted().await?;
    proxy.heal();
    stage.queued(1).await?;
    ensure!(!first.is_finished(), "the first had the lock together with the second");
    guard.release().await?;
    let (guard, _) = first.granted().await?;
    Ok(guard.release().await?)
}

/// The system does not report a connection whose other end is gone for good; the client sends a `PING`, and replaces it in
/// time.
async fn a_half_open_connection_is_replaced_and_the_hold_goes_on() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let client = stage.client_at(switch.address(), "lease=15s&timeout=500ms").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    switch.turn_to(new.address());
    old.blackhole(Direction::ToServer);
    old.blackhole(Direction::ToClient);
    recorder.suspect().await?;
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    ensure!(recorder.aborts() == 0, "lost: {:?}", recorder.events());
    Ok(())
}

async fn a_waiter_on_a_half_open_connection_is_served() -> Outcome {
    let stage = Stage::new().await?;
    let (old, new) = (stage.proxy()?, stage.proxy()?);
    let switch = TcpProxy::start(old.address())?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client_at(switch.address(), "lease=5m&timeout=300ms").await?;
    let channels = stage.channels().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    switch.turn_to(new.address());
    old.blackhole(Direction::ToServer);
    old.blackhole(Direction::ToClient);
    until("the client listens on a new channel, and on no other", || async {
        let now = stage.channels().await?;
        Ok(now.len() == 2 && now.iter().any(|channel| !channels.contains(channel)))
    })
    .await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// The message was sent on the old connection. On the next connection the waiter asks for the state of its attempt.
async fn a_grant_that_was_pushed_into_silence_is_found() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    proxy.blackhole(Direction::ToClient);
    let (before, _) = stage.holder().await?.ok_or_else(|| Failure::new("the lock is free"))?;
    held.release().await?;
    let (owner, token) = stage.holder().await?.ok_or_else(|| Failure::new("the lock was not handed over"))?;
    ensure!(owner != before, "the lock was not handed over");
    proxy.cut();
    proxy.heal();
    let (guard, _) = waiter.granted().await?;
    let found = guard.token().map(lock_core::FencingToken::get);
    ensure!(found == Some(token), "the grant had the token {token}, and {found:?} was found");
    Ok(guard.release().await?)
}

/// The server counts from there, whenever it grants. If the lease were counted from the grant, two clients would hold the lock.
async fn a_grant_that_is_pushed_lasts_from_the_last_heartbeat() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, next) = (stage.client(LONG).await?, stage.client("lease=12s").await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let ours = stage.client_at(proxy.address(), "lease=12s").await?;
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let first = Waiter::start(lock);
    stage.queued(1).await?;
    let second = Waiter::of(&next)?;
    stage.queued(2).await?;
    proxy.blackhole(Direction::ToServer);
    tokio::time::sleep(Duration::from_millis(700)).await;
    held.release().await?;
    let (guard, granted) = first.granted().await?;
    let (reason, aborted) = recorder.abort().await?;
    ensure!(reason == LossReason::Expired && granted < aborted, "lost because {reason}");
    let (next, passed_on) = second.granted().await?;
    ensure!(aborted < passed_on, "another had the lock {:?} before the abort", aborted - passed_on);
    proxy.heal();
    drop(guard);
    ours.idle().await;
    Ok(next.release().await?)
}

async fn a_silent_server_is_too_late_by_the_clients_own_clock() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (clock, time) = Clock::manual();
    let url = with_options(&stage.server.url_at(proxy.address()), "lease=1h&timeout=10m");
    let client = lock_redis::connect(&LockUrl::parse(&url)?, ClientBuilder::new().clock(clock)).await?;
    proxy.blackhole(Direction::ToClient);
    let asking = tokio::spawn(async move { client.ping().await });
    until("the answer is too late", || async {
        time.advance(Duration::from_secs(60));
        Ok(asking.is_finished())
    })
    .await?;
    let error = asking.await?.err().ok_or_else(|| Failure::new("the server was heard"))?;
    ensure!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    Ok(())
}
