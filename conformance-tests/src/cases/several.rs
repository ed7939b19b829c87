//! Cases: several locks at once are held all or none, in one order, and lost together.

use std::sync::Arc;
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, LockClient, LockGuard, MultiLock};

use super::cancellation::{drop_at_every_poll, drop_prepared_at_every_poll};
use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::ByHand;
use crate::stage::Stage;

cases!("several":
    several_locks_are_held_all_or_none,
    what_was_acquired_is_given_back_when_the_time_is_up,
    opposite_orders_do_not_wait_for_each_other,
    the_loss_of_one_is_the_loss_of_all [Need::Ability(Ability::Removal(Removal::Deletion))],
    no_locks_at_all_are_refused,
    each_of_several_locks_has_its_token [Need::Tokens],
    an_acquisition_of_several_that_is_dropped_leaves_nothing,
    several_locks_acquired_and_dropped_at_every_poll,
    several_locks_released_and_dropped_at_every_poll,
);

/// Names that every backend takes as they are, because the harness takes locks away by them.
const BOTH: [&str; 2] = ["account-7", "account-9"];

async fn several_locks_are_held_all_or_none(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let both = ours.mutex_all(BOTH)?;
    let held = theirs.mutex(BOTH[1])?.acquire().await?;
    ensure!(both.try_acquire().await?.is_none(), "acquired although one of them is held");
    stage.becomes_free(&theirs, BOTH[0]).await?;
    held.release().await?;
    let guard = stage.soon("both", both.acquire()).await??;
    for name in BOTH {
        stage.is_held(&theirs, name).await?;
    }
    guard.release().await?;
    for name in BOTH {
        stage.is_free(&theirs, name).await?;
    }
    Ok(())
}

async fn what_was_acquired_is_given_back_when_the_time_is_up(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex(BOTH[1])?.acquire().await?;
    let both = ours.mutex_all(BOTH)?;
    let waits = refused_in_time(Duration::from_millis(300), |wait| both.try_acquire_for(wait));
    let waited = stage.soon("the end of the wait", waits).await?;
    ensure!(matches!(waited, Ok(None)), "the wait ended with {waited:?}");
    stage.becomes_free(&theirs, BOTH[0]).await?;
    Ok(held.release().await?)
}

async fn opposite_orders_do_not_wait_for_each_other(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let times = stage.rounds(30);
    let repeat = |locks: Arc<dyn lock_core::DistributedLock>| async move {
        for _ in 0..times {
            stage.soon("both locks", locks.acquire()).await??.release().await?;
        }
        Outcome::Ok(())
    };
    let one = repeat(ours.mutex_all(BOTH)?);
    let other = repeat(theirs.mutex_all([BOTH[1], BOTH[0]])?);
    let (one, other) = tokio::join!(one, other);
    one.and(other)
}

/// The other lock stays held until the owner lets go of it: nothing else may enter while its work stops. It belongs to
/// another client, because some servers lose all locks of a client at once.
async fn the_loss_of_one_is_the_loss_of_all(stage: &Stage) -> Outcome {
    let (ours, others) = (stage.client().await?, stage.client().await?);
    let theirs = stage.client().await?;
    let lost = others.mutex(BOTH[1])?;
    let both = MultiLock::of([ours.mutex(BOTH[0])?, Arc::clone(&lost)])?;
    let guard = both.acquire().await?;
    stage.harness().take_away(lost.name(), Removal::Deletion).await?;
    let reason = stage.loss(guard.hold()).await?;
    ensure!(!guard.hold().is_valid() && !both.is_locked(), "valid after its loss");
    stage.is_held(&theirs, BOTH[0]).await?;
    let error = guard.release().await.err().ok_or_else(|| Failure::new("released after a loss"))?;
    ensure!(error.kind() == ErrorKind::Lost && error.loss() == Some(reason), "answered {error}");
    ensure!(error.to_string().contains(BOTH[1]), "the error does not name the lost lock: {error}");
    stage.becomes_free(&theirs, BOTH[0]).await
}

async fn no_locks_at_all_are_refused(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    for none in [client.mutex_all(Vec::<&str>::new()), MultiLock::of([])] {
        let kind = none.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::InvalidOption), "an empty list was answered {kind:?}");
    }
    Ok(())
}

async fn each_of_several_locks_has_its_token(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let both = client.mutex_all(BOTH)?;
    let mut before = [None, None];
    for _ in 0..3 {
        let guard = both.acquire().await?;
        ensure!(guard.token().is_none(), "several locks have one token");
        let tokens = BOTH.map(|name| guard.hold().token_of(name));
        ensure!(tokens[0] > before[0] && tokens[1] > before[1], "{tokens:?} after {before:?}");
        before = tokens;
        guard.release().await?;
    }
    Ok(())
}

async fn an_acquisition_of_several_that_is_dropped_leaves_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let both = ours.mutex_all(BOTH)?;
    for polls in 0..8 {
        let held = theirs.mutex(BOTH[1])?.acquire().await?;
        let mut acquiring = ByHand::new(both.acquire());
        // The second lock is held, so the last polls would never come.
        let polled = tokio::time::timeout(Duration::from_millis(100), acquiring.poll_times(polls)).await;
        ensure!(!matches!(polled, Ok(Some(_))), "acquired although one of them is held");
        drop(acquiring);
        held.release().await?;
        for name in BOTH {
            stage.becomes_free(&theirs, name).await?;
        }
    }
    Ok(())
}

async fn both_become_free(stage: &Stage, ours: &LockClient, theirs: &LockClient) -> Outcome {
    for name in BOTH {
        stage.becomes_free(theirs, name).await?;
    }
    stage.soon("the undoing", ours.idle()).await?;
    ensure!(!ours.mutex_all(BOTH)?.is_locked(), "the client says that they are locked");
    Ok(())
}

async fn several_locks_acquired_and_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let both = ours.mutex_all(BOTH)?;
    let make = || async { Ok(both.acquire().await?) };
    drop_at_every_poll(stage, make, |guard| {
        drop(guard);
        both_become_free(stage, &ours, &theirs)
    })
    .await
}

async fn several_locks_released_and_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let both = ours.mutex_all(BOTH)?;
    let acquire = || async { Ok(both.acquire().await?) };
    let release = |guard: LockGuard| async { Ok(guard.release().await?) };
    drop_prepared_at_every_poll(stage, acquire, release, |_| both_become_free(stage, &ours, &theirs)).await
}
