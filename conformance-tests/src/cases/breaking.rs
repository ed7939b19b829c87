//! Cases: an operator takes a lock away from its holder.

use crate::{Outcome, ensure};
use lock_core::{ErrorKind, HoldEnd, Operation};

use super::exclusion::quit;
use crate::case::{Need, cases};
use crate::harness::{Ability, Losing, Routes};
use crate::probe::{ByHand, Event, EventRecorder, Level};
use crate::stage::{Stage, has_tokens};

cases!("breaking":
    a_broken_hold_is_lost_and_its_holder_is_notified_once [Need::Breaking, Need::Holder],
    the_next_in_the_queue_gets_what_was_broken [Need::Breaking, Need::Holder],
    breaking_one_who_holds_no_longer_changes_nothing [Need::Breaking, Need::Holder],
    breaking_one_who_waits_changes_nothing [Need::Breaking, Need::Holder],
    the_release_of_a_broken_hold_does_not_touch_the_next [Need::Breaking, Need::Holder],
    a_hold_of_another_client_is_broken_too [Need::Breaking, Need::Holder],
    a_break_whose_reply_is_lost_has_taken_the_lock [Need::Breaking, Need::Ability(Ability::LostReplies)],
);

async fn a_broken_hold_is_lost_and_its_holder_is_notified_once(stage: &Stage) -> Outcome {
    let (ours, operator) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    lock.lock().await?;
    let hold = lock.hold();
    let hold = hold.ok_or_else(|| crate::Failure::new("locked, and there is no hold"))?;
    let holder = stage.holder(&operator, "room").await?;
    let broken = operator.break_holder("room", &holder.id).await?;
    ensure!(broken.taken_away, "breaking the holder was answered {broken:?}");
    let lost = stage.loss(&hold).await?;
    let told = recorder.has(|event| match event {
        Event::Abort(reason, level) => Some((*reason, *level)),
        _ => None,
    });
    let (reason, level) = stage.soon("on_abort", told).await?;
    ensure!(level == Level::Over, "the hold was valid when its loss was reported");
    ensure!(reason == lost, "lost because {lost}, reported because {reason}");
    let expected = stage.harness().reason_of_a_break();
    ensure!(expected.is_none_or(|expected| lost == expected), "lost because {lost}");
    ensure!(!hold.is_valid() && !lock.is_held(), "valid after its loss");
    let unlocked = lock.unlock().await.map_err(|error| (error.kind(), error.loss()));
    ensure!(unlocked == Err((ErrorKind::Lost, Some(lost))), "unlock was answered {unlocked:?}");
    stage.becomes_free(&operator, "room").await?;
    ours.idle().await;
    ensure!(recorder.aborts() == 1, "told {} times: {:?}", recorder.aborts(), recorder.events());
    ensure!(recorder.count(|event| *event == Event::Released) == 0, "a lost hold was reported as released");
    Ok(())
}

async fn the_next_in_the_queue_gets_what_was_broken(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    let lock = theirs.mutex("room")?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&ours, "room", 1).await?;
    let holder = stage.holder(&theirs, "room").await?;
    theirs.break_holder("room", &holder.id).await?;
    stage.soon("the turn of the next", waiter.wants_poll()).await?;
    let next = waiter.poll().ok_or_else(|| crate::Failure::new("woken and not served"))??;
    if has_tokens(&ours) {
        ensure!(next.token() > guard.token(), "{:?} was followed by {:?}", guard.token(), next.token());
    }
    let reason = stage.loss(guard.hold()).await?;
    ensure!(!guard.hold().is_valid(), "valid after it was lost: {reason}");
    drop(guard);
    Ok(next.release().await?)
}

async fn breaking_one_who_holds_no_longer_changes_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let former = ours.mutex("room")?.acquire().await?;
    let former_holder = stage.holder(&theirs, "room").await?;
    former.release().await?;
    let broken = theirs.break_holder("room", &former_holder.id).await?;
    ensure!(!broken.taken_away, "a free lock was broken: {broken:?}");
    // The same client again: the id names the acquisition, not the client.
    let guard = ours.mutex("room")?.acquire().await?;
    let broken = theirs.break_holder("room", &former_holder.id).await?;
    ensure!(!broken.taken_away, "the wrong holder was broken: {broken:?}");
    ensure!(guard.hold().is_valid(), "lost although another was named");
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}

