//! The number of requests that operations cost.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{LockClient, LockGuard};
use test_servers::{TcpProxy, ZooKeeperRequest};
use tokio::task::JoinSet;

use crate::case::{cases, ensure};
use crate::stage::{LONG, NO_LONGER_NEW, ROOM, Stage, soon, until};

cases!("costs":
    more_locks_than_one_session_takes,
    ended_holds_take_no_place_in_a_session,
    a_thousand_holds_cost_one_heartbeat,
    a_free_lock_costs_two_requests,
    a_held_lock_costs_one_listing,
    a_place_far_back_costs_two_watches,
    a_list_costs_two_requests_for_many_locks,
    an_idle_client_costs_a_few_signs_of_life,
);

const KINDS: [ZooKeeperRequest; 10] = [
    ZooKeeperRequest::Create,
    ZooKeeperRequest::Delete,
    ZooKeeperRequest::List,
    ZooKeeperRequest::ListOwn,
    ZooKeeperRequest::Read,
    ZooKeeperRequest::ReadMany,
    ZooKeeperRequest::Exists,
    ZooKeeperRequest::Sync,
    ZooKeeperRequest::Check,
    ZooKeeperRequest::Change,
];

fn counts(proxy: &TcpProxy) -> Vec<u64> {
    KINDS.iter().map(|kind| proxy.requests(*kind)).collect()
}

fn since(before: &[u64], proxy: &TcpProxy) -> Vec<u64> {
    counts(proxy).iter().zip(before).map(|(now, before)| now - before).collect()
}

/// Holds this many locks, each with the name that `name_of` gives to its number.
async fn hold_many(
    client: &LockClient,
    count: usize,
    name_of: impl Fn(usize) -> String,
) -> Outcome<Vec<LockGuard>> {
    let (mut guards, mut acquiring) = (Vec::with_capacity(count), JoinSet::new());
    for number in 0..count {
        if acquiring.len() == 64
            && let Some(guard) = soon("a lock", acquiring.join_next()).await?
        {
            guards.push(guard??);
        }
        let lock = client.mutex(name_of(number))?;
        acquiring.spawn(async move { lock.acquire().await });
    }
    while let Some(guard) = soon("a lock", acquiring.join_next()).await? {
        guards.push(guard??);
    }
    Ok(guards)
}

/// The total length of the paths that the server has for each session with nodes in the folder, in bytes.
async fn bytes_of_sessions(stage: &Stage) -> Outcome<Vec<usize>> {
    let dump = stage.server.word("dump").await?;
    let mut sums = Vec::new();
    for line in dump.lines() {
        let path = line.trim();
        if line.starts_with("0x") {
            sums.push(0);
        } else if path.starts_with(&format!("{}/", stage.root))
            && let Some(sum) = sums.last_mut()
        {
            *sum += path.len();
        }
    }
    sums.retain(|sum| *sum > 0);
    Ok(sums)
}

/// The paths of a session have to fit into one message: of the client when it connects again, and of the servers when the session
/// ends.
const MOST_BYTES: usize = 128 * 1024;

/// A session can have a little more than two hundred nodes with such names.
fn long_name(number: usize) -> String {
    format!("{}{number}", "long-".repeat(98))
}

async fn more_locks_than_one_session_takes() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let guards = hold_many(&client, 350, long_name).await?;
    let sessions = bytes_of_sessions(&stage).await?;
    ensure!(sessions.len() > 1 && sessions.iter().all(|bytes| *bytes <= MOST_BYTES), "{sessions:?}");
    // A lock granted in the second session is as good as one in the first, even after a loss of contact.
    let other = stage.client(LONG).await?;
    let connected = proxy.requests(ZooKeeperRequest::Connect);
    proxy.cut();
    until("all sessions have connected again", || async {
        Ok(proxy.requests(ZooKeeperRequest::Connect) >= connected + sessions.len() as u64)
    })
    .await?;
    for number in [0, 150, 300, 349] {
        let name = long_name(number);
        ensure!(other.mutex(&name)?.try_acquire().await?.is_none(), "{number}: held twice");
        let guard = guards.iter().find(|guard| guard.hold().name().as_str() == name);
        let guard = guard.ok_or_else(|| Failure::new(format!("{name} was not acquired")))?;
        let directory = stage.directory(&name);
        let nodes = stage.server.children(&directory).await?.unwrap_or_default();
        for node in nodes {
            stage.server.delete(&format!("{directory}/{node}")).await?;
        }
        soon(format!("the loss of {name}"), guard.lost()).await?;
    }
    let valid = guards.iter().filter(|guard| guard.hold().is_valid()).count();
    ensure!(valid == 346, "{valid} are still held");
    drop(guards);
    soon("the end", client.close(Duration::from_secs(60))).await??;
    let sessions = bytes_of_sessions(&stage).await?;
    ensure!(sessions.is_empty(), "{sessions:?} after the end of the client");
    Ok(())
}

/// A caller that keeps handles of ended holds keeps nothing at the servers, and blocks no other client.
async fn ended_holds_take_no_place_in_a_session() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    // A session can have two hundred such paths.
    let name = "long-".repeat(100);
    let lock = client.mutex(&name)?;
    let mut ended = Vec::new();
    for _ in 0..300 {
        let guard = soon("the lock", lock.acquire()).await??;
        ended.push(guard.hold().clone());
        guard.release().await?;
    }
    let sessions = proxy.requests(ZooKeeperRequest::Connect);
    ensure!(sessions == 1, "{} ended holds filled {sessions} sessions", ended.len());
    Ok(())
}

