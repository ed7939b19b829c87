//! The limit on connections: the client uses as many as it may, and not one more.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome, Tier};
use lock_core::{ErrorKind, Operation};
use test_servers::{Direction, MySqlFlavour, MySqlSession, ServerOptions};

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{FROZEN, INTERVAL, INTERVALS, LONG, Stage, Waiter, outlast, soon, until};

cases!("limits":
    locks_share_connections,
    a_crowd_shares_connections,
    waits_go_on_although_something_is_held_on_every_connection,
    holds_are_checked_with_one_statement_for_each_connection,
    a_burst_far_from_the_server_is_spread,
    a_check_is_not_kept_waiting_by_a_burst,
    a_full_client_says_so_also_after_a_failure_to_connect,
    waits_beyond_the_bound_are_served_in_order,
    a_server_without_room_is_asked_again,
    a_server_without_room_is_not_asked_all_the_time,
    unused_connections_are_closed,
    a_closed_client_has_no_connection,
    a_dropped_client_has_no_connection,
);

/// A fifth of them in the default tier: they come to a few connections as well.
fn many(locks: u64) -> u64 {
    if Tier::of_this_run() == Tier::All { locks } else { locks / 5 }
}

async fn locks_share_connections(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let options = format!("{FROZEN}&locks_per_connection=50");
    let (client, _time) = stage.frozen_at(stage.server.address(), &options).await?;
    let (mut guards, locks) = (Vec::new(), many(1000));
    for number in 0..locks {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    let connections = stage.connections().await?;
    ensure!(connections <= locks / 50, "{locks} locks, 50 to a connection, have {connections} connections");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// All of them at once, and each waits until it has the lock. No queue is long by a clock that stands still: where one is, the client
/// opens another connection.
async fn a_crowd_shares_connections(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let options = format!("{FROZEN}&locks_per_connection=100");
    let (client, _time) = stage.frozen_at(stage.server.address(), &options).await?;
    let (mut waiting, locks) = (Vec::new(), many(2000));
    for number in 0..locks {
        waiting.push(Waiter::start(client.mutex(format!("room {number}"))?));
    }
    let mut guards = Vec::new();
    for waiter in waiting {
        guards.push(waiter.granted().await?.0);
    }
    let connections = stage.connections().await?;
    ensure!(connections <= locks / 80, "{locks} locks, 100 to a connection, have {connections} connections");
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn waits_go_on_although_something_is_held_on_every_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let holder = stage.client(LONG).await?;
    let client = stage.client("lease=10m&max_connections=2&locks_per_connection=1").await?;
    let _one = client.mutex("one")?.acquire().await?;
    let other = client.mutex("other")?.acquire().await?;
    let held = holder.mutex("room")?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    held.release().await?;
    other.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn holds_are_checked_with_one_statement_for_each_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let options = format!("{FROZEN}&locks_per_connection=100");
    let (client, time) = stage.frozen_at(proxy.address(), &options).await?;
    let mut guards = Vec::new();
    for number in 0..300 {
        // While the clock stands still, a connection that cannot be opened is not tried again.
        guards.push(soon("a lock", client.mutex(format!("room {number}"))?.acquire()).await??);
    }
    let before = proxy.requests(Operation::Renew);
    outlast(&time, INTERVAL, &guards, async || Ok(())).await?;
    let checks = proxy.requests(Operation::Renew) - before;
    ensure!(checks == u64::from(3 * INTERVALS), "{checks} checks of three connections");
    drop(guards);
    soon("the releases", client.idle()).await
}

async fn a_full_client_says_so_also_after_a_failure_to_connect(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let options = "lease=10m&timeout=5s&max_connections=2&locks_per_connection=2";
    let client = stage.client_at(proxy.address(), options).await?;
    let mut guards = Vec::new();
    for number in 0..4 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    let one_too_many = || async {
        let lock = client.mutex("one too many")?;
        let error = soon("an answer", lock.try_acquire()).await?.err();
        error.ok_or_else(|| Failure::new("there was room"))
    };
    proxy.refuse();
    let looked = client.status("room 0").await.map(drop).map_err(|error| error.kind());
    ensure!(looked == Err(ErrorKind::Unreachable), "looked without a connection: {looked:?}");
    proxy.heal();
    let error = one_too_many().await?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("all of the 2 connections are in use"), "{error}");
    ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "a hold was lost");
    drop(guards.pop());
    soon("the release", client.idle()).await?;
    let guard = client.mutex("one too many")?.try_acquire().await?;
    ensure!(guard.is_some(), "there is room, and a free lock was refused");
    Ok(())
}

