//! Cases: connections that go silent without ending. A holder stops before the server can give the lock to another client.
//!
//! Most of them have a clock that stands still: [`Stage::frozen`] says how. So nothing depends on the speed of the
//! machine, and a deadline is met to the nanosecond.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{
    DistributedLock, ErrorKind, LockClient, LockError, LockGuard, LockStatus, LossReason, ManualClock,
    Operation,
};
use tokio::task::JoinHandle;

use super::exclusion::release_all;
use super::outages::is_unreachable;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal, ServerChange, Silence};
use crate::probe::{ByHand, Event, EventRecorder, Level};
use crate::stage::{Stage, let_run};

cases!("silence":
    a_holder_that_nothing_reaches_stops_before_another_has_the_lock [Need::Ability(Ability::Silence), Need::Lease],
    a_reader_that_nothing_reaches_is_lost_alone [Need::Ability(Ability::Silence), Need::Sharing, Need::Sessions, Need::Lease],
    permits_that_nothing_reaches_are_lost_alone [Need::Ability(Ability::Silence), Need::Permits, Need::Sessions, Need::Lease],
    a_waiting_writer_that_nothing_reaches_lets_readers_in [Need::Ability(Ability::SilentWaiters), Need::Sharing, Need::Order, Need::Lease],
    a_hold_whose_requests_vanish_is_lost_at_its_deadline [Need::Ability(Ability::Silence), Need::Ability(Ability::Removal(Removal::Expiry)), Need::Lease],
    a_hold_whose_replies_vanish_is_lost_at_its_deadline [Need::Ability(Ability::Silence), Need::Lease],
    a_hold_that_nothing_reaches_is_lost_at_its_deadline [Need::Ability(Ability::Silence), Need::Ability(Ability::Removal(Removal::Expiry)), Need::Lease],
    a_hold_whose_server_stands_still_is_lost_at_its_deadline [Need::Ability(Ability::StopServer), Need::Lease],
    a_hold_whose_server_stands_still_for_half_of_its_lease_goes_on [Need::Ability(Ability::StopServer), Need::Lease],
    the_way_of_a_grant_does_not_lengthen_the_hold [Need::Ability(Ability::SlowReplies), Need::Lease],
    a_grant_after_a_long_wait_is_checked_and_lasts_from_then [Need::Ability(Ability::CheckedGrants), Need::Lease],
    the_way_of_a_renewal_does_not_lengthen_the_hold [Need::Ability(Ability::SlowReplies), Need::Lease],
    a_waiter_that_nothing_reaches_is_passed_over [Need::Ability(Ability::Silence), Need::Ability(Ability::Removal(Removal::Expiry)), Need::Lease],
    a_wait_that_ends_in_silence_is_an_error [Need::Ability(Ability::Silence), Need::Lease],
    a_wait_that_ends_in_silence_behind_another_is_an_error [Need::Ability(Ability::Silence), Need::Lease],
    a_wait_that_ends_long_after_the_last_news_is_refused [Need::Ability(Ability::Silence), Need::Lease],
);

const INSTANT: Duration = Duration::from_nanos(1);

/// How long a reply is on its way: less than any client waits for one.
const WAY: Duration = Duration::from_secs(1);

fn left(guard: &LockGuard) -> Outcome<Duration> {
    guard.hold().remaining().ok_or_else(|| Failure::new("a hold with a lease has no deadline"))
}

fn waiter(lock: Arc<dyn DistributedLock>) -> JoinHandle<Result<LockGuard, LockError>> {
    tokio::spawn(async move { lock.acquire().await })
}

async fn granted(stage: &Stage, waiter: JoinHandle<Result<LockGuard, LockError>>) -> Outcome<LockGuard> {
    Ok(stage.soon("the grant", waiter).await???)
}

