//! Cases: a server that is unreachable. A client reports only what it knows, and recovers when contact returns.

use std::fmt;
use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{Clock, ErrorKind, LockEvent, LockEvents, LockGuard, Operation};
use tokio::time::Instant;

use super::release::kinds;
use crate::case::{Need, cases};
use crate::harness::{Ability, Removal};
use crate::probe::{ByHand, Event, EventRecorder, Level};
use crate::stage::Stage;

cases!("outages":
    a_try_while_the_server_is_away_is_an_error [Need::Ability(Ability::Outages)],
    a_wait_that_ends_while_the_server_is_away_is_an_error [Need::Ability(Ability::Outages)],
    a_wait_that_was_cut_off_is_an_error_too [Need::Ability(Ability::Outages)],
    a_wait_goes_on_after_a_short_outage [Need::Ability(Ability::Outages)],
    a_cancelled_wait_leaves_nothing_behind_after_an_outage [Need::Ability(Ability::Outages)],
    a_wait_behind_an_unanswered_cancel_is_not_refused [Need::Ability(Ability::SlowReplies)],
    a_wait_behind_an_unanswered_release_is_not_refused [Need::Ability(Ability::SlowReplies)],
    a_grant_that_comes_too_late_goes_back [Need::Ability(Ability::SlowReplies)],
    close_ends_in_time_although_the_server_is_silent [Need::Ability(Ability::SlowReplies)],
    a_hold_survives_a_short_outage_and_says_so [Need::Ability(Ability::Outages), Need::Lease],
    a_stream_has_all_that_happens_to_a_hold [Need::Ability(Ability::Outages), Need::Ability(Ability::Removal(Removal::Deletion)), Need::Lease],
    a_long_outage_ends_a_hold_before_its_lease [Need::Ability(Ability::Outages), Need::Lease],
    a_hold_is_renewed_for_as_long_as_it_lasts [Need::Lease],
    a_user_who_blocks_the_runtime_keeps_the_lock [Need::Lease],
);

const SHORT: Duration = Duration::from_millis(100);

pub(super) fn is_unreachable<T: fmt::Debug>(answer: Result<T, lock_core::LockError>, what: &str) -> Outcome {
    let kind = answer.map_err(|error| error.kind());
    ensure!(matches!(kind, Err(ErrorKind::Unreachable)), "{what} was answered {kind:?}");
    Ok(())
}

async fn a_try_while_the_server_is_away_is_an_error(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    stage.harness().sever().await?;
    is_unreachable(lock.try_acquire().await, "a try")?;
    is_unreachable(lock.try_lock().await, "a try")?;
    stage.heal().await?;
    stage.becomes_free(&client, "room").await
}

/// A client may get the lock on another connection to the server, or on the next one if it takes the silence for a failure. But no
/// client can know that another one holds the lock.
async fn is_not_refused(answer: Result<Option<LockGuard>, lock_core::LockError>, what: &str) -> Outcome {
    match answer {
        Ok(Some(guard)) => Ok(guard.release().await?),
        answer => is_unreachable(answer, what),
    }
}

/// The lock is free, but the client cannot know that.
async fn a_wait_that_ends_while_the_server_is_away_is_an_error(stage: &Stage) -> Outcome {
    let (ours, observer) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    stage.harness().sever().await?;
    is_unreachable(lock.try_acquire_for(SHORT).await, "a wait")?;
    is_unreachable(lock.try_lock_for(SHORT).await, "a wait")?;
    stage.heal().await?;
    stage.becomes_free(&observer, "room").await
}

/// The server had confirmed that another client holds the lock; then it became unreachable, and that may have changed
/// since.
async fn a_wait_that_was_cut_off_is_an_error_too(stage: &Stage) -> Outcome {
    for wait in [10, 25, 50].map(Duration::from_secs) {
        if let Some(answer) = cut_off_within(stage, wait).await? {
            return is_unreachable(answer, "a wait that was cut off");
        }
    }
    Err(Failure::new("the client needed longer than any wait to notice that it is cut off"))
}

