//! Cases: futures are dropped at every poll, and nothing stays held, queued or leaked.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{During, Failure, Outcome, ensure};
use lock_core::{DistributedLock, Leadership, LockClient, LockGuard, Operation};

use super::election::value;
use crate::case::{Need, cases};
use crate::harness::{Ability, Silence};
use crate::probe::ByHand;
use crate::stage::{Stage, let_run};

cases!("cancellation":
    lock_dropped_at_every_poll,
    try_lock_for_dropped_at_every_poll,
    acquire_dropped_at_every_poll,
    unlock_dropped_at_every_poll,
    release_dropped_at_every_poll,
    lock_dropped_at_every_poll_while_another_holds,
    try_lock_for_dropped_at_every_poll_while_another_holds,
    acquire_dropped_at_every_poll_while_another_holds,
    with_lock_dropped_at_every_poll,
    with_lock_dropped_at_every_poll_while_another_holds,
    campaign_dropped_at_every_poll,
    campaign_dropped_at_every_poll_while_another_leads,
    proclaim_dropped_at_every_poll [Need::Values],
    resign_dropped_at_every_poll,
    run_dropped_at_every_poll,
    acquire_dropped_at_any_moment,
    acquire_dropped_at_the_moment_of_the_grant,
    acquire_dropped_while_its_reply_is_on_its_way [Need::Ability(Ability::SlowReplies)],
    acquire_dropped_while_its_grant_is_on_its_way [Need::Ability(Ability::Silence), Need::Order],
    many_waits_dropped_at_once,
    a_grant_without_a_waiter_goes_back,
    waits_cancelled_in_the_middle_of_contention,
    a_task_aborted_while_it_waits,
);

/// No operation needs as many polls as this.
const TOO_MANY: usize = 1000;

const LONG: Duration = Duration::from_secs(3600);

type Lock = Arc<dyn DistributedLock>;

/// Creates a future with `make`, polls it once and drops it; then the same with two polls, and so on until it
/// completes. After each, `check` inspects the lock.
pub(super) async fn drop_at_every_poll<T, F, C>(
    stage: &Stage,
    mut make: impl FnMut() -> F,
    check: impl FnMut(Option<T>) -> C,
) -> Outcome
where
    F: Future<Output = Outcome<T>>,
    C: Future<Output = Outcome>,
{
    drop_prepared_at_every_poll(stage, || async { Ok(()) }, |()| make(), check).await
}

/// Like `drop_at_every_poll`, for futures that are made of what `prepare` returns each time.
pub(super) async fn drop_prepared_at_every_poll<P, T, G, F, C>(
    stage: &Stage,
    mut prepare: impl FnMut() -> G,
    mut make: impl FnMut(P) -> F,
    mut check: impl FnMut(Option<T>) -> C,
) -> Outcome
where
    G: Future<Output = Outcome<P>>,
    F: Future<Output = Outcome<T>>,
    C: Future<Output = Outcome>,
{
    for polls in 0..TOO_MANY {
        let mut by_hand = ByHand::new(make(prepare().await?));
        let output = stage.soon("the next poll", by_hand.poll_times(polls)).await?;
        let output = output.transpose().during(format_args!("after {polls} polls"))?;
        drop(by_hand);
        let is_complete = output.is_some();
        check(output).await.during(format_args!("dropped after {polls} polls"))?;
        if is_complete {
            return Ok(());
        }
    }
    Err(Failure::new(format!("not complete after {TOO_MANY} polls")))
}

struct Pair {
    ours: LockClient,
    theirs: LockClient,
    lock: Lock,
}

impl Pair {
    async fn new(stage: &Stage) -> Outcome<Self> {
        let (ours, theirs) = (stage.client().await?, stage.client().await?);
        let lock = ours.mutex("room")?;
        Ok(Self { ours, theirs, lock })
    }

    /// Unlocks if the future acquired the lock. When the client is idle, nothing is left.
    async fn settle(&self, stage: &Stage, is_locked: bool) -> Outcome {
        if is_locked {
            self.lock.unlock().await?;
        }
        stage.soon("the undoing", self.ours.idle()).await?;
        ensure!(!self.lock.is_locked(), "the client says that it is locked");
        stage.is_free(&self.theirs, "room").await
    }
}