/// In real time: the server ends the lease by its own clock.
async fn a_holder_that_nothing_reaches_stops_before_another_has_the_lock(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.bystander().await?);
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let (waiting, hold) = (theirs.mutex("room")?, guard.hold().clone());
    // Whether it has stopped, at the moment of the grant: its listeners may get their time later.
    let waiting = tokio::spawn(async move { waiting.acquire().await.map(|next| (next, hold.is_valid())) });
    stage.queued(&theirs, "room", 1).await?;
    stage.harness().silence(Silence::Both).await?;
    let (next, is_beside) = stage.soon("the next holder", waiting).await???;
    ensure!(!is_beside, "the next one had it beside another");
    let has_stopped = recorder.has(|event| match event {
        Event::Abort(reason, Level::Over) => Some(*reason),
        _ => None,
    });
    let reason = stage.soon("on_abort", has_stopped).await?;
    ensure!(reason == LossReason::Expired, "lost because {reason}");
    ensure!(recorder.count(|event| *event == Event::Suspect) > 0, "{:?}", recorder.events());
    stage.heal().await?;
    the_next_one_keeps_it(stage, &ours, guard, next).await
}

async fn a_reader_that_nothing_reaches_is_lost_alone(stage: &Stage) -> Outcome {
    let read = |client: &LockClient| Ok(client.rw_lock("room")?.read());
    let write = |client: &LockClient| Ok(client.rw_lock("room")?.write());
    lost_alone(stage, read, write, async |client| client.status("room").await).await
}

async fn permits_that_nothing_reaches_are_lost_alone(stage: &Stage) -> Outcome {
    let permits = |client: &LockClient, take| Ok(client.semaphore("room", 4)?.permits(take)?);
    let status = async |client: &LockClient| client.semaphore("room", 4)?.status().await;
    lost_alone(stage, |client| permits(client, 2), |client| permits(client, 4), status).await
}

