//! Many waiters and many holds of one client.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome, Tier};
use lock_core::{LockClient, LockGuard, Operation};
use test_servers::{Direction, TcpProxy};

use crate::case::{cases, ensure};
use crate::event_recorder::{Event, EventRecorder};
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, key, soon, until};

cases!("crowds":
    requests_that_wait_for_their_turn_break_no_connection,
    a_renewal_goes_past_those_that_wait_for_their_turn,
    a_bounded_number_of_requests_is_under_way,
    requests_that_were_given_up_are_under_way_until_they_are_answered,
    what_ends_a_hold_or_a_wait_goes_past_those_that_wait_for_their_turn,
    hundreds_wait_on_one_connection,
    many_holds_are_renewed_together,
    hundreds_of_dead_waiters_delay_no_other,
);

/// So many waiters, and twice as many holds; in the default tier a fifth of them, more than are asked for or renewed one after the other.
fn many() -> usize {
    if Tier::of_this_run() == Tier::All { 1000 } else { 200 }
}

/// How many requests of a client may be pending.
const MOST: usize = 256;

/// So many requests at the same time that most of them wait for their turn.
const CROWD: usize = 4 * MOST;

/// The server may stay silent for as long as these tests hold replies back.
const PATIENT: &str = "lease=5m&timeout=50s";

/// Shorter than the silence of a connection after which the client asks for a sign of life.
const SHORT: Duration = Duration::from_secs(5);

fn asked(proxy: &TcpProxy) -> usize {
    usize::try_from(proxy.requests(Operation::Acquire)).unwrap_or(usize::MAX)
}

/// Acquires this many locks at the same time, and returns the guards of all.
async fn hold(client: &LockClient, count: usize) -> Outcome<Vec<LockGuard>> {
    let mut acquiring = Vec::with_capacity(count);
    for number in 0..count {
        let lock = client.mutex(format!("room {number}"))?;
        acquiring.push(tokio::spawn(async move { lock.acquire().await }));
    }
    let mut held = Vec::with_capacity(count);
    for acquired in acquiring {
        held.push(soon("the lock", acquired).await???);
    }
    Ok(held)
}

/// Each reply takes three seconds, and the requests are sent in five turns. The last one waits for twelve seconds until it is
/// sent, and that does not count as time in which the server is silent.
async fn requests_that_wait_for_their_turn_break_no_connection() -> Outcome {
    let (turns, way) = (5_u32, Duration::from_secs(3));
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=6s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let connections = stage.connections().await?;
    proxy.delay(Direction::ToClient, way);
    let began = Instant::now();
    let held = hold(&client, turns as usize * MOST).await?;
    let took = began.elapsed();
    proxy.heal();
    ensure!(took >= way * turns, "more than {MOST} were under way: all were asked within {took:?}");
    ensure!(stage.connections().await? == connections, "another connection was made");
    drop(held);
    soon("the releases", client.idle()).await?;
    guard.release().await?;
    ensure!(!recorder.events().contains(&Event::Suspect), "{:?}", recorder.events());
    stage.nothing_is_left("after the releases").await
}

/// Each turn takes four seconds, and the renewal is due after ten: behind all other requests it would be too late.
async fn a_renewal_goes_past_those_that_wait_for_their_turn() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=40s&timeout=7s").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    proxy.delay(Direction::ToClient, Duration::from_secs(4));
    let before = asked(&proxy);
    let acquiring = hold(&client, CROWD);
    let watching = async {
        until("it is renewed", || async { Ok(proxy.requests(Operation::Renew) > 0) }).await?;
        let asked = asked(&proxy) - before;
        proxy.heal();
        ensure!(asked < CROWD, "it was sent behind all the others");
        Ok(())
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    ensure!(held?.len() == CROWD && guard.hold().is_valid(), "not all are held");
    Ok(())
}

