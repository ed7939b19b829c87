//! Many waiters and many holds of one client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use conformance_tests::servers::Direction;
use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLockExt, LockClient, LockError, LockGuard, Operation};

use crate::case::{cases, ensure};
use crate::diary::{Diary, Event};
use crate::stage::{LONG, ROOM, Stage, Waiter, key, soon, until};

cases!("crowds":
    a_client_that_asks_without_end_keeps_its_hold_and_its_connection,
    a_bounded_number_of_requests_is_under_way,
    thousands_of_holds_are_renewed_over_a_long_way,
    a_thousand_wait_on_one_connection,
    two_thousand_holds_are_renewed_together,
    hundreds_who_are_dead_hold_nobody_up,
);

const WAITERS: u64 = 1000;
const HOLDS: u64 = 2000;

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

/// Asks for locks that another client holds, in as many tasks as there are locks, until that is over.
struct Crowd {
    is_over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<Result<(), LockError>>>,
}

impl Crowd {
    fn of(client: &LockClient, count: usize) -> Outcome<Self> {
        let (is_over, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let mut tasks = Vec::with_capacity(count);
        for number in 0..count {
            let lock = client.lock(format!("room {number}"))?;
            let (is_over, answers) = (Arc::clone(&is_over), Arc::clone(&answers));
            tasks.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    drop(lock.try_acquire().await?);
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }));
        }
        Ok(Self { is_over, answers, tasks })
    }

    /// How many answers all of them together were given; an error that any of them was given.
    async fn disperses(self) -> Outcome<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            soon("the last answer", task).await???;
        }
        Ok(self.answers.load(Ordering::Relaxed))
    }
}

/// What it asks for stands in a line, and renewals go past the line.
async fn a_client_that_asks_without_end_keeps_its_hold_and_its_connection() -> Outcome {
    let stage = Stage::new().await?;
    let (theirs, ours) = (stage.client(LONG).await?, stage.client("lease=10s&timeout=500ms").await?);
    let held = hold(&theirs, 8000).await?;
    let lock = ours.lock(ROOM)?;
    let diary = Diary::of(&lock);
    let guard = lock.acquire().await?;
    let connections = stage.connections().await?;
    let crowd = Crowd::of(&ours, held.len())?;
    tokio::time::sleep(Duration::from_secs(11)).await;
    let answers = crowd.disperses().await?;
    ensure!(guard.hold().is_valid() && diary.aborts() == 0, "lost: {:?}", diary.events());
    ensure!(!diary.events().contains(&Event::Suspect), "{:?}", diary.events());
    ensure!(stage.connections().await? == connections, "another connection was made");
    ensure!(answers >= 8000, "only {answers} answers");
    Ok(guard.release().await?)
}

/// However many are asked at the same time. As soon as there are answers, others go out.
async fn a_bounded_number_of_requests_is_under_way() -> Outcome {
    const MOST: u64 = 256;
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let ours = stage.client_at(proxy.address(), "lease=5m&timeout=50s").await?;
    proxy.blackhole(Direction::ToClient);
    let acquiring = hold(&ours, 2000);
    let watching = async {
        until("as many are under way as may be", || async { Ok(proxy.requests(Operation::Acquire) >= MOST) })
            .await?;
        // Whatever else is sent is there before a command that another connection sends after it.
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
    let client = stage.client_at(proxy.address(), "lease=10s").await?;
    let held = hold(&client, 3500).await?;
    proxy.delay(Direction::ToServer, Duration::from_millis(200));
    proxy.delay(Direction::ToClient, Duration::from_millis(200));
    tokio::time::sleep(Duration::from_secs(12)).await;
    let lost = held.iter().filter(|guard| !guard.hold().is_valid()).count();
    ensure!(lost == 0, "{lost} of {} are lost", held.len());
    proxy.heal();
    for guard in held {
        drop(guard);
    }
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