/// In real time. The one beside it does not notice, and the rival comes in after both.
async fn lost_alone(
    stage: &Stage,
    shared: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    whole: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    status: impl AsyncFn(&LockClient) -> Result<LockStatus, LockError>,
) -> Outcome {
    let (ours, others, theirs) = (stage.client().await?, stage.bystander().await?, stage.bystander().await?);
    let (lock, beside, rival) = (shared(&ours)?, shared(&others)?, whole(&theirs)?);
    let recorder = EventRecorder::of(&lock);
    let (guard, kept) = (lock.acquire().await?, beside.acquire().await?);
    let waiting = waiter(rival);
    stage.harness().silence(Silence::Both).await?;
    let removed = async {
        // Without the pauses of other waits: it would have had no time to be valid for longer.
        while !status(&theirs).await.is_ok_and(|status| status.holders.len() == 1) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    stage.soon("the server has removed it", removed).await?;
    ensure!(!guard.hold().is_valid(), "removed while it was valid");
    ensure!(kept.hold().is_valid(), "the one beside it was lost with it");
    let told = |event: &Event| (*event == Event::Abort(LossReason::Expired, Level::Over)).then_some(());
    stage.soon("on_abort", recorder.has(told)).await?;
    ensure!(!waiting.is_finished(), "the rival is beside another");
    kept.release().await?;
    let next = granted(stage, waiting).await?;
    stage.heal().await?;
    stage.soon("the rest of the lost hold", ours.idle()).await?;
    ensure!(next.hold().is_valid(), "the rival's hold has ended: {:?}", next.hold().end());
    Ok(next.release().await?)
}

/// In real time. The lock is held all the while, so no release lets them in.
async fn a_waiting_writer_that_nothing_reaches_lets_readers_in(stage: &Stage) -> Outcome {
    let (ours, theirs, others) = (stage.client().await?, stage.bystander().await?, stage.bystander().await?);
    let reader = theirs.rw_lock("room")?.read().acquire().await?;
    let writer = waiter(ours.rw_lock("room")?.write());
    stage.queued(&theirs, "room", 1).await?;
    let behind = waiter(others.rw_lock("room")?.read());
    stage.queued(&theirs, "room", 2).await?;
    stage.harness().silence(Silence::Both).await?;
    let beside = granted(stage, behind).await?;
    ensure!(reader.hold().is_valid() && !writer.is_finished(), "the writer is beside a reader");
    stage.heal().await?;
    release_all([reader, beside]).await?;
    Ok(granted(stage, writer).await?.release().await?)
}

/// What is left of the lost hold, and what was on its way for long, does nothing to the hold of the next one.
async fn the_next_one_keeps_it(
    stage: &Stage,
    ours: &LockClient,
    lost: LockGuard,
    next: LockGuard,
) -> Outcome {
    let released = stage.soon("the end of the lost hold", lost.release()).await?;
    let kind = released.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    stage.soon("the rest of the lost hold", ours.idle()).await?;
    stage.is_held(ours, "room").await?;
    ensure!(next.hold().is_valid(), "the next hold has ended: {:?}", next.hold().end());
    next.release().await?;
    stage.becomes_free(ours, "room").await
}

async fn a_hold_whose_requests_vanish_is_lost_at_its_deadline(stage: &Stage) -> Outcome {
    lost_at_its_deadline(stage, Fault::Silence(Silence::Requests)).await
}

/// The server hears the client all the time, so the client has to release the lock.
async fn a_hold_whose_replies_vanish_is_lost_at_its_deadline(stage: &Stage) -> Outcome {
    lost_at_its_deadline(stage, Fault::Silence(Silence::Replies)).await
}

async fn a_hold_that_nothing_reaches_is_lost_at_its_deadline(stage: &Stage) -> Outcome {
    lost_at_its_deadline(stage, Fault::Silence(Silence::Both)).await
}

/// When it continues, it hears all that the client has sent, and grants nothing before that.
async fn a_hold_whose_server_stands_still_is_lost_at_its_deadline(stage: &Stage) -> Outcome {
    lost_at_its_deadline(stage, Fault::StandsStill).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Silence(Silence),
    StandsStill,
}

async fn lost_at_its_deadline(stage: &Stage, fault: Fault) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiting = waiter(theirs.mutex("room")?);
    stage.queued(&theirs, "room", 1).await?;
    match fault {
        Fault::Silence(silence) => stage.harness().silence(silence).await?,
        Fault::StandsStill => stage.harness().change_server(ServerChange::Stop).await?,
    }
    time.advance(left(&guard)?.saturating_sub(INSTANT));
    ensure!(left(&guard)? == INSTANT && guard.hold().is_valid(), "{:?} are left", left(&guard)?);
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    if fault != Fault::StandsStill {
        stage.is_held(&stage.bystander().await?, "room").await?;
    }
    ensure!(!waiting.is_finished(), "granted before the loss");
    time.advance(INSTANT);
    ensure!(!guard.hold().is_valid(), "valid at its deadline");
    let lost = recorder.has(|event| match event {
        Event::Abort(reason, level) => Some((*reason, *level)),
        _ => None,
    });
    let told = stage.soon("on_abort", lost).await?;
    ensure!(told == (LossReason::Expired, Level::Over), "{told:?}");
    // Where its requests arrive, the client may have given back by now what it has lost.
    let arrives = fault == Fault::Silence(Silence::Replies);
    ensure!(arrives || !waiting.is_finished(), "granted although the server has heard nothing");
    match fault {
        Fault::Silence(Silence::Replies) => {}
        // It was held until now, or this is an error.
        Fault::Silence(_) => stage.harness().take_away(lock.name(), Removal::Expiry).await?,
        Fault::StandsStill => stage.harness().change_server(ServerChange::Resume).await?,
    }
    stage.heal_and_let_pass(&time).await?;
    let next = granted(stage, waiting).await?;
    the_next_one_keeps_it(stage, &ours, guard, next).await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}

async fn a_hold_whose_server_stands_still_for_half_of_its_lease_goes_on(stage: &Stage) -> Outcome {
    let (ours, time) = stage.frozen().await?;
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let half = left(&guard)? / 2;
    stage.harness().change_server(ServerChange::Stop).await?;
    time.advance(half);
    stage.harness().change_server(ServerChange::Resume).await?;
    let_run(&time, 1);
    stage.until("it is renewed", || async { Ok(left(&guard)? > half) }).await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.becomes_free(&stage.client().await?, "room").await
}

