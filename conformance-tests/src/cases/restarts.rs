//! Cases: a server that is killed and started again. What it has forgotten its clients learn.

use std::sync::Arc;

use crate::{Outcome, ensure};
use lock_core::{DistributedLock, ErrorKind, LockClient, LockGuard, LockName, LossReason};

use super::exclusion::release_all;
use crate::case::{Need, cases};
use crate::harness::{Ability, AfterRestart, ServerChange};
use crate::probe::{ByHand, Event, EventRecorder};
use crate::stage::{Stage, has_tokens};

cases!("restarts":
    a_hold_goes_on_or_its_loss_is_told [Need::Ability(Ability::RestartServer)],
    readers_go_on_or_their_loss_is_told [Need::Ability(Ability::RestartServer), Need::Sharing],
    permits_go_on_or_their_loss_is_told [Need::Ability(Ability::RestartServer), Need::Permits, Need::Order],
    those_who_wait_are_served [Need::Ability(Ability::RestartServer)],
);

const NAME: &str = "room";

async fn a_hold_goes_on_or_its_loss_is_told(stage: &Stage) -> Outcome {
    let mutex = |client: &LockClient| Ok(client.mutex(NAME)?);
    across_a_restart(stage, 1, mutex, mutex, queued).await
}

async fn readers_go_on_or_their_loss_is_told(stage: &Stage) -> Outcome {
    let (read, write) = (
        |client: &LockClient| Ok(client.rw_lock(NAME)?.read()),
        |client: &LockClient| Ok(client.rw_lock(NAME)?.write()),
    );
    across_a_restart(stage, 2, read, write, queued).await
}

async fn permits_go_on_or_their_loss_is_told(stage: &Stage) -> Outcome {
    let slots = |client: &LockClient| Ok(client.semaphore(NAME, 5)?.permits(2)?);
    across_a_restart(stage, 2, slots, slots, async |_, client| {
        // No permit is granted past one that waits.
        let free = client.semaphore(NAME, 5)?.try_acquire(1).await?;
        Ok(usize::from(free.is_none()))
    })
    .await
}

async fn queued(stage: &Stage, client: &LockClient) -> Outcome<usize> {
    stage.harness().waiting_for(client, &LockName::new(NAME)?).await
}

/// Some hold the lock, and one that they exclude waits for it.
async fn across_a_restart(
    stage: &Stage,
    holders: usize,
    ours: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    theirs: impl Fn(&LockClient) -> Outcome<Arc<dyn DistributedLock>>,
    queued: impl AsyncFn(&Stage, &LockClient) -> Outcome<usize>,
) -> Outcome {
    let (client, other) = (stage.client().await?, stage.client().await?);
    let (lock, rival) = (ours(&client)?, theirs(&other)?);
    let recorder = EventRecorder::of(&lock);
    let mut guards = Vec::new();
    for _ in 0..holders {
        guards.push(lock.acquire().await?);
    }
    let mut waiter = ByHand::new(rival.acquire());
    ensure!(waiter.poll().is_none(), "a lock that is held was granted");
    let is_queued = || async { Ok(queued(stage, &client).await.is_ok_and(|count| count == 1)) };
    stage.until("the waiter is in the queue", is_queued).await?;
    stage.harness().change_server(ServerChange::Restart).await?;
    if stage.harness().after_a_restart() != AfterRestart::Nothing {
        let decided = recorder.has(|event| matches!(event, Event::Restored | Event::Abort(..)).then_some(()));
        stage.soon("on_restored or on_abort", decided).await?;
        ensure!(recorder.count(|event| *event == Event::Suspect) > 0, "{:?}", recorder.events());
        stage.until("another client's contact", || async { Ok(other.ping().await.is_ok()) }).await?;
        ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "lost: {:?}", recorder.events());
        ensure!(waiter.poll().is_none(), "granted beside those that hold it");
        let tokens: Vec<_> = guards.iter().map(LockGuard::token).collect();
        release_all(guards).await?;
        let next = stage.soon("the waiter's turn", waiter.finish()).await??;
        let rises = tokens.iter().all(|token| next.token() > *token);
        ensure!(rises || !has_tokens(&client), "{tokens:?} were followed by {:?}", next.token());
        ensure!(recorder.aborts() == 0, "{:?}", recorder.events());
        return Ok(next.release().await?);
    }
    let mut next = stage.soon("the waiter's turn", waiter.finish()).await??;
    // The processes of a server that is killed end one after the other, and the last one may have granted what the first has freed.
    let mut held = client.status(NAME).await?.holders;
    if let Ok(slots) = client.semaphore(NAME, 5) {
        held.extend(slots.status().await?.holders);
    }
    if !held.iter().any(|holder| holder.id == next.hold().id()) {
        let reason = stage.loss(next.hold()).await?;
        ensure!(reason == LossReason::ConnectionLost, "what no server has was lost because {reason}");
        next = stage.soon("the waiter's next turn", rival.acquire()).await??;
    }
    stage.until("the losses are told", || async { Ok(recorder.aborts() == holders) }).await?;
    for guard in guards {
        let reason = stage.loss(guard.hold()).await?;
        ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
        let rises = next.token() > guard.token();
        ensure!(rises || !has_tokens(&client), "{:?} was followed by {:?}", guard.token(), next.token());
        let kind = guard.release().await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    }
    stage.soon("the undoing", client.idle()).await?;
    ensure!(recorder.aborts() == holders, "{:?}", recorder.events());
    ensure!(next.hold().is_valid(), "the next one has ended as well: {:?}", next.hold());
    next.release().await?;
    Ok(stage.soon("the lock", lock.acquire()).await??.release().await?)
}

/// Those who wait are served one after the other, in their order if the server knows it.
async fn those_who_wait_are_served(stage: &Stage) -> Outcome {
    let (holder, ours, theirs) = (stage.client().await?, stage.client().await?, stage.client().await?);
    let held = holder.mutex(NAME)?.acquire().await?;
    let mut waiting = Vec::new();
    for (before, client) in [&ours, &theirs].into_iter().enumerate() {
        let lock = client.mutex(NAME)?;
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        stage.queued(&holder, NAME, before + 1).await?;
    }
    stage.harness().change_server(ServerChange::Restart).await?;
    let known = stage.harness().after_a_restart();
    if known != AfterRestart::Nothing {
        // A hand-off skips a waiter that has not reconnected.
        for client in [&holder, &ours, &theirs] {
            stage.until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
        }
        ensure!(held.hold().is_valid(), "lost: {:?}", held.hold().end());
        ensure!(waiting.iter().all(|waiter| !waiter.is_finished()), "granted beside the holder");
        stage.soon("the release", held.release()).await??;
    }
    let served = stage.soon("one of them", async {
        let (first, others) = waiting.split_at_mut(1);
        tokio::select! {
            guard = &mut first[0] => (0, guard),
            guard = &mut others[0] => (1, guard),
        }
    });
    let (place, guard) = served.await?;
    ensure!(known != AfterRestart::Locks || place == 0, "the second was served first");
    let last = waiting.swap_remove(1 - place);
    ensure!(!last.is_finished(), "both hold");
    guard??.release().await?;
    Ok(stage.soon("the last one", last).await???.release().await?)
}