async fn lock_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let make = || async { Ok(pair.lock.lock().await?) };
    drop_at_every_poll(stage, make, |output: Option<()>| pair.settle(stage, output.is_some())).await
}

async fn try_lock_for_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let make = || async { Ok(pair.lock.try_lock_for(LONG).await?) };
    drop_at_every_poll(stage, make, |output| pair.settle(stage, output == Some(true))).await
}

async fn acquire_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let make = || async { Ok(pair.lock.acquire().await?) };
    drop_at_every_poll(stage, make, |guard| {
        drop(guard);
        pair.settle(stage, false)
    })
    .await
}

/// Without a poll, `unlock` changes nothing; from its first poll on it is carried out.
async fn unlock_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let pair = &pair;
    for polls in 0..TOO_MANY {
        pair.lock.lock().await?;
        let mut by_hand = ByHand::new(pair.lock.unlock());
        let output = stage.soon("the next poll", by_hand.poll_times(polls)).await?;
        drop(by_hand);
        if polls == 0 {
            ensure!(pair.lock.is_held(), "an unlock that was not polled has released the lock");
            stage.is_held(&pair.theirs, "room").await?;
            pair.lock.unlock().await?;
        }
        ensure!(!pair.lock.is_held(), "held after {polls} polls of unlock");
        pair.settle(stage, false).await.during(format_args!("dropped after {polls} polls"))?;
        if let Some(output) = output {
            return Ok(output?);
        }
    }
    Err(Failure::new(format!("not complete after {TOO_MANY} polls")))
}

async fn release_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let acquire = || async { Ok(pair.lock.acquire().await?) };
    let release = |guard: LockGuard| async { Ok(guard.release().await?) };
    drop_prepared_at_every_poll(stage, acquire, release, |_| pair.settle(stage, false)).await
}

/// Polls a future that waits behind another client's hold, more often than it asks for, and drops it.
async fn drop_while_another_holds<T, F: Future<Output = Outcome<T>>>(
    stage: &Stage,
    pair: &Pair,
    mut make: impl FnMut() -> F,
) -> Outcome {
    for polls in 0..5 {
        let held = pair.theirs.mutex("room")?.acquire().await?;
        let mut waiter = ByHand::new(make());
        for _ in 0..polls {
            ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        }
        if polls > 1 {
            stage.queued(&pair.theirs, "room", 1).await?;
        }
        drop(waiter);
        stage.queued(&pair.theirs, "room", 0).await.during("after a wait was dropped")?;
        ensure!(held.hold().is_valid(), "a wait that was dropped ended another's hold");
        held.release().await?;
        pair.settle(stage, false).await.during(format_args!("dropped after {polls} polls"))?;
    }
    Ok(())
}

async fn lock_dropped_at_every_poll_while_another_holds(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    drop_while_another_holds(stage, &pair, || async { Ok(pair.lock.lock().await?) }).await
}

async fn try_lock_for_dropped_at_every_poll_while_another_holds(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    drop_while_another_holds(stage, &pair, || async { Ok(pair.lock.try_lock_for(LONG).await?) }).await
}

async fn acquire_dropped_at_every_poll_while_another_holds(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    drop_while_another_holds(stage, &pair, || async { Ok(pair.lock.acquire().await?) }).await
}

/// The drops fall into the acquisition, the body and the release.
async fn with_lock_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let body = async |_| {
        tokio::task::yield_now().await;
        Ok::<_, Failure>(())
    };
    let make = || pair.lock.with_lock(body);
    drop_at_every_poll(stage, make, |_| pair.settle(stage, false)).await
}

async fn with_lock_dropped_at_every_poll_while_another_holds(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let body = async |_| Ok::<_, Failure>(());
    drop_while_another_holds(stage, &pair, || pair.lock.with_lock(body)).await
}