/// Two sessions have them, and each has a heartbeat in an interval, which is a sixth of it.
async fn a_thousand_holds_cost_one_heartbeat() -> Outcome {
    const INTERVALS: u64 = 4;
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let guards = hold_many(&client, 1_000, |number| format!("many-{number}")).await?;
    time.advance(NO_LONGER_NEW);
    let before = counts(&proxy);
    for _ in 0..INTERVALS {
        time.advance(Duration::from_secs(10));
        until("all are renewed", || async {
            Ok(guards.iter().all(|guard| guard.hold().remaining() > Some(Duration::from_secs(35))))
        })
        .await?;
    }
    let spent = since(&before, &proxy);
    ensure!(spent[8] == 2 * INTERVALS, "{KINDS:?} {spent:?}");
    let others: u64 = spent[..4].iter().chain(&spent[5..8]).sum();
    ensure!(others <= 2 * INTERVALS, "{KINDS:?} {spent:?}");
    Ok(())
}

async fn a_free_lock_costs_two_requests() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    stage.works(&client).await?;
    soon("the rest", client.idle()).await?;
    let before = counts(&proxy);
    for _ in 0..50 {
        lock.acquire().await?.release().await?;
        let guard = lock.try_acquire().await?;
        guard.ok_or_else(|| Failure::new("free, and not given"))?.release().await?;
    }
    let spent = since(&before, &proxy);
    ensure!(spent[0] == 100 && spent[1] == 100, "{KINDS:?} {spent:?}");
    // On a busy machine a hold may last long enough for its node to be watched, or for a renewal.
    let others: u64 = [2, 3, 5, 7, 9].iter().map(|kind| spent[*kind]).sum();
    ensure!(others == 0, "{KINDS:?} {spent:?}");
    Ok(())
}

/// However many predecessors it has, and however they go.
async fn a_held_lock_costs_one_listing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let (mut waiters, mut clients) = (Vec::new(), Vec::new());
    for count in 1..10 {
        let other = stage.client(LONG).await?;
        waiters.push(stage.in_line(&other, count).await?);
        clients.push(other);
    }
    let before = counts(&proxy);
    let waiter = stage.in_line(&client, 10).await?;
    // Two give up, the others get the lock.
    waiters.remove(8).give_up().await?;
    waiters.remove(4).give_up().await?;
    for waiting in waiters {
        let (guard, _) = waiting.granted().await?;
        ensure!(!waiter.is_finished(), "both hold");
        guard.release().await?;
    }
    let (guard, _) = waiter.granted().await?;
    let spent = since(&before, &proxy);
    ensure!(spent[0] == 1 && spent[2] == 1 && spent[3] == 0 && spent[7] == 0, "{KINDS:?} {spent:?}");
    // One attempt that is granted at once, and one try.
    guard.release().await?;
    let held = clients[0].mutex(ROOM)?.acquire().await?;
    let before = counts(&proxy);
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "held twice");
    let spent = since(&before, &proxy);
    ensure!(spent[..4] == [1, 1, 1, 0] && spent[7] == 0, "{KINDS:?} {spent:?}");
    Ok(held.release().await?)
}

/// The own nodes are asked for together with those before: a waiter that is not next when they are no longer new needs no watch for
/// them.
async fn a_place_far_back_costs_two_watches() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (first, second, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let held = first.mutex(ROOM)?.acquire().await?;
    let between = [stage.in_line(&second, 2).await?, stage.in_line(&third, 3).await?];
    let before = counts(&proxy);
    let waiter = stage.in_line(&client, 4).await?;
    stage.waits(3).await?;
    time.advance(Duration::from_millis(100));
    held.release().await?;
    for waiting in between {
        waiting.granted().await?.0.release().await?;
    }
    let (guard, _) = waiter.granted().await?;
    let spent = since(&before, &proxy);
    ensure!(spent[..6] == [1, 0, 1, 0, 2, 1], "{KINDS:?} {spent:?}");
    Ok(guard.release().await?)
}

/// And one that brings the server up to date: a list of ten thousand would take seconds with a request for each lock.
async fn a_list_costs_two_requests_for_many_locks() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let guards = hold_many(&stage.client(LONG).await?, 200, |number| format!("some/{number}")).await?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let permits = client.semaphore("gate", 2)?.acquire(1).await?;
    let before = counts(&proxy);
    let found = soon("the list", client.list()).await??;
    let spent = since(&before, &proxy);
    ensure!(found.failures.is_empty() && found.locks.len() == 201, "{found:?}");
    let as_written = found.locks.iter().filter(|lock| lock.name.as_str().starts_with("some/")).count();
    ensure!(as_written == 200, "{found:?}");
    // 201 names are 402 locks and semaphores, 128 of them at once.
    ensure!(spent[2] == 1 && spent[5] == 8 && spent[7] == 1, "{KINDS:?} {spent:?}");
    drop((permits, guards));
    Ok(())
}

/// It keeps its session alive, and does no more.
async fn an_idle_client_costs_a_few_signs_of_life() -> Outcome {
    const SIGNS: u64 = 4;
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    let other = stage.client(LONG).await?;
    stage.works(&client).await?;
    let (before, mut seconds) = (counts(&proxy), 0);
    while since(&before, &proxy).iter().sum::<u64>() < SIGNS {
        time.advance(Duration::from_secs(1));
        seconds += 1;
        // What is due by then is sent before this.
        other.ping().await?;
    }
    // At most one in a sixth of the session; the first may follow what was asked for before.
    ensure!(seconds >= (SIGNS - 1) * 10, "{SIGNS} in {seconds} seconds");
    ensure!(proxy.requests(ZooKeeperRequest::Connect) == 1, "it has connected again");
    stage.works_as_time_passes(&client, &time).await
}