async fn breaking_one_who_waits_changes_nothing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex("room")?.acquire().await?;
    let lock = theirs.mutex("room")?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&ours, "room", 1).await?;
    let waiting = stage.status(&ours, "room").await?.map(|status| status.waiters).unwrap_or_default();
    ensure!(waiting.len() == 1, "{waiting:?} wait");
    let broken = ours.break_holder("room", &waiting[0].id).await?;
    ensure!(!broken.taken_away, "a waiter was broken: {broken:?}");
    ensure!(guard.hold().is_valid(), "lost although another was named");
    guard.release().await?;
    stage.soon("the turn of the next", waiter.wants_poll()).await?;
    let next = waiter.poll().ok_or_else(|| crate::Failure::new("woken and not served"))??;
    Ok(next.release().await?)
}

/// The client of a lost hold cleans up after itself; that must not take the lock from the next holder.
async fn the_release_of_a_broken_hold_does_not_touch_the_next(stage: &Stage) -> Outcome {
    let (ours, theirs, others) = (stage.client().await?, stage.client().await?, stage.client().await?);
    let lock = theirs.mutex("room")?;
    for _ in 0..5 {
        let lost = ours.mutex("room")?.acquire().await?;
        // In the queue, so that the lock is never free in between.
        let mut waiter = ByHand::new(lock.acquire());
        ensure!(waiter.poll().is_none(), "a lock that is held was granted");
        stage.queued(&others, "room", 1).await?;
        let holder = stage.holder(&others, "room").await?;
        others.break_holder("room", &holder.id).await?;
        stage.soon("the turn of the next", waiter.wants_poll()).await?;
        let next = waiter.poll().ok_or_else(|| crate::Failure::new("woken and not served"))??;
        stage.soon("the loss", lost.lost()).await?;
        let kind = lost.release().await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Lost), "the release of a broken hold was answered {kind:?}");
        ours.idle().await;
        stage.is_held(&others, "room").await?;
        let hold = next.hold().clone();
        ensure!(hold.is_valid(), "the next holder has lost it: {:?}", hold.end());
        next.release().await?;
        ensure!(hold.end() == Some(HoldEnd::Released), "released, and ended as {:?}", hold.end());
    }
    stage.is_free(&others, "room").await
}

/// The holder is another client, in a process of its own if the backend supports that.
async fn a_hold_of_another_client_is_broken_too(stage: &Stage) -> Outcome {
    let operator = stage.client().await?;
    let mut worker = stage.worker().await?;
    worker.acquire("room").await?;
    let holder = stage.holder(&operator, "room").await?;
    let broken = operator.break_holder("room", &holder.id).await?;
    ensure!(broken.taken_away, "breaking the holder was answered {broken:?}");
    let loss = worker.lost().await?;
    let expected = stage.harness().reason_of_a_break().map(|reason| format!("{reason:?}"));
    ensure!(expected.is_none_or(|expected| loss.reason == expected), "the worker was told of {loss:?}");
    let standing = worker.standing("room").await?;
    ensure!(!standing.is_valid && standing.losses == 1, "{standing:?}");
    worker.release_lost("room").await?;
    stage.becomes_free(&operator, "room").await?;
    quit(vec![worker]).await
}

/// A client that has another connection asks again, and finds that it no longer holds.
async fn a_break_whose_reply_is_lost_has_taken_the_lock(stage: &Stage) -> Outcome {
    let (ours, operator) = (stage.client().await?, stage.client().await?);
    for losing in Losing::ALL {
        let guard = stage.soon("the lock", ours.mutex("room")?.acquire()).await??;
        stage.harness().lose_reply(Operation::Break, losing).await?;
        let broken = stage.soon("the break", operator.break_holder("room", &guard.hold().id())).await?;
        let broken = broken.map(|broken| broken.taken_away).map_err(|error| error.kind());
        let is_unknown = broken == Err(ErrorKind::Unreachable);
        let may_be_unknown = stage.harness().routes() == Routes::One;
        ensure!(broken == Ok(true) || is_unknown && may_be_unknown, "{losing:?}: {broken:?}");
        stage.loss(guard.hold()).await?;
        drop(guard);
        stage.soon("the undoing", ours.idle()).await?;
        // The lost reply may have ended a connection.
        stage.until("contact", || async { Ok(operator.ping().await.is_ok()) }).await?;
    }
    stage.becomes_free(&operator, "room").await
}