/// How often the next case has run.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Each waiter has a connection, and one connection stays free for attempts that do not wait.
async fn waits_beyond_the_bound_are_served_in_order(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let holder = stage.client(LONG).await?;
    let client = stage.client("lease=10m&max_connections=3").await?;
    // Names that no other case uses, nor this one in another run.
    let case = RUNS.fetch_add(1, Ordering::Relaxed);
    let room = |number: u64| format!("room{case}.{number}");
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for number in 0..6 {
        let name = room(number);
        held.push(holder.mutex(&name)?.acquire().await?);
        waiting.push(Waiter::start(client.mutex(&name)?));
        stage.queued((number + 1).min(2)).await?;
        if number >= 2 {
            // The client logs this when the attempt is in the queue.
            let is_told =
                || async { Ok(!logs::lines_with(&["no connection is free", name.as_str()]).is_empty()) };
            until("it waits for a connection", is_told).await?;
        }
    }
    ensure!(client.mutex("free")?.try_acquire().await?.is_some(), "a free lock was refused");
    for (number, (guard, waiter)) in (0..).zip(held.into_iter().zip(waiting)) {
        guard.release().await?;
        let (granted, _) = waiter.granted().await?;
        granted.release().await?;
        // The next attempt gets its connection.
        let next: Vec<_> = (number + 1..6).take(2).collect();
        stage.queued(next.len() as u64).await?;
        for next in next {
            let waits = format!(
                "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE='User lock' \
                 AND LOCATE('{}',INFO)>0",
                room(next)
            );
            ensure!(
                stage.number(&waits).await? == 1,
                "{next} does not wait at the server after {number} has"
            );
        }
    }
    Ok(())
}

