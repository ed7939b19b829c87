//! Cases: waits end on time, and their results are true.

use std::sync::Arc;
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{DistributedLock, ErrorKind, LockClient, LockError};
use tokio::time::Instant;

use crate::case::{Need, cases};
use crate::probe::ByHand;
use crate::stage::Stage;

cases!("waiting":
    a_wait_of_zero_tries_once,
    the_longest_wait_ends_with_the_grant,
    a_wait_that_ends_before_the_grant_is_refused,
    a_wait_that_ends_after_the_grant_is_granted,
    a_wait_that_ends_with_the_grant_is_decided_once,
    one_deadline_covers_the_local_and_the_remote_wait [Need::Order],
    a_short_wait_behind_a_long_one_ends_in_time,
);

/// How long before or after a grant a wait ends.
const APART: Duration = Duration::from_millis(50);

/// How late a wait may end. A busy machine may exceed that now and then, but not each time.
const GENEROUS: Duration = Duration::from_secs(5);

/// How often a step is tried that a busy machine may delay too much.
const TIMES: u32 = 4;

/// By how much a wait becomes longer when the server was too busy to say anything before the end of the last one.
const LONGER: u32 = 5;

/// Makes a wait that ends without the lock; returns its answer. As long as the server is too busy to say anything before the
/// end, the next wait is longer.
pub(super) async fn refused_in_time<T, F>(
    shortest: Duration,
    make: impl Fn(Duration) -> F,
) -> Result<T, LockError>
where
    F: Future<Output = Result<T, LockError>>,
{
    let mut wait = shortest;
    for _ in 1..TIMES {
        match make(wait).await {
            Err(error) if error.kind() == ErrorKind::Unreachable => wait *= LONGER,
            answer => return answer,
        }
    }
    make(wait).await
}

async fn a_wait_of_zero_tries_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = theirs.mutex("door")?;
    let held = ours.mutex("door")?.acquire().await?;
    let mut shortest = Duration::MAX;
    for _ in 0..TIMES {
        let began = Instant::now();
        ensure!(!lock.try_lock_for(Duration::ZERO).await?, "a lock that is held was granted");
        ensure!(lock.try_acquire_for(Duration::ZERO).await?.is_none(), "a lock that is held was granted");
        shortest = shortest.min(began.elapsed());
    }
    ensure!(shortest < GENEROUS, "trying twice took {shortest:?}, and longer the other times");
    held.release().await?;
    ensure!(lock.try_lock_for(Duration::ZERO).await?, "a free lock was refused");
    Ok(lock.unlock().await?)
}

async fn the_longest_wait_ends_with_the_grant(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = theirs.mutex("door")?;
    ensure!(lock.try_lock_for(Duration::MAX).await?, "a free lock was refused");
    lock.unlock().await?;
    let held = ours.mutex("door")?.acquire().await?;
    let mut waiter = ByHand::new(lock.try_acquire_for(Duration::MAX));
    ensure!(waiter.poll().is_none(), "a lock that is held was answered for at once");
    stage.queued(&ours, "door", 1).await?;
    held.release().await?;
    stage.soon("the grant", waiter.wants_poll()).await?;
    let granted = waiter.poll().ok_or_else(|| Failure::new("woken and not answered"))??;
    let granted = granted.ok_or_else(|| Failure::new("a wait without an end was refused"))?;
    Ok(granted.release().await?)
}

/// The result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    Granted,
    /// The wait took this long.
    Refused(Duration),
    /// The server said nothing before the end: it was too busy.
    Unknown,
}

/// Waits for `wait`, and checks that the result is true at the server.
async fn decided(
    stage: &Stage,
    waiter: &LockClient,
    observer: &LockClient,
    wait: Duration,
) -> Outcome<Decision> {
    let began = Instant::now();
    let answer = stage.soon("an answer", waiter.mutex("door")?.try_acquire_for(wait)).await?;
    let took = began.elapsed();
    let guard = match answer {
        Err(error) if error.kind() == ErrorKind::Unreachable => return Ok(Decision::Unknown),
        answer => answer?,
    };
    let Some(guard) = guard else {
        ensure!(took >= wait, "a wait of {wait:?} was refused after {took:?}");
        return Ok(Decision::Refused(took));
    };
    ensure!(guard.hold().is_valid(), "granted, and not held: {:?}", guard.hold().end());
    stage.is_held(observer, "door").await?;
    guard.release().await?;
    Ok(Decision::Granted)
}

/// How late waits ended that were refused.
struct Delays {
    wait: Duration,
    shortest: Option<Duration>,
}

impl Delays {
    fn of_waits_of(wait: Duration) -> Self {
        Self { wait, shortest: None }
    }

    fn add(&mut self, decision: Decision) -> Outcome {
        match decision {
            Decision::Granted => return Err(Failure::new("a lock that is held was granted")),
            Decision::Refused(took) => {
                let late = took.saturating_sub(self.wait);
                self.shortest = Some(self.shortest.map_or(late, |shortest| shortest.min(late)));
            }
            Decision::Unknown => self.wait *= LONGER,
        }
        Ok(())
    }

    fn check(&self) -> Outcome {
        let shortest = self.shortest.ok_or_else(|| Failure::new("the server was too busy for every wait"))?;
        ensure!(shortest < GENEROUS, "a wait ended {shortest:?} late, and later the other times");
        Ok(())
    }
}

