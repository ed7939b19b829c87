//! Many waiters and many holds of one client.

use std::time::{Duration, Instant};

use conformance_tests::servers::Direction;
use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLockExt, LockClient, LockGuard, Operation};

use crate::case::{cases, ensure};
use crate::diary::{Diary, Event};
use crate::stage::{LONG, ROOM, Stage, Waiter, key, soon, until};

cases!("crowds":
    thousands_of_requests_at_once_break_no_connection,
    a_renewal_goes_past_those_that_wait_for_their_turn,
    a_bounded_number_of_requests_is_under_way,
    thousands_of_holds_are_renewed_over_a_long_way,
    a_thousand_wait_on_one_connection,
    two_thousand_holds_are_renewed_together,
    hundreds_who_are_dead_hold_nobody_up,
);

const WAITERS: u64 = 1000;
const HOLDS: u64 = 2000;

/// How many requests of a client may be under way.
const MOST: u64 = 256;

/// Acquires so many locks at the same time, and does not let any of them go.
async fn hold(client: &LockClient, count: usize) -> Outcome<Vec<LockGuard>> {
    let mut acquiring = Vec::with_capacity(count);
    for number in 0..count {
        let lock = client.lock(format!("room {number}"))?;
        acquiring.push(tokio::spawn(async move { lock.acquire().await }));
    }
    let mut held = Vec::with_capacity(count);
    for acquired in acquiring {
        held.push(soon("the lock", acquired).await???);
    }
    Ok(held)
}

/// The time for which they wait for their turn is not that for which the server says nothing.
async fn thousands_of_requests_at_once_break_no_connection() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=20s&timeout=400ms").await?;
    let lock = client.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    let connections = stage.connections().await?;
    let held = hold(&client, 6000).await?;
    ensure!(stage.connections().await? == connections, "another connection was made");
    drop(held);
    soon("the releases", client.idle()).await?;
    ensure!(stage.connections().await? == connections, "another connection was made");
    guard.release().await?;
    ensure!(!diary.events().contains(&Event::Suspect), "{:?}", diary.events());
    stage.nothing_is_left("after the releases").await
}

/// Each turn takes a second. Behind all of the others it would be too late.
async fn a_renewal_goes_past_those_that_wait_for_their_turn() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=20s").await?;
    let guard = client.lock(ROOM)?.acquire().await?;
    proxy.delay(Direction::ToClient, Duration::from_secs(1));
    let before = proxy.requests(Operation::Acquire);
    let acquiring = hold(&client, 2000);
    let watching = async {
        until("it is renewed", || async { Ok(proxy.requests(Operation::Renew) > 0) }).await?;
        let asked = proxy.requests(Operation::Acquire) - before;
        proxy.heal();
        ensure!(asked < 2000, "it was sent behind all the others");
        Ok(())
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    ensure!(held?.len() == 2000 && guard.hold().is_valid(), "not all are held");
    Ok(())
}

/// However many are asked at the same time. As soon as there are answers, others go out.
async fn a_bounded_number_of_requests_is_under_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ours = stage.client_at(proxy.address(), "lease=5m&timeout=50s").await?;
    proxy.blackhole(Direction::ToClient);
    let acquiring = hold(&ours, 2000);
    let watching = async {
        until("as many are under way as may be", || async { Ok(proxy.requests(Operation::Acquire) >= MOST) })
            .await?;
        // If there were more to come, they would come at once.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let asked = proxy.requests(Operation::Acquire);
        proxy.heal();
        ensure!(asked == MOST, "{asked} requests are under way");
        Ok(())
    };
    let (held, watched) = tokio::join!(acquiring, watching);
    watched?;
    ensure!(held?.len() == 2000, "not all were granted");
    ensure!(stage.connections().await?.len() == 1, "another connection was made");
    Ok(())
}

/// All renewals are sent before the first is answered: a long way is gone once, not once for some of them after the other.
async fn thousands_of_holds_are_renewed_over_a_long_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=20s").await?;
    let held = hold(&client, 2000).await?;
    proxy.delay(Direction::ToServer, Duration::from_millis(700));
    proxy.delay(Direction::ToClient, Duration::from_millis(700));
    tokio::time::sleep(Duration::from_secs(22)).await;
    let lost = held.iter().filter(|guard| !guard.hold().is_valid()).count();
    ensure!(lost == 0, "{lost} of {} are lost", held.len());
    proxy.heal();
    drop(held);
    soon("the releases", client.idle()).await?;
    stage.nothing_is_left("after the releases").await
}

/// Nobody asks again but for the heartbeat, and each is told by a message when its turn has come.
async fn a_thousand_wait_on_one_connection() -> Outcome {
    let interval = 15;
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client("lease=60s").await?, stage.client("lease=60s").await?);
    let began = Instant::now();
    let mut held = Vec::new();
    for number in 0..WAITERS {
        held.push(holder.lock(format!("room {number}"))?.acquire().await?);
    }
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        waiters.push(Waiter::start(client.lock(format!("room {number}"))?));
    }
    until("all of them wait", || async { Ok(stage.calls().await? >= 2 * WAITERS) }).await?;
    until("the last of them waits", || async {
        Ok(stage.number(&["EXISTS", "distlock:{room 999}:q"]).await? == 1)
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
    let beats = began.elapsed().as_secs() / interval + 1;
    let calls = stage.calls().await?;
    // An acquire, a wait and a release each; a renewal or a heartbeat of each in each interval.
    let most = 3 * WAITERS + beats * 2 * WAITERS;
    ensure!(calls <= most, "{calls} calls within {:?}, {most} would do", began.elapsed());
    for guard in granted {
        soon("the release", guard.release()).await??;
    }
    stage.nothing_is_left("after all of them").await
}

/// Not one after the other: the server reads many of them at once.
async fn two_thousand_holds_are_renewed_together() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=8s").await?;
    let mut held = Vec::new();
    for number in 0..HOLDS {
        held.push(soon("the lock", client.lock(format!("room {number}"))?.acquire()).await??);
    }
    // By then they are renewed in the same rhythm.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = (stage.calls().await?, stage.info("stats", "total_reads_processed:").await?);
    until("all of them were renewed twice", || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(stage.calls().await? >= before.0 + 2 * HOLDS)
    })
    .await?;
    let (calls, reads) =
        (stage.calls().await? - before.0, stage.info("stats", "total_reads_processed:").await? - before.1);
    ensure!(reads * 5 < calls, "{calls} renewals in {reads} reads");
    ensure!(held.iter().all(|guard| guard.hold().is_valid()), "some are lost");
    ensure!(stage.connections().await?.len() == 1, "{:?}", stage.connections().await?);
    let releasing = held.into_iter().map(|guard| tokio::spawn(guard.release()));
    for released in releasing.collect::<Vec<_>>() {
        soon("the release", released).await???;
    }
    stage.nothing_is_left("after the releases").await
}

/// More than one call looks at: whoever waits asks again at once, and whoever tries is not told that somebody holds the lock.
async fn hundreds_who_are_dead_hold_nobody_up() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.lock(ROOM)?;
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