/// Takes all connections that are left. One that has been closed may still count, so the server has to refuse twice in a row.
async fn fill(stage: &Stage) -> Vec<MySqlSession> {
    let (mut sessions, mut refusals) = (Vec::new(), 0);
    while refusals < 2 {
        // The server admits root once beyond its limit.
        if let Ok(session) = stage.server.session().await {
            sessions.push(session);
            refusals = 0;
        } else {
            refusals += 1;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    sessions
}

/// Error 1040: the wait continues when the server has a free connection again.
async fn a_server_without_room_is_asked_again(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with(ServerOptions::new().flavour(flavour).setting("max_connections", "4")).await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex("room")?.acquire().await?;
    let client = stage.client(LONG).await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let others = fill(&stage).await;
    let theirs = holder.mutex("another room")?.acquire().await?;
    let lock = client.mutex("another room")?;
    let kind = lock.try_acquire().await.map(drop).map_err(|error| (error.kind(), error.is_retryable()));
    ensure!(kind == Err((ErrorKind::Unreachable, true)), "without room, a try was answered {kind:?}");
    let second = Waiter::start(lock);
    drop(theirs);
    soon("the release", holder.idle()).await?;
    ensure!(!second.is_finished(), "granted without a connection");
    drop(others);
    let (guard, _) = second.granted().await?;
    guard.release().await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// Neither by waiters without a connection, nor by those that have one and whose waits cannot be checked.
async fn a_server_without_room_is_not_asked_all_the_time(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with(ServerOptions::new().flavour(flavour).setting("max_connections", "10")).await?;
    let holder = stage.client(LONG).await?;
    let client = stage.client("lease=4s").await?;
    let mut held = Vec::new();
    for number in 0..5 {
        held.push(holder.mutex(format!("room {number}"))?.acquire().await?);
    }
    let mut others = Vec::new();
    // At once, before the client closes a connection that it does not use.
    while let Ok(session) = stage.server.session().await {
        others.push(session);
    }
    let waiters = (0..5).map(|number| Ok(Waiter::start(client.mutex(format!("room {number}"))?)));
    let waiters = waiters.collect::<Outcome<Vec<_>>>()?;
    let mut refuses = async |times: f64| -> Outcome<f64> {
        let least = refused(&mut others).await? + times;
        let refusing = async {
            loop {
                let now = refused(&mut others).await?;
                if now >= least {
                    return Ok(now);
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        };
        soon("the refusals", refusing).await?
    };
    // After ten the pauses have reached their longest.
    let (before, began) = (refuses(10.0).await?, Instant::now());
    let (after, took) = (refuses(4.0).await?, began.elapsed());
    let asked = after - before;
    ensure!(asked <= 2.0 + 2.0 * took.as_secs_f64(), "it was asked {asked} times in {took:?}");
    drop(others);
    drop(held);
    for waiter in waiters {
        waiter.granted().await?.0.release().await?;
    }
    Ok(())
}

/// How many connections the server has refused because it had none free.
async fn refused(sessions: &mut [MySqlSession]) -> Outcome<f64> {
    let session = sessions.first_mut().ok_or_else(|| Failure::new("there is no session"))?;
    let rows = session.query("SHOW GLOBAL STATUS LIKE 'Connection_errors_max_connections'").await?;
    let count = rows.into_iter().flatten().flatten().nth(1).and_then(|count| count.parse().ok());
    count.ok_or_else(|| Failure::new("the server does not count"))
}

async fn unused_connections_are_closed(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client("lease=6s").await?, stage.client("lease=6s").await?);
    let held = holder.mutex("room")?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    held.release().await?;
    waiter.granted().await?.0.release().await?;
    until("all are closed", || async { Ok(stage.connections().await? == 0) }).await?;
    stage.works(&client).await
}

async fn a_closed_client_has_no_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex("room")?.acquire().await?;
    // An error where a busy server does not answer in time.
    let refused = client.mutex("room")?.try_acquire_for(Duration::from_secs(2)).await;
    ensure!(!matches!(refused, Ok(Some(_))), "a lock that is held was granted");
    client.status("room").await?;
    client.close(Duration::from_secs(10)).await?;
    until("its connections are closed", || async { Ok(stage.connections().await? == 1) }).await?;
    ensure!(client.mutex("room").is_err() && client.status("room").await.is_err(), "closed, and at work");
    ensure!(stage.connections().await? == 1, "a closed client has connected again");
    held.release().await?;
    Ok(())
}

async fn a_dropped_client_has_no_connection(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    client.status("room").await?;
    drop(client);
    until("its connections are closed", || async { Ok(stage.connections().await? == 0) }).await
}

/// More tries than one connection could carry out within the request timeout.
async fn a_burst_far_from_the_server_is_spread(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    proxy.delay(Direction::ToClient, Duration::from_millis(50));
    let client = stage.client_at(proxy.address(), "lease=10m&timeout=60s").await?;
    let tries = (0..250).map(|number| {
        let lock = client.mutex(format!("room {number}"));
        tokio::spawn(async move { lock?.try_acquire().await })
    });
    let tries: Vec<_> = tries.collect();
    let mut guards = Vec::new();
    for attempt in tries {
        let guard = soon("an answer", attempt).await???;
        ensure!(guard.is_some(), "a free lock was refused");
        guards.push(guard);
    }
    let connections = stage.connections().await?;
    ensure!((2..=125).contains(&connections), "250 tries had {connections} connections");
    proxy.delay(Direction::ToClient, Duration::ZERO);
    drop(guards);
    soon("the releases", client.idle()).await
}

/// The check does not queue behind other requests on the same connection.
async fn a_check_is_not_kept_waiting_by_a_burst(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let options = format!("{FROZEN}&max_connections=2&locks_per_connection=1000");
    let (client, time) = stage.frozen_at(proxy.address(), &options).await?;
    let held = client.mutex("held")?.acquire().await?;
    // So that the check is due before a try has waited for long by the client's clock.
    time.advance(INTERVAL * 2 / 3);
    let requests = |operation| proxy.requests(operation);
    let (asked, checks) = (requests(Operation::Acquire), requests(Operation::Renew));
    proxy.delay(Direction::ToClient, Duration::from_millis(20));
    let tries = (0..600).map(|number| {
        let lock = client.mutex(format!("room {number}"));
        tokio::spawn(async move { lock?.try_acquire().await })
    });
    let tries: Vec<_> = tries.collect();
    until("some are answered", || async { Ok(requests(Operation::Acquire) >= asked + 10) }).await?;
    time.advance(INTERVAL / 3);
    until("the hold is checked", || async { Ok(requests(Operation::Renew) > checks) }).await?;
    let asked = requests(Operation::Acquire) - asked;
    ensure!(asked < 300, "{asked} tries went before the check");
    proxy.delay(Direction::ToClient, Duration::ZERO);
    for attempt in tries {
        soon("an answer", attempt).await???;
    }
    // The release goes behind those of the tries, which take a while on a busy machine.
    soon("the releases of the tries", client.idle()).await?;
    Ok(soon("the release", held.release()).await??)
}
