//! Cases: what the server remembers beyond a hold: slots that have run, and pauses after a hold.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, LockError, LockOptions};

use super::cancellation::drop_at_every_poll;
use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::ByHand;
use crate::stage::Stage;

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(50);

cases!("once":
    a_slot_runs_once_among_clients [Need::Remembering],
    slots_do_not_run_at_the_same_time [Need::Remembering],
    a_slot_that_failed_has_run [Need::Remembering],
    a_slot_whose_hold_is_deleted_stops_and_does_not_run_again [
        Need::Remembering,
        Need::Ability(Ability::Removal(Removal::Deletion))
    ],
    a_call_that_is_dropped_at_any_poll_leaves_the_lock_free [Need::Remembering],
    a_released_lock_stays_taken_for_its_pause [Need::Remembering],
    a_wait_gets_the_lock_after_the_pause [Need::Remembering],
    a_pause_binds_only_those_who_keep_it [Need::Remembering],
    an_acquisition_with_a_pause_that_is_dropped_at_any_poll_leaves_the_lock_free [Need::Remembering],
    a_wait_for_the_end_of_a_pause_that_is_dropped_leaves_the_lock_free [Need::Remembering],
    what_cannot_be_remembered_is_refused,
    a_slot_may_be_kept_for_ever [Need::Remembering],
    a_slot_without_sense_is_refused [Need::Remembering],
);

async fn a_slot_runs_once_among_clients(stage: &Stage) -> Outcome {
    let clients = [stage.client().await?, stage.client().await?, stage.client().await?];
    let runs = AtomicU32::new(0);
    for slot in ["12:07", "12:08"] {
        let run = async |client: &lock_core::LockClient| {
            let work = client.once("poll", slot)?.keep(HOUR);
            work.run(async |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, LockError>(())
            })
            .await
        };
        let [one, two, three] = &clients;
        let (one, two, three) = tokio::join!(run(one), run(two), run(three));
        let ran = [one?, two?, three?].into_iter().flatten().count();
        ensure!(ran == 1, "{ran} of three clients ran slot {slot}");
    }
    let runs = runs.into_inner();
    ensure!(runs == 2, "two slots ran {runs} times");
    Ok(())
}

async fn slots_do_not_run_at_the_same_time(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let first = ours.once("poll", "1")?;
    let running = first.run(async |_| {
        let second = theirs.once("poll", "2")?;
        let run = |wait| second.run_within(wait, async |_| Ok::<_, LockError>(()));
        let kind = refused_in_time(SHORT, run).await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Busy), "a slot beside another one ended with {kind:?}");
        Ok::<_, Failure>(())
    });
    ensure!(running.await?.is_some(), "a new slot did not run");
    let ran = theirs.once("poll", "2")?.run(async |_| Ok::<_, LockError>(())).await?;
    ensure!(ran.is_some(), "a slot that was only waited for has not run");
    Ok(())
}

async fn a_slot_that_failed_has_run(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let failed = ours.once("poll", "1")?.run(async |_| Err::<(), _>(Failure::new("on purpose"))).await;
    ensure!(failed == Err(Failure::new("on purpose")), "the failure of the work became {failed:?}");
    let again = theirs.once("poll", "1")?.run(async |_| Ok::<_, LockError>(())).await?;
    ensure!(again.is_none(), "a slot ran again after it had failed");
    Ok(())
}

async fn a_slot_whose_hold_is_deleted_stops_and_does_not_run_again(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let work = ours.once("poll", "1")?;
    let running = work.run(async |_| {
        stage.harness().take_away(work.name(), Removal::Deletion).await?;
        pending::<Outcome>().await
    });
    let outcome = stage.soon("the end of the work", running).await?;
    let text = outcome.err().map(|failure| failure.to_string()).unwrap_or_default();
    ensure!(text.contains("the lock was lost"), "work whose hold was deleted ended with {text:?}");
    stage.becomes_free(&theirs, "poll").await?;
    let again = theirs.once("poll", "1")?.run(async |_| Ok::<_, LockError>(())).await?;
    ensure!(again.is_none(), "a slot ran again after it was lost");
    Ok(())
}

async fn a_call_that_is_dropped_at_any_poll_leaves_the_lock_free(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let slots = AtomicU32::new(0);
    let make = || async {
        let work = ours.once("poll", format!("slot {}", slots.fetch_add(1, Ordering::SeqCst)))?;
        let body = async |_| {
            tokio::task::yield_now().await;
            Ok::<_, Failure>(())
        };
        let ran = work.run(body).await?;
        ensure!(ran.is_some(), "a new slot did not run");
        Ok(())
    };
    drop_at_every_poll(stage, make, |_| async {
        stage.soon("the undoing", ours.idle()).await?;
        stage.becomes_free(&theirs, "poll").await
    })
    .await
}

fn paused(pause: Duration) -> LockOptions {
    LockOptions::new().at_least(pause)
}