/// Waits until this many requests for locks were sent, and checks that a release, which goes past those that wait for their turn,
/// is sent before another one.
async fn all_turns_are_taken(proxy: &TcpProxy, asks: usize, guard: LockGuard) -> Outcome {
    until("as many are under way as may be", || async { Ok(asked(proxy) >= asks) }).await?;
    let releases = proxy.requests(Operation::Release);
    // Each task that was spawned before has begun its request.
    tokio::spawn(async move { drop(guard) }).await?;
    until("the release is sent", || async { Ok(proxy.requests(Operation::Release) > releases) }).await?;
    ensure!(asked(proxy) == asks, "{} were asked for, and not {asks}", asked(proxy));
    Ok(())
}

/// However many callers ask at the same time. As soon as replies arrive, other requests go out.
async fn a_bounded_number_of_requests_is_under_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ours = stage.client_at(proxy.address(), PATIENT).await?;
    let guard = ours.mutex(ROOM)?.acquire().await?;
    let asks = asked(&proxy) + MOST;
    proxy.blackhole(Direction::ToClient);
    let acquiring = hold(&ours, CROWD);
    let watching = async {
        let watched = all_turns_are_taken(&proxy, asks, guard).await;
        proxy.heal();
        watched
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    ensure!(held?.len() == CROWD, "not all were granted");
    ensure!(stage.connections().await?.len() == 1, "another connection was made");
    Ok(())
}

/// Their callers are gone, but the server still has to carry them out.
async fn requests_that_were_given_up_are_under_way_until_they_are_answered() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), PATIENT).await?;
    let (first, second) = (client.mutex("first")?.acquire().await?, client.mutex("second")?.acquire().await?);
    let asks = asked(&proxy) + MOST;
    proxy.blackhole(Direction::ToClient);
    let mut given_up = Vec::new();
    for number in 0..MOST {
        let lock = client.mutex(format!("given up {number}"))?;
        given_up.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    all_turns_are_taken(&proxy, asks, first).await?;
    for asking in given_up {
        asking.abort();
        ensure!(asking.await.is_err_and(|ended| ended.is_cancelled()), "it was answered");
    }
    let acquiring = hold(&client, MOST);
    let watching = async {
        let watched = all_turns_are_taken(&proxy, asks, second).await;
        proxy.heal();
        watched
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    drop(held?);
    soon("the releases", client.idle()).await?;
    ensure!(stage.connections().await?.len() == 1, "another connection was made");
    stage.nothing_is_left("after the releases").await
}

/// Other clients wait for the lock, and the server may meanwhile grant an attempt that is to be undone.
async fn what_ends_a_hold_or_a_wait_goes_past_those_that_wait_for_their_turn() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), PATIENT).await?;
    let other = stage.client(LONG).await?;
    let (guard, _held) = (client.mutex(ROOM)?.acquire().await?, other.mutex("held")?.acquire().await?);
    let _broken = other.mutex("broken")?.acquire().await?;
    let holder = other.status("broken").await?.holders.remove(0).id;
    let waiter = Waiter::start(client.mutex("held")?);
    until("it waits", || async { Ok(stage.number(&["EXISTS", &key("held", 'q')]).await? == 1) }).await?;
    // After this reply no earlier request holds a turn.
    client.status("held").await?;
    let before = asked(&proxy);
    proxy.blackhole(Direction::ToClient);
    let acquiring = hold(&client, CROWD);
    let watching = async {
        until("the turns are taken", || async { Ok(asked(&proxy) >= before + MOST) }).await?;
        drop(guard);
        waiter.give_up().await?;
        let breaking = client.break_holder("broken", &holder);
        let watching = until("all three are asked for", || async {
            let ends = [Operation::Release, Operation::Cancel, Operation::Break];
            Ok(ends.iter().all(|operation| proxy.requests(*operation) > 0))
        });
        let watching = async {
            let watched = watching.await;
            let now = asked(&proxy);
            proxy.heal();
            watched?;
            ensure!(now == before + MOST, "{} were sent before them", now - before);
            Ok(())
        };
        let (broken, watched) = tokio::join!(breaking, watching);
        broken?;
        watched
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    ensure!(held?.len() == CROWD, "not all were granted");
    Ok(())
}