/// Returns the result of a wait whose client is cut off before the end; `None` when the wait ended before the client
/// noticed the outage, which may happen on a busy machine.
async fn cut_off_within(
    stage: &Stage,
    wait: Duration,
) -> Outcome<Option<Result<Option<LockGuard>, lock_core::LockError>>> {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let mut waiter = ByHand::new(lock.try_acquire_for(wait));
    let began = Instant::now();
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    let queued = stage.queued(&theirs, "room", 1).await;
    if began.elapsed() >= wait {
        return Ok(None);
    }
    queued?;
    stage.harness().sever().await?;
    let other = ours.mutex("another room")?;
    stage
        .until("the client knows that it is cut off", || async {
            Ok(matches!(other.try_acquire().await, Err(error) if error.kind() == ErrorKind::Unreachable))
        })
        .await?;
    let in_time = began.elapsed() < wait;
    stage.soon("the end of the wait", waiter.wants_poll()).await?;
    let answer = waiter.poll().ok_or_else(|| Failure::new("woken before the end of the wait"))?;
    stage.heal().await?;
    drop(held);
    stage.becomes_free(&theirs, "room").await?;
    Ok(in_time.then_some(answer))
}

async fn a_wait_goes_on_after_a_short_outage(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let waiter = tokio::spawn(async move { lock.acquire().await });
    stage.queued(&theirs, "room", 1).await?;
    stage.harness().sever().await?;
    tokio::time::sleep(SHORT).await;
    stage.heal().await?;
    stage.queued(&theirs, "room", 1).await?;
    held.release().await?;
    let granted = stage.soon("the grant", waiter).await???;
    Ok(granted.release().await?)
}

async fn a_cancelled_wait_leaves_nothing_behind_after_an_outage(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 1).await?;
    stage.harness().sever().await?;
    drop(waiter);
    drop(held);
    tokio::time::sleep(SHORT).await;
    stage.heal().await?;
    stage.becomes_free(&theirs, "room").await
}

/// The lock is free by now, and the server has not confirmed anything else: it has not answered any request since.
async fn a_wait_behind_an_unanswered_cancel_is_not_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = theirs.mutex("room")?.acquire().await?;
    let lock = ours.mutex("room")?;
    let mut waiter = ByHand::new(lock.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    stage.queued(&theirs, "room", 1).await?;
    stage.harness().hold_reply(Operation::Cancel).await?;
    drop(waiter);
    stage.soon("the cancel", stage.harness().reply_is_held()).await??;
    held.release().await?;
    let answer = lock.try_acquire_for(SHORT).await;
    stage.harness().let_replies_go().await?;
    is_not_refused(answer, "a wait behind an unanswered cancel").await?;
    stage.becomes_free(&theirs, "room").await
}

async fn a_wait_behind_an_unanswered_release_is_not_refused(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let guard = lock.acquire().await?;
    stage.harness().hold_reply(Operation::Release).await?;
    drop(guard);
    stage.soon("the release", stage.harness().reply_is_held()).await??;
    let answer = lock.try_acquire_for(SHORT).await;
    stage.harness().let_replies_go().await?;
    is_not_refused(answer, "a wait behind an unanswered release").await?;
    stage.becomes_free(&theirs, "room").await
}

/// The server has granted the lock, and the reply arrives when no waiter is left.
async fn a_grant_that_comes_too_late_goes_back(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    stage.harness().hold_reply(Operation::Acquire).await?;
    let answer = ours.mutex("room")?.try_acquire_for(SHORT).await;
    stage.harness().let_replies_go().await?;
    is_not_refused(answer, "a wait that the server did not answer").await?;
    stage.becomes_free(&theirs, "room").await
}

async fn close_ends_in_time_although_the_server_is_silent(stage: &Stage) -> Outcome {
    let observer = stage.client().await?;
    // Not a client of the stage, which closes its clients and expects no error.
    let client = stage.harness().client(stage.builder()).await?;
    let guard = client.mutex("room")?.acquire().await?;
    stage.harness().hold_reply(Operation::Release).await?;
    let began = Instant::now();
    drop(guard);
    stage.soon("the release", stage.harness().reply_is_held()).await??;
    let closed = stage.soon("the end of close", client.close(SHORT)).await?;
    let kind = closed.map_err(|error| error.kind());
    // No client repeats a request earlier.
    let is_repeated = kind == Ok(()) && began.elapsed() > Duration::from_secs(1);
    ensure!(
        is_repeated || kind == Err(ErrorKind::Unconfirmed),
        "close with a release unanswered was answered {kind:?}"
    );
    stage.harness().let_replies_go().await?;
    stage.becomes_free(&observer, "room").await
}

async fn a_hold_survives_a_short_outage_and_says_so(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    for [lock, excluded] in kinds(&ours, &theirs)? {
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        stage.harness().sever().await?;
        let suspect = recorder.has(|event| (*event == Event::Suspect).then_some(()));
        stage.soon("on_suspect", suspect).await?;
        ensure!(guard.hold().is_valid(), "suspect, and lost: {:?}", guard.hold().end());
        stage.heal().await?;
        let restored = recorder.has(|event| (*event == Event::Restored).then_some(()));
        stage.soon("on_restored", restored).await?;
        ensure!(guard.hold().is_valid(), "restored, and lost: {:?}", guard.hold().end());
        ensure!(stage.tried(&excluded).await?.is_none(), "{} beside another", guard.hold().mode());
        ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
        guard.release().await?;
        stage.is_free(&theirs, "room").await?;
    }
    Ok(())
}

