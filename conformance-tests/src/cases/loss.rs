//! Cases: a hold is lost at the server, without its client's knowledge: one outcome, one event.

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, HoldEnd, LockClient, LockName};

use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::{ByHand, Event, EventRecorder, Level};
use crate::stage::Stage;

cases!("loss":
    a_deleted_hold_is_lost [Need::Ability(Ability::Removal(Removal::Deletion))],
    an_expired_hold_is_lost [Need::Ability(Ability::Removal(Removal::Expiry))],
    a_stolen_hold_is_lost [Need::Ability(Ability::Removal(Removal::Theft))],
    a_grant_that_is_lost_before_its_waiter_looks_does_not_end_the_wait [Need::Ability(Ability::Removal(Removal::Deletion)), Need::Order],
    a_loss_lets_the_local_queue_go_on [Need::Ability(Ability::Removal(Removal::Deletion))],
    a_loss_while_unlocking_has_one_outcome [Need::Ability(Ability::Removal(Removal::Deletion))],
    a_lost_entry_is_reported_to_its_owner_once [Need::Ability(Ability::Removal(Removal::Deletion))],
);

/// Waits until the hold of `lock` is lost, and checks what its holder learns.
async fn is_lost(stage: &Stage, client: &LockClient, removal: Removal) -> Outcome {
    let lock = client.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let second = guard.reenter()?;
    stage.harness().take_away(lock.name(), removal).await?;
    let reason = stage.loss(guard.hold()).await?;
    let told = recorder.has(|event| match event {
        Event::Abort(reason, level) => Some((*reason, *level)),
        _ => None,
    });
    let reported = stage.soon("on_abort", told).await?;
    ensure!(reported == (reason, Level::Over), "lost because {reason}, reported as {reported:?}");
    ensure!(guard.hold().end() == Some(HoldEnd::Lost(reason)), "ended as {:?}", guard.hold().end());
    ensure!(guard.reenter().is_err(), "a lost hold was entered again");
    for guard in [guard, second] {
        let kind = guard.release().await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    }
    client.idle().await;
    ensure!(recorder.aborts() == 1, "told {} times: {:?}", recorder.aborts(), recorder.events());
    ensure!(recorder.count(|event| *event == Event::Released) == 0, "a lost hold was reported as released");
    Ok(())
}

async fn a_deleted_hold_is_lost(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    is_lost(stage, &ours, Removal::Deletion).await?;
    stage.becomes_free(&theirs, "room").await
}

async fn an_expired_hold_is_lost(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    is_lost(stage, &ours, Removal::Expiry).await?;
    stage.becomes_free(&theirs, "room").await
}

/// The client cleans up after its loss; that must not affect the thief.
async fn a_stolen_hold_is_lost(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    is_lost(stage, &ours, Removal::Theft).await?;
    stage.is_held(&theirs, "room").await?;
    stage.harness().take_away(&LockName::new("room")?, Removal::Deletion).await?;
    stage.becomes_free(&theirs, "room").await
}

/// No code has seen the grant. The waiter continues to wait, here behind another client, which has the lock meanwhile.
async fn a_grant_that_is_lost_before_its_waiter_looks_does_not_end_the_wait(stage: &Stage) -> Outcome {
    let (ours, theirs, rivals) = (stage.client().await?, stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let held = theirs.mutex("room")?.acquire().await?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 1).await?;
    let rival = rivals.mutex("room")?;
    let mut behind = ByHand::new(rival.acquire());
    ensure!(behind.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 2).await?;
    held.release().await?;
    stage.until("the grant", || async { Ok(lock.is_locked()) }).await?;

    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    stage.soon("the rival's turn", behind.wants_poll()).await?;
    let between = stage.soon("the rival's grant", behind.finish()).await??;
    stage.until("the loss", || async { Ok(!lock.is_locked()) }).await?;
    ensure!(waiter.poll().is_none(), "the wait has ended");
    between.release().await?;
    let guard = stage.soon("the waiter's turn", waiter.finish()).await??;
    ensure!(guard.hold().is_valid(), "what was granted at last is not valid");
    Ok(guard.release().await?)
}

/// The owner never unlocks; the waiters behind it, in its own client and in others, still get the lock.
async fn a_loss_lets_the_local_queue_go_on(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let guard = lock.acquire().await?;
    let mut local = ByHand::new(lock.acquire());
    ensure!(local.poll().is_none(), "a lock that is held was granted");
    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    stage.soon("the local waiter's turn", local.wants_poll()).await?;
    let next = local.poll().ok_or_else(|| Failure::new("woken and not served"))??;
    ensure!(!guard.hold().is_valid() && next.hold().is_valid(), "the wrong one is valid");
    stage.is_held(&theirs, "room").await?;
    drop(guard);
    ours.idle().await;
    ensure!(next.hold().is_valid(), "dropping the lost guard ended the next hold");
    stage.is_held(&theirs, "room").await?;
    next.release().await?;
    stage.is_free(&theirs, "room").await
}

async fn a_loss_while_unlocking_has_one_outcome(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    for _ in 0..20 {
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        let hold = guard.hold().clone();
        let (released, taken) =
            tokio::join!(guard.release(), stage.harness().take_away(lock.name(), Removal::Deletion));
        // A harness need not be able to take away a lock that has already been released.
        drop(taken);
        ours.idle().await;
        let (aborts, end) = (recorder.aborts(), hold.end());
        match released.map_err(|error| error.kind()) {
            Ok(()) => ensure!(
                aborts == 0 && end == Some(HoldEnd::Released),
                "released, ended as {end:?}, and told {aborts} times of a loss"
            ),
            Err(ErrorKind::Lost) => ensure!(
                aborts <= 1 && matches!(end, Some(HoldEnd::Lost(_))),
                "lost, ended as {end:?}, and told {aborts} times of a loss"
            ),
            Err(kind) => return Err(Failure::new(format!("the release was answered {kind:?}"))),
        }
        stage.becomes_free(&theirs, "room").await?;
    }
    Ok(())
}

async fn a_lost_entry_is_reported_to_its_owner_once(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    lock.lock().await?;
    let hold = lock.hold().ok_or_else(|| Failure::new("locked, and there is no hold"))?;
    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    stage.soon("the loss", hold.lost()).await?;
    let kind = lock.lock().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the owner's next lock was answered {kind:?}");
    stage.soon("the lock after that", lock.lock()).await??;
    ensure!(lock.is_held(), "locked, and not held");
    Ok(lock.unlock().await?)
}
