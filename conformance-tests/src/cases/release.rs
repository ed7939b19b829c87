//! Cases: only the owner can release, and the result of a release is true.

use std::sync::Arc;

use crate::{During, Failure, Outcome, ensure};
use lock_core::{DistributedLock, ErrorKind, HoldEnd, LockClient, Operation, Owner};

use crate::case::{Need, cases};
use crate::harness::{Ability, Losing};
use crate::probe::{ByHand, EventRecorder};
use crate::stage::{Stage, let_run};

cases!("release":
    unlock_by_another_owner_changes_nothing,
    a_released_hold_says_so,
    a_release_whose_reply_is_lost_is_a_release [Need::Ability(Ability::LostReplies)],
    an_acquisition_whose_reply_is_lost_holds_once [Need::Ability(Ability::LostReplies)],
    a_wait_whose_reply_is_lost_holds_once [Need::Ability(Ability::LostReplies)],
    a_try_whose_reply_is_lost_leaves_nothing [Need::Ability(Ability::LostReplies)],
    a_cancel_whose_reply_is_lost_leaves_nothing [Need::Ability(Ability::LostReplies)],
    a_failing_release_frees_the_local_queue [Need::Ability(Ability::Outages)],
);

async fn unlock_by_another_owner_changes_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let guard = lock.acquire().await?;
    let their_lock = theirs.mutex("room")?;
    let attempts = [
        lock.release_as(Owner::new()).await,
        lock.unlock().await,
        their_lock.release_as(guard.owner()).await,
        their_lock.unlock().await,
    ];
    for attempt in attempts {
        let kind = attempt.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::NotOwner), "a stranger's unlock was answered {kind:?}");
    }
    ensure!(guard.hold().is_valid(), "a stranger's unlock ended the hold");
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}

async fn a_released_hold_says_so(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let guard = client.mutex("room")?.acquire().await?;
    let hold = guard.hold().clone();
    ensure!(hold.is_valid() && hold.end().is_none(), "held, and not valid");
    guard.release().await?;
    ensure!(!hold.is_valid(), "valid after its release");
    let end = stage.soon("the end of the hold", hold.ended()).await?;
    ensure!(end == HoldEnd::Released, "released, and ended as {end:?}");
    Ok(())
}

/// A lock of each kind that the backend has, and one of the other client that it excludes.
pub(super) fn kinds(ours: &LockClient, theirs: &LockClient) -> Outcome<Vec<[Arc<dyn DistributedLock>; 2]>> {
    let mut kinds = vec![[ours.mutex("room")?, theirs.mutex("room")?]];
    let capabilities = ours.capabilities();
    if capabilities.shared {
        kinds.push([ours.rw_lock("room")?.read(), theirs.rw_lock("room")?.write()]);
    }
    if capabilities.permits.is_some() {
        kinds.push([ours.semaphore("room", 3)?.permits(2)?, theirs.semaphore("room", 3)?.permits(2)?]);
    }
    Ok(kinds)
}

/// When the release is repeated, the server no longer knows the hold: that is not a loss, and ends no other hold.
async fn a_release_whose_reply_is_lost_is_a_release(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    for losing in Losing::ALL {
        let guard = stage.soon("the lock", lock.acquire()).await??;
        let hold = guard.hold().clone();
        let next = theirs.mutex("room")?;
        let next = tokio::spawn(async move { next.acquire().await });
        stage.queued(&theirs, "room", 1).await?;
        stage.harness().lose_reply(Operation::Release, losing).await?;
        stage.soon("the release", guard.release()).await?.during(format_args!("{losing:?}"))?;
        ensure!(hold.end() == Some(HoldEnd::Released), "released, and ended as {:?}", hold.end());
        let next = stage.soon("the next one's turn", next).await???;
        stage.soon("the rest of the release", ours.idle()).await?;
        ensure!(next.hold().is_valid(), "{losing:?}: the next hold has ended: {:?}", next.hold().end());
        stage.is_held(&ours, "room").await?;
        next.release().await?;
    }
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    stage.is_free(&theirs, "room").await
}