async fn a_wait_that_ends_before_the_grant_is_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let mut delays = Delays::of_waits_of(Duration::from_millis(150));
    for _ in 0..TIMES {
        let held = ours.mutex("door")?.acquire().await?;
        delays.add(decided(stage, &theirs, &ours, delays.wait).await?)?;
        tokio::time::sleep(APART).await;
        held.release().await?;
        // A grant that comes late goes back.
        stage.becomes_free(&ours, "door").await?;
    }
    delays.check()
}

/// Three clients: one holds and releases, one waits, one observes.
struct Three {
    holder: LockClient,
    waiter: LockClient,
    observer: LockClient,
}

impl Three {
    async fn new(stage: &Stage) -> Outcome<Self> {
        let (holder, waiter) = (stage.client().await?, stage.client().await?);
        Ok(Self { holder, waiter, observer: stage.client().await? })
    }

    /// Runs a wait that ends at `end` after the release, which comes at `before`.
    async fn released_before_the_end(
        &self,
        stage: &Stage,
        before: Duration,
        end: Duration,
    ) -> Outcome<Decision> {
        let held = self.holder.mutex("door")?.acquire().await?;
        let release = async {
            tokio::time::sleep(before).await;
            held.release().await
        };
        let wait = decided(stage, &self.waiter, &self.observer, before + end);
        let (released, decision) = tokio::join!(release, wait);
        released?;
        stage.becomes_free(&self.observer, "door").await?;
        decision
    }
}

/// When the lock is released in most waits.
const BEFORE: Duration = Duration::from_millis(150);

/// The release is early enough on an idle machine, and earlier after each try in which this machine was late.
async fn a_wait_that_ends_after_the_grant_is_granted(stage: &Stage) -> Outcome {
    let clients = Three::new(stage).await?;
    for times in 0..TIMES {
        let end = APART * LONGER.pow(times);
        if clients.released_before_the_end(stage, BEFORE, end).await? == Decision::Granted {
            return Ok(());
        }
    }
    Err(Failure::new(format!(
        "none of {TIMES} waits that ended at least {APART:?} after the release was granted"
    )))
}

/// Either result is allowed, and must be true.
async fn a_wait_that_ends_with_the_grant_is_decided_once(stage: &Stage) -> Outcome {
    let clients = Three::new(stage).await?;
    let (mut before, mut decided, mut unknown) = (BEFORE, 0, 0);
    while decided < 12 {
        let end = Duration::from_millis(decided % 3);
        if clients.released_before_the_end(stage, before, end).await? == Decision::Unknown {
            ensure!(unknown < TIMES, "the server was too busy for waits of {before:?}");
            unknown += 1;
            before *= LONGER;
        } else {
            decided += 1;
        }
    }
    Ok(())
}

/// Half of the time passes behind a task of the same client, the rest behind another client.
async fn one_deadline_covers_the_local_and_the_remote_wait(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let waits = [1, 5, 25].map(Duration::from_secs);
    let mut took = Vec::new();
    for wait in waits {
        // The server may be too busy to say anything before the end.
        let Some(lasted) = behind_both(stage, &ours, &theirs, wait).await? else { continue };
        ensure!(lasted >= wait, "a wait of {wait:?} took {lasted:?}");
        // Two deadlines, one after the other, would take half as long again, whatever the length is. The delay of a
        // busy machine does not grow with the length.
        if lasted < wait + wait * 2 / 5 {
            return Ok(());
        }
        took.push(lasted);
    }
    Err(Failure::new(format!("waits of {waits:?} took {took:?}")))
}

/// Measures a wait that begins behind a task of `ours` and continues behind `theirs`.
async fn behind_both(
    stage: &Stage,
    ours: &LockClient,
    theirs: &LockClient,
    wait: Duration,
) -> Outcome<Option<Duration>> {
    let lock = ours.mutex("door")?;
    let their_lock = theirs.mutex("door")?;
    let held = lock.acquire().await?;
    let mut stranger = ByHand::new(their_lock.acquire());
    ensure!(stranger.poll().is_none(), "a lock that is held was granted");
    stage.queued(ours, "door", 1).await?;
    let pass_on = async {
        tokio::time::sleep(wait / 2).await;
        held.release().await?;
        stage.soon("the stranger's turn", stranger.wants_poll()).await?;
        stranger.poll().ok_or_else(|| Failure::new("woken and not served"))?.map_err(Failure::from)
    };
    let began = Instant::now();
    let waiting = async {
        let answer = lock.try_acquire_for(wait).await;
        (answer, began.elapsed())
    };
    let (their_guard, (answer, took)) = tokio::join!(pass_on, waiting);
    their_guard?.release().await?;
    let is_known = match answer {
        Ok(Some(_)) => return Err(Failure::new("a lock that another client holds was granted")),
        Err(error) if error.kind() == ErrorKind::Unreachable => false,
        answer => answer?.is_none(),
    };
    stage.becomes_free(ours, "door").await?;
    Ok(is_known.then_some(took))
}

/// The local queue makes one attempt at the server for all waiters, which must not delay the second waiter beyond its
/// deadline.
async fn a_short_wait_behind_a_long_one_ends_in_time(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("door")?.acquire().await?;
    let lock: Arc<dyn DistributedLock> = ours.mutex("door")?;
    let mut long = ByHand::new(lock.acquire());
    ensure!(long.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "door", 1).await?;
    let mut delays = Delays::of_waits_of(Duration::from_millis(100));
    for _ in 0..TIMES {
        delays.add(decided(stage, &ours, &theirs, delays.wait).await?)?;
    }
    delays.check()?;
    held.release().await?;
    stage.soon("the long wait", long.wants_poll()).await?;
    let granted = long.poll().ok_or_else(|| Failure::new("woken and not served"))??;
    Ok(granted.release().await?)
}