/// Waiters ask again only for their heartbeats, and learn from a message that it is their turn.
async fn hundreds_wait_on_one_connection() -> Outcome {
    let waiters_in_all = many() as u64;
    let stage = Stage::new().await?;
    let ((holder, _), (client, _)) = (stage.frozen(FROZEN).await?, stage.frozen(FROZEN).await?);
    let mut held = Vec::new();
    for number in 0..waiters_in_all {
        held.push(holder.mutex(format!("room {number}"))?.acquire().await?);
    }
    let mut waiters = Vec::new();
    for number in 0..waiters_in_all {
        waiters.push(Waiter::start(client.mutex(format!("room {number}"))?));
    }
    until("all of them wait", || async { Ok(stage.calls().await? >= 2 * waiters_in_all) }).await?;
    until("the last of them waits", || async {
        Ok(stage.number(&["EXISTS", &key(&format!("room {}", waiters_in_all - 1), 'q')]).await? == 1)
    })
    .await?;
    ensure!(stage.connections().await?.len() == 2, "{:?}", stage.connections().await?);
    ensure!(stage.channels().await?.len() == 2, "{:?}", stage.channels().await?);
    for guard in held {
        soon("the release", guard.release()).await??;
    }
    let mut granted = Vec::new();
    for waiter in waiters {
        granted.push(waiter.granted().await?.0);
    }
    // An acquire, a wait and a release each: no time passes that would make a renewal or a heartbeat due.
    let calls = stage.calls().await?;
    ensure!(calls == 3 * waiters_in_all, "{calls} calls, and not {}", 3 * waiters_in_all);
    for guard in granted {
        soon("the release", guard.release()).await??;
    }
    stage.nothing_is_left("after all of them").await
}

/// All renewals are sent before the first reply arrives, so that they take one round trip in all.
async fn many_holds_are_renewed_together() -> Outcome {
    let holds = 2 * many();
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let held = hold(&client, holds).await?;
    // A sign of life, so that the client does not ask for one that could not arrive, and then gives the connection up.
    time.advance(INTERVAL.saturating_sub(SHORT));
    client.ping().await?;
    let before = stage.calls().await?;
    stage.server.stop()?;
    time.advance(SHORT);
    let left = || held.iter().map(|guard| guard.hold().remaining()).min();
    let unrenewed = left();
    until("all renewals are sent", || async { Ok(proxy.requests(Operation::Renew) >= holds as u64) }).await?;
    stage.server.resume()?;
    let is_renewed = || async { Ok(left() > unrenewed) };
    until("all are renewed", is_renewed).await?;
    let calls = stage.calls().await? - before;
    ensure!(calls == holds as u64, "{calls} renewals");
    ensure!(stage.connections().await?.len() == 1, "{:?}", stage.connections().await?);
    drop(held);
    soon("the releases", client.idle()).await?;
    stage.nothing_is_left("after the releases").await
}

/// There are more than one call checks: a waiter asks again at once, and a try does not get the answer that the lock is held.
async fn hundreds_of_dead_waiters_delay_no_other() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for tries_once in [false, true] {
        let bury = "for number = 1, 350 do \
                      redis.call('ZADD', KEYS[1], number, number) \
                      redis.call('HSET', KEYS[2], number, '9999999999999 1 distlock:c:dead {}') \
                    end";
        stage.server.command(&["EVAL", bury, "2", &key(ROOM, 'q'), &key(ROOM, 'w')]).await?;
        let guard = if tries_once {
            lock.try_acquire().await?.ok_or_else(|| Failure::new("the dead hold the lock"))?
        } else {
            soon("the lock", lock.acquire()).await??
        };
        guard.release().await?;
    }
    stage.nothing_is_left("after the dead").await
}