async fn an_acquisition_whose_reply_is_lost_holds_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for losing in Losing::ALL {
        for [lock, excluded] in kinds(&ours, &theirs)? {
            stage.harness().lose_reply(Operation::Acquire, losing).await?;
            let guard = stage.soon("the acquisition", lock.acquire()).await??;
            let mode = guard.hold().mode();
            ensure!(stage.tried(&excluded).await?.is_none(), "{losing:?}: {mode} and another");
            guard.release().await?;
            stage.soon("the rest", ours.idle()).await?;
            let free = stage.tried(&excluded).await?;
            free.ok_or_else(|| Failure::new(format!("{losing:?}: held twice, released once")))?
                .release()
                .await?;
        }
    }
    stage.is_free(&theirs, "room").await
}

/// The lost reply says that it waits, or that it holds.
async fn a_wait_whose_reply_is_lost_holds_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for losing in Losing::ALL {
        let held = theirs.mutex("room")?.acquire().await?;
        stage.harness().lose_reply(Operation::Acquire, losing).await?;
        let lock = ours.mutex("room")?;
        let waiter = tokio::spawn(async move { lock.acquire().await });
        stage.queued(&theirs, "room", 1).await?;
        held.release().await?;
        let guard = stage.soon("the grant", waiter).await???;
        stage.is_held(&theirs, "room").await.during(format_args!("{losing:?}"))?;
        guard.release().await?;
        stage.soon("the rest", ours.idle()).await?;
        stage.is_free(&theirs, "room").await.during(format_args!("{losing:?}"))?;
    }
    Ok(())
}

async fn a_try_whose_reply_is_lost_leaves_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for losing in Losing::ALL {
        for [lock, excluded] in kinds(&ours, &theirs)? {
            stage.harness().lose_reply(Operation::Acquire, losing).await?;
            match lock.try_acquire().await {
                Ok(Some(guard)) => guard.release().await?,
                Ok(None) => return Err(Failure::new("a free lock was refused because a reply was lost")),
                Err(error) => ensure!(error.is_retryable(), "{error}"),
            }
            stage.soon("the undoing", ours.idle()).await?;
            let free = stage.tried(&excluded).await?;
            free.ok_or_else(|| Failure::new(format!("{losing:?}: should be free")))?.release().await?;
            // The lost reply may have ended a connection.
            stage.until("contact", || async { Ok(ours.ping().await.is_ok()) }).await?;
        }
    }
    stage.becomes_free(&theirs, "room").await
}

/// No lease ends before the case, by any clock. The client takes the silence for what it is after a minute, which passes in a second;
/// all else has the time that it has.
async fn a_cancel_whose_reply_is_lost_leaves_nothing(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.lasting().await?);
    let_run(&time, 1);
    let lock = ours.mutex("room")?;
    for losing in Losing::ALL {
        let held = theirs.mutex("room")?.acquire().await?;
        let mut waiter = ByHand::new(lock.acquire());
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&theirs, "room", 1).await?;
        stage.harness().lose_reply(Operation::Cancel, losing).await?;
        drop(waiter);
        let fast = let_run(&time, if losing == Losing::Silence { 50 } else { 0 });
        stage.queued(&theirs, "room", 0).await?;
        ensure!(held.hold().is_valid(), "{losing:?}: a wait that was dropped ended another's hold");
        held.release().await?;
        stage.soon("the undoing", ours.idle()).await?;
        fast.abort();
        stage.is_free(&theirs, "room").await.during(format_args!("{losing:?}"))?;
        stage.soon("the lock", lock.acquire()).await??.release().await?;
    }
    Ok(())
}

/// The server does not answer the release; the client's next task does not wait for it, and fails independently.
async fn a_failing_release_frees_the_local_queue(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let guard = lock.acquire().await?;
    stage.harness().sever().await?;
    let mut release = ByHand::new(guard.release());
    let released = release.poll();
    stage
        .until("the lock is free here, and the server is what fails", || async {
            let kind = lock.try_acquire().await.map_err(|error| error.kind());
            Ok(matches!(kind, Err(ErrorKind::Unreachable)))
        })
        .await?;
    stage.heal().await?;
    if released.is_none() {
        stage.soon("an answer to the release", release.wants_poll()).await?;
    }
    drop(release);
    stage.becomes_free(&theirs, "room").await?;
    let guard = stage.soon("the next acquisition", lock.acquire()).await??;
    Ok(guard.release().await?)
}