async fn campaign_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let election = pair.ours.election("room")?;
    let make = || async { Ok(election.campaign(value(&pair.ours, "a")).await?) };
    drop_at_every_poll(stage, make, |leadership| {
        drop(leadership);
        pair.settle(stage, false)
    })
    .await
}

async fn campaign_dropped_at_every_poll_while_another_leads(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let election = pair.ours.election("room")?;
    let make = || async { Ok(election.campaign(value(&pair.ours, "a")).await?) };
    drop_while_another_holds(stage, &pair, make).await
}

/// The leader stays, and the change that was dropped does not come after a later one.
async fn proclaim_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let leadership = pair.ours.election("room")?.campaign("a").await?;
    let make = || async { Ok(leadership.proclaim("b").await?) };
    drop_at_every_poll(stage, make, |_| async {
        leadership.proclaim("c").await?;
        pair.ours.idle().await;
        let shown = stage.holder(&pair.theirs, "room").await?.value;
        ensure!(shown.as_deref() == Some("c"), "shown as {shown:?}");
        ensure!(leadership.is_leading(), "lost: {:?}", leadership.hold().end());
        Ok(())
    })
    .await?;
    leadership.resign().await?;
    pair.settle(stage, false).await
}

async fn resign_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let election = pair.ours.election("room")?;
    let campaign = || async { Ok(election.campaign(value(&pair.ours, "a")).await?) };
    let resign = |leadership: Leadership| async { Ok(leadership.resign().await?) };
    drop_prepared_at_every_poll(stage, campaign, resign, |_| pair.settle(stage, false)).await
}

/// The drops fall into the campaign, the body and the resignation.
async fn run_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let election = pair.ours.election("room")?.with_value(value(&pair.ours, "a"));
    let make = || async { Ok(election.run(async |_| tokio::task::yield_now().await).await?) };
    drop_at_every_poll(stage, make, |_| pair.settle(stage, false)).await
}

/// Polls the future once, and drops it after `time`: what it has begun goes on meanwhile. The thread does not sleep, because
/// the time is shorter than the shortest sleep.
fn drop_after<F: Future>(future: F, time: Duration) -> Option<F::Output> {
    let mut future = ByHand::new(future);
    let began = Instant::now();
    let output = future.poll();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
    output
}

/// From before the request is sent until after the reply is read, for a free lock and for one that is held.
async fn acquire_dropped_at_any_moment(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let rounds = stage.rounds(150);
    for round in 0..rounds {
        let held = match round % 2 {
            0 => None,
            _ => Some(pair.theirs.mutex("room")?.acquire().await?),
        };
        let time = Duration::from_millis(3) * round / rounds;
        drop(drop_after(pair.lock.acquire(), time));
        if let Some(held) = held {
            held.release().await?;
        }
        pair.settle(stage, false).await.during(format_args!("dropped after {time:?}"))?;
    }
    Ok(())
}

/// The holder releases and the waiter leaves at about the same moment. A cancelled wait may have got the lock all the same.
async fn acquire_dropped_at_the_moment_of_the_grant(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let rounds = stage.rounds(500);
    for round in 0..rounds {
        let held = pair.theirs.mutex("room")?.acquire().await?;
        let mut waiter = ByHand::new(pair.lock.acquire());
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&pair.theirs, "room", 1).await?;
        if round % 2 == 0 {
            drop(waiter);
            held.release().await?;
        } else {
            let releasing = tokio::spawn(held.release());
            let _ = drop_after(std::future::pending::<()>(), Duration::from_millis(1) * round / rounds);
            drop(waiter);
            stage.soon("the release", releasing).await???;
        }
        pair.settle(stage, false).await.during(format_args!("round {round}"))?;
    }
    Ok(())
}

async fn acquire_dropped_while_its_reply_is_on_its_way(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    for _ in 0..3 {
        stage.harness().hold_reply(Operation::Acquire).await?;
        let mut acquiring = ByHand::new(pair.lock.acquire());
        ensure!(acquiring.poll().is_none(), "granted without a reply");
        stage.soon("the reply", stage.harness().reply_is_held()).await??;
        drop(acquiring);
        stage.harness().let_replies_go().await?;
        pair.settle(stage, false).await?;
    }
    Ok(())
}