async fn a_stream_has_all_that_happens_to_a_hold(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    let lock = client.mutex("room")?;
    let mut events = client.events();
    let guard = lock.acquire().await?;
    next_is(stage, &mut events, "an acquisition", |event| matches!(event, LockEvent::Acquired { .. }))
        .await?;
    stage.harness().sever().await?;
    next_is(stage, &mut events, "a suspicion", |event| matches!(event, LockEvent::Suspect { .. })).await?;
    stage.harness().heal().await?;
    next_is(stage, &mut events, "a restoration", |event| matches!(event, LockEvent::Restored { .. })).await?;
    guard.release().await?;
    next_is(stage, &mut events, "a release", |event| matches!(event, LockEvent::Released { .. })).await?;
    let guard = lock.acquire().await?;
    next_is(stage, &mut events, "an acquisition", |event| matches!(event, LockEvent::Acquired { .. }))
        .await?;
    stage.harness().take_away(lock.name(), Removal::Deletion).await?;
    let reason = stage.loss(guard.hold()).await?;
    let is_loss =
        |event: &LockEvent| matches!(event, LockEvent::Lost { reason: told, .. } if *told == reason);
    next_is(stage, &mut events, "the loss", is_loss).await
}

async fn next_is(
    stage: &Stage,
    events: &mut LockEvents,
    what: &str,
    is_expected: impl Fn(&LockEvent) -> bool,
) -> Outcome {
    loop {
        match stage.soon(what, events.next()).await? {
            Some(event) if is_expected(&event) => return Ok(()),
            // A busy machine may renew late.
            Some(LockEvent::Suspect { .. } | LockEvent::Restored { .. }) => {}
            event => return Err(Failure::new(format!("{event:?} in place of {what}"))),
        }
    }
}

/// The hold ends before the server can give the lock to another client.
async fn a_long_outage_ends_a_hold_before_its_lease(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let Some(lease) = stage.harness().lease() else { return Err(Failure::new("the harness has no lease")) };
    let clock = Clock::system();
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.harness().sever().await?;
    // The last renewal happened before this moment. By the clock, since a busy machine may be late to tell.
    let severed_at = clock.now();
    let ends_at = clock.now().plus(guard.hold().remaining().unwrap_or(lease));
    let lasts = ends_at.since(severed_at);
    ensure!(lasts < lease, "ends {lasts:?} after the last contact, with a lease of {lease:?}");
    let told = recorder.has(|event| match event {
        Event::Abort(_, level) => Some(*level),
        _ => None,
    });
    let level = stage.soon("on_abort", told).await?;
    ensure!(level == Level::Over, "the hold was valid when its loss was reported");
    ensure!(recorder.count(|event| *event == Event::Suspect) > 0, "{:?}", recorder.events());
    stage.heal().await?;
    let next = stage.soon("the next holder", theirs.mutex("room")?.acquire()).await??;
    let kind = guard.release().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    ours.idle().await;
    ensure!(next.hold().is_valid() && recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(next.release().await?)
}

async fn a_hold_is_renewed_for_as_long_as_it_lasts(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lease = stage.harness().lease().unwrap_or_default();
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let lost = tokio::time::timeout(lease * 2, guard.lost()).await;
    ensure!(lost.is_err(), "lost within two leases: {lost:?}");
    stage.is_held(&theirs, "room").await?;
    ensure!(guard.hold().remaining().is_some_and(|left| left <= lease), "{:?}", guard.hold().remaining());
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}

/// Renewals do not depend on the runtime of the holder.
async fn a_user_who_blocks_the_runtime_keeps_the_lock(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let lock = ours.mutex("room")?;
    let recorder = EventRecorder::of(&lock);
    let blocked_for = stage.harness().lease().unwrap_or_default() * 2;
    let block = move || -> Outcome<LockGuard> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let guard = lock.acquire().await?;
            std::thread::sleep(blocked_for);
            Ok(guard)
        })
    };
    let guard = tokio::task::spawn_blocking(block).await??;
    ensure!(guard.hold().is_valid(), "lost while the runtime was blocked: {:?}", guard.hold().end());
    ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
    stage.is_held(&theirs, "room").await?;
    guard.release().await?;
    stage.is_free(&theirs, "room").await
}
