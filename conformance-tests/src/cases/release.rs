//! Cases: only the owner can release, and the result of a release is true.

use crate::{Outcome, ensure};
use lock_core::{ErrorKind, HoldEnd, Operation, Owner};

use crate::case::{Need, cases};
use crate::harness::Ability;
use crate::probe::ByHand;
use crate::stage::Stage;

cases!("release":
    unlock_by_another_owner_changes_nothing,
    a_released_hold_says_so,
    a_release_whose_reply_is_lost_is_a_release [Need::Ability(Ability::LostReplies)],
    an_acquisition_whose_reply_is_lost_holds_once [Need::Ability(Ability::LostReplies)],
    a_try_whose_reply_is_lost_leaves_nothing [Need::Ability(Ability::LostReplies)],
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

/// When the release is repeated, the server no longer knows the hold: that is not a loss.
async fn a_release_whose_reply_is_lost_is_a_release(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    let hold = guard.hold().clone();
    stage.harness().lose_reply(Operation::Release).await?;
    stage.soon("the release", guard.release()).await??;
    ensure!(hold.end() == Some(HoldEnd::Released), "released, and ended as {:?}", hold.end());
    stage.is_free(&theirs, "room").await
}

async fn an_acquisition_whose_reply_is_lost_holds_once(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    stage.harness().lose_reply(Operation::Acquire).await?;
    let guard = stage.soon("the acquisition", ours.mutex("room")?.acquire()).await??;
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    ours.idle().await;
    stage.is_free(&theirs, "room").await
}

async fn a_try_whose_reply_is_lost_leaves_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    stage.harness().lose_reply(Operation::Acquire).await?;
    let answer = ours.mutex("room")?.try_acquire().await;
    match answer {
        Ok(Some(guard)) => guard.release().await?,
        Ok(None) => return Err(crate::Failure::new("a free lock was refused because a reply was lost")),
        Err(error) => ensure!(error.is_retryable(), "{error}"),
    }
    stage.becomes_free(&theirs, "room").await
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
