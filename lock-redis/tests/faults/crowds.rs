//! Many waiters and many holds of one client.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::DistributedLockExt;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, key, soon, until};

cases!("crowds":
    a_thousand_wait_on_one_connection,
    two_thousand_holds_are_renewed_together,
    hundreds_who_are_dead_hold_nobody_up,
);

const WAITERS: u64 = 1000;
const HOLDS: u64 = 2000;

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