async fn a_released_lock_stays_taken_for_its_pause(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    ours.mutex_with("nightly", paused(HOUR))?.acquire().await?.release().await?;
    for (client, other) in [(&theirs, &ours), (&ours, &theirs)] {
        let again = client.mutex_with("nightly", paused(HOUR))?;
        for _ in 0..2 {
            ensure!(again.try_acquire().await?.is_none(), "the lock was granted in its pause");
            stage.soon("the undoing", client.idle()).await?;
            let Some(guard) = other.mutex("nightly")?.try_acquire().await? else {
                return Err(Failure::new("an attempt that was refused in the pause has the lock"));
            };
            guard.release().await?;
        }
        let refused = refused_in_time(SHORT, |wait| again.acquire_for(wait)).await;
        let kind = refused.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Busy), "a wait in the pause ended with {kind:?}");
        stage.soon("the undoing", client.idle()).await?;
    }
    stage.becomes_free(&theirs, "nightly").await
}

async fn a_wait_gets_the_lock_after_the_pause(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let pause = Duration::from_secs(2);
    let clock = ours.mutex("nightly")?.clock().clone();
    let asked = clock.now();
    ours.mutex_with("nightly", paused(pause))?.acquire().await?.release().await?;
    let again = theirs.mutex_with("nightly", paused(HOUR))?;
    let guard = stage.soon("the lock after its pause", again.acquire()).await??;
    let took = clock.now().since(asked);
    ensure!(took >= pause, "granted {took:?} after the first request");
    Ok(guard.release().await?)
}

async fn a_pause_binds_only_those_who_keep_it(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    ours.mutex_with("nightly", paused(HOUR))?.acquire().await?.release().await?;
    for client in [&theirs, &ours] {
        let guard = client.mutex("nightly")?.try_acquire().await?;
        let Some(guard) = guard else { return Err(Failure::new("a pause binds a lock without one")) };
        guard.release().await?;
    }
    Ok(())
}

/// Each time another lock, because the server may remember the pause of a call that was dropped.
async fn an_acquisition_with_a_pause_that_is_dropped_at_any_poll_leaves_the_lock_free(
    stage: &Stage,
) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let calls = AtomicU32::new(0);
    let name = || format!("nightly {}", calls.load(Ordering::SeqCst));
    let make = || async {
        let guard = ours.mutex_with(name(), paused(HOUR))?.acquire().await?;
        Ok(guard.release().await?)
    };
    drop_at_every_poll(stage, make, |_| async {
        stage.soon("the undoing", ours.idle()).await?;
        stage.becomes_free(&theirs, &name()).await?;
        calls.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
    .await
}

async fn a_wait_for_the_end_of_a_pause_that_is_dropped_leaves_the_lock_free(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    theirs.mutex_with("nightly", paused(HOUR))?.acquire().await?.release().await?;
    let lock = ours.mutex_with("nightly", paused(HOUR))?;
    for polls in 0..5 {
        let mut waiting = ByHand::new(lock.acquire());
        // The pause does not end, so the last polls may never come.
        let polled = tokio::time::timeout(Duration::from_millis(100), waiting.poll_times(polls)).await;
        ensure!(!matches!(polled, Ok(Some(_))), "granted in the pause");
        drop(waiting);
        stage.soon("the undoing", ours.idle()).await?;
        stage.becomes_free(&theirs, "nightly").await?;
    }
    Ok(())
}

async fn what_cannot_be_remembered_is_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let can = client.capabilities().remembering;
    let once = client.once("poll", "1").map(drop).map_err(|error| error.kind());
    let pause = client.mutex_with("nightly", paused(HOUR)).map(drop).map_err(|error| error.kind());
    let expected = if can { Ok(()) } else { Err(ErrorKind::Unsupported) };
    ensure!(once == expected && pause == expected, "once ended with {once:?}, a pause with {pause:?}");
    Ok(())
}

async fn a_slot_may_be_kept_for_ever(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let run =
        async || client.once("migration", "7")?.keep(Duration::MAX).run(async |_| Ok::<_, Failure>(())).await;
    let (ran, again) = (run().await?, run().await?);
    ensure!(ran.is_some() && again.is_none(), "it ran {ran:?}, and then {again:?}");
    let lock = client.mutex_with("nightly", paused(Duration::MAX))?;
    lock.acquire().await?.release().await?;
    ensure!(lock.try_acquire().await?.is_none(), "the lock was granted in its pause");
    Ok(())
}

async fn a_slot_without_sense_is_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    for slot in [String::new(), "x".repeat(201)] {
        let kind = client.once("poll", slot).map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::InvalidOption), "it ended with {kind:?}");
    }
    let runs = client.once("poll", "1")?.keep(Duration::ZERO).run(async |_| Ok::<_, LockError>(())).await;
    let kind = runs.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::InvalidOption), "a slot that is kept for no time ended with {kind:?}");
    Ok(())
}