/// The server may count the lease from when it had the request. If the client counted from the reply, two clients would
/// hold the lock.
async fn the_way_of_a_grant_does_not_lengthen_the_hold(stage: &Stage) -> Outcome {
    let (ours, time) = stage.frozen().await?;
    let quick = ours.mutex("another room")?.acquire().await?;
    let whole = left(&quick)?;
    quick.release().await?;
    let mutex = ours.mutex("room")?;
    let wait = || {
        let lock = Arc::clone(&mutex);
        tokio::spawn(async move { lock.acquire().await.map(Some) })
    };
    of_the_way_of_a_grant(stage, &time, whole, wait).await?;
    let attempt = || {
        let lock = Arc::clone(&mutex);
        tokio::spawn(async move { lock.try_acquire().await })
    };
    of_the_way_of_a_grant(stage, &time, whole, attempt).await
}

async fn of_the_way_of_a_grant(
    stage: &Stage,
    time: &ManualClock,
    whole: Duration,
    attempt: impl Fn() -> JoinHandle<Result<Option<LockGuard>, LockError>>,
) -> Outcome {
    // A backend may have to prepare the first attempt with requests of their own, which are sent after the reply.
    for _ in 0..5 {
        stage.harness().hold_reply(Operation::Acquire).await?;
        let asked = attempt();
        stage.soon("the reply", stage.harness().reply_is_held()).await??;
        time.advance(WAY);
        stage.harness().let_replies_go().await?;
        let guard = stage.soon("the grant", asked).await???;
        let guard = guard.ok_or_else(|| Failure::new("the lock is free"))?;
        let left = left(&guard)?;
        guard.release().await?;
        if left + WAY <= whole {
            return Ok(());
        }
    }
    Err(Failure::new(format!("all of {whole:?} is left {WAY:?} after the request")))
}

/// The server does not say since when the client has the lock. When the answer to the check arrives, it may be free again.
async fn a_grant_after_a_long_wait_is_checked_and_lasts_from_then(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let quick = ours.mutex("another room")?.acquire().await?;
    let whole = left(&quick)?;
    quick.release().await?;
    let held = theirs.mutex("room")?.acquire().await?;
    let waiting = waiter(ours.mutex("room")?);
    stage.queued(&theirs, "room", 1).await?;
    // More than any interval of renewals.
    time.advance(whole / 2);
    stage.harness().hold_reply(Operation::Renew).await?;
    held.release().await?;
    stage.soon("the check", stage.harness().reply_is_held()).await??;
    ensure!(!waiting.is_finished(), "the grant was believed without a check");
    time.advance(WAY);
    stage.harness().let_replies_go().await?;
    let guard = granted(stage, waiting).await?;
    let left = left(&guard)?;
    ensure!(left + WAY <= whole, "{left:?} of {whole:?} are left {WAY:?} after the check");
    Ok(guard.release().await?)
}

async fn the_way_of_a_renewal_does_not_lengthen_the_hold(stage: &Stage) -> Outcome {
    let (ours, time) = stage.frozen().await?;
    let guard = ours.mutex("room")?.acquire().await?;
    let whole = left(&guard)?;
    stage.harness().hold_reply(Operation::Renew).await?;
    // At least one interval of renewals, and less than two: when the reply arrives, no other renewal is due, which would give the
    // client the whole lease again.
    // With most it is due after a quarter of the lease. A client whose clock leaps over the time of a request gives that up, maybe unsent.
    time.advance(whole.mul_f64(0.2553));
    let mut patience = WAY * 5;
    while tokio::time::timeout(patience, stage.harness().reply_is_held()).await.is_err() {
        time.advance(WAY);
        patience = WAY / 5;
    }
    time.advance(WAY);
    let before = left(&guard)?;
    stage.harness().let_replies_go().await?;
    stage.until("it is renewed", || async { Ok(left(&guard)? > before) }).await?;
    let left = left(&guard)?;
    // The lease of a session may have begun a moment before the hold.
    ensure!(left + WAY / 2 <= whole, "{left:?} of {whole:?} are left {WAY:?} after the request");
    Ok(guard.release().await?)
}