/// The server has granted the lock to a waiter that is about to be dropped, and whose lease outlasts the case.
async fn acquire_dropped_while_its_grant_is_on_its_way(stage: &Stage) -> Outcome {
    let ((ours, time), holder, theirs) =
        (stage.frozen().await?, stage.bystander().await?, stage.bystander().await?);
    let_run(&time, 1);
    let held = holder.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let mut dropped = ByHand::new(lock.acquire());
    ensure!(dropped.poll().is_none(), "a lock that is held was granted");
    stage.queued(&holder, "room", 1).await?;
    let next = theirs.mutex("room")?;
    let next = tokio::spawn(async move { next.acquire().await });
    stage.queued(&holder, "room", 2).await?;
    stage.harness().silence(Silence::Replies).await?;
    held.release().await?;
    stage.queued(&holder, "room", 1).await?;
    ensure!(!next.is_finished(), "the second waiter was served first");
    drop(dropped);
    stage.harness().heal().await?;
    stage.soon("the next one's turn", next).await???.release().await?;
    stage.soon("the undoing", ours.idle()).await?;
    stage.is_free(&holder, "room").await
}

async fn many_waits_dropped_at_once(stage: &Stage) -> Outcome {
    // Where each looks again and again, fifty keep a busy machine from all else.
    let many = stage.harness().rounds(80).min(50);
    let pair = Pair::new(stage).await?;
    let (mut held, mut waiting) = (Vec::new(), Vec::new());
    for number in 0..many {
        let name = format!("room {number}");
        held.push(pair.theirs.mutex(&name)?.acquire().await?);
        let lock = pair.ours.mutex(&name)?;
        waiting.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    stage.queued(&pair.theirs, "room 0", 1).await?;
    for waiter in &waiting {
        waiter.abort();
    }
    for waiter in waiting {
        ensure!(waiter.await.is_err(), "a lock that is held was granted");
    }
    stage.soon("the undoing", pair.ours.idle()).await?;
    for (number, guard) in held.into_iter().enumerate() {
        let name = format!("room {number}");
        let waiting = stage.waiting(&pair.theirs, &name).await?;
        ensure!(waiting == 0 && guard.hold().is_valid(), "{waiting} wait for {name}");
        guard.release().await?;
    }
    Ok(())
}

/// The wait is over and the lock granted, but the future is dropped before it could return.
async fn a_grant_without_a_waiter_goes_back(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    for _ in 0..20 {
        let held = pair.theirs.mutex("room")?.acquire().await?;
        let mut waiter = ByHand::new(pair.lock.acquire());
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&pair.theirs, "room", 1).await?;
        held.release().await?;
        stage.soon("the grant", waiter.wants_poll()).await?;
        drop(waiter);
        pair.settle(stage, false).await?;
    }
    Ok(())
}

/// Waits that end at arbitrary moments, while two others hand the lock back and forth.
async fn waits_cancelled_in_the_middle_of_contention(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let mut workers = stage.workers(2).await?;
    for worker in &mut workers {
        worker.cycle("room", None, stage.rounds(200))?;
    }
    for round in 0..200_u64 {
        let patience = Duration::from_micros(round * 37 % 2000);
        if let Ok(guard) = tokio::time::timeout(patience, pair.lock.acquire()).await {
            guard?.release().await?;
        }
    }
    let visits = super::exclusion::histories(&mut workers).await?;
    super::exclusion::check_history("room", &visits, stage)?;
    super::exclusion::quit(workers).await?;
    pair.settle(stage, false).await
}

async fn a_task_aborted_while_it_waits(stage: &Stage) -> Outcome {
    let pair = Pair::new(stage).await?;
    let held = pair.theirs.mutex("room")?.acquire().await?;
    let lock = Arc::clone(&pair.lock);
    let task = tokio::spawn(async move { lock.acquire().await });
    stage.queued(&pair.theirs, "room", 1).await?;
    task.abort();
    stage.queued(&pair.theirs, "room", 0).await?;
    held.release().await?;
    pair.settle(stage, false).await
}