/// The server gives it the lock, until the lease of which the silent client has heard last. No client waits for ever.
async fn a_waiter_that_nothing_reaches_is_passed_over(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let others = stage.bystander().await?;
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let first = waiter(Arc::clone(&lock));
    stage.queued(&theirs, "room", 1).await?;
    let second = waiter(others.mutex("room")?);
    stage.queued(&theirs, "room", 2).await?;
    stage.harness().silence(Silence::Both).await?;
    held.release().await?;
    stage.queued(&theirs, "room", 1).await?;
    time.advance(stage.lasting_lease()?);
    stage.harness().take_away(lock.name(), Removal::Expiry).await?;
    let next = granted(stage, second).await?;
    ensure!(!first.is_finished(), "the silent one was granted");
    // What was on its way arrives now, and no longer counts.
    stage.heal_and_let_pass(&time).await?;
    stage.queued(&theirs, "room", 1).await?;
    ensure!(next.hold().is_valid() && !first.is_finished(), "the late grant was believed");
    next.release().await?;
    Ok(granted(stage, first).await?.release().await?)
}

/// It is unknown whether the other client still holds the lock.
async fn a_wait_that_ends_in_silence_is_an_error(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let (lock, wait) = (ours.mutex("room")?, stage.lasting_lease()? / 2);
    let waiting = tokio::spawn(async move { lock.try_acquire_for(wait).await });
    stage.queued(&theirs, "room", 1).await?;
    stage.harness().silence(Silence::Both).await?;
    is_unreachable(ends_in_silence(stage, &time, waiting).await??, "the wait")?;
    let another = ours.mutex("another room")?;
    let tried = ends_in_silence(stage, &time, async { another.try_acquire().await }).await?;
    is_unreachable(tried, "a try")?;
    stage.heal_and_let_pass(&time).await?;
    held.release().await?;
    stage.becomes_free(&theirs, "room").await
}

/// The attempt at the server belongs to a caller that waits for ever.
async fn a_wait_that_ends_in_silence_behind_another_is_an_error(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let (lock, wait) = (ours.mutex("room")?, stage.lasting_lease()? / 2);
    let first = waiter(Arc::clone(&lock));
    stage.queued(&theirs, "room", 1).await?;
    let mut second = ByHand::new(lock.try_acquire_for(wait));
    ensure!(second.poll().is_none(), "a lock that is held was granted");
    stage.harness().silence(Silence::Both).await?;
    is_unreachable(ends_in_silence(stage, &time, second.finish()).await?, "the wait")?;
    stage.heal_and_let_pass(&time).await?;
    held.release().await?;
    Ok(granted(stage, first).await?.release().await?)
}

/// The server answers the question whether the attempt is still in the queue.
async fn a_wait_that_ends_long_after_the_last_news_is_refused(stage: &Stage) -> Outcome {
    let ((ours, time), theirs) = (stage.frozen().await?, stage.bystander().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let (lock, wait) = (ours.mutex("room")?, stage.lasting_lease()? / 2);
    let waiting = tokio::spawn(async move { lock.try_acquire_for(wait).await });
    stage.queued(&theirs, "room", 1).await?;
    // An answer to what was asked later shows that the server has had the time to answer the question, however slow it is.
    while !waiting.is_finished() {
        stage.lets_pass(&time, WAY / 2).await;
        stage.soon("an answer", ours.ping()).await??;
    }
    let refused = waiting.await?;
    ensure!(matches!(refused, Ok(None)), "the wait ended with {refused:?}");
    held.release().await?;
    stage.becomes_free(&theirs, "room").await
}

/// Returns the answer of a client that hears nothing: it comes when the time that it grants to the server is over.
///
/// Time passes in small steps. A backend asks once more before a wait ends, and learns of the silence before the end: its thread needs
/// processor time in between, of which a busy machine gives it none for a while.
async fn ends_in_silence<T>(
    stage: &Stage,
    time: &ManualClock,
    answer: impl Future<Output = T>,
) -> Outcome<T> {
    let passes = async {
        loop {
            stage.lets_pass(time, WAY / 2).await;
        }
    };
    tokio::select! {
        answer = stage.soon("the answer", answer) => answer,
        () = passes => unreachable!("time does not end"),
    }
}
