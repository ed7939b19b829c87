//! Permits of a semaphore: what each fault does to one holder or waiter and to the others.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient, LockGuard, LossReason, Semaphore};
use test_servers::{NodeKind, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    BY_THE_END_OF_A_SESSION, IMPATIENT, LONG, LOSSES, NO_LONGER_NEW, ROOM, Stage, Waiter, refusal, soon,
    until,
};

cases!("permits":
    a_creation_that_is_lost_takes_permits_once,
    a_holder_whose_session_ends_is_notified_and_the_others_stay,
    one_of_several_permits_that_is_deleted_is_the_loss_of_all,
    a_waiter_whose_place_is_deleted_begins_anew,
    the_head_of_the_queue_whose_permits_are_deleted_begins_anew,
    a_refused_try_is_not_shown_as_a_holder,
    a_wait_that_ends_names_the_holder,
    a_newer_layout_is_refused,
    more_than_a_session_can_watch_are_refused,
    what_permits_cost,
);

const SIZE: u32 = 3;

fn slots(client: &LockClient) -> Outcome<Semaphore> {
    Ok(client.semaphore(ROOM, SIZE)?)
}

/// The paths of the nodes in `leases` or `locks`, in order.
async fn paths(stage: &Stage, part: &str) -> Outcome<Vec<String>> {
    let directory = format!("{}/{part}", stage.directory(ROOM));
    let names = stage.server.children(&directory).await?.unwrap_or_default();
    Ok(names.into_iter().map(|name| format!("{directory}/{name}")).collect())
}

/// The session of the first permit.
async fn session_of_first(stage: &Stage) -> Outcome<i64> {
    let node = stage.server.node(&paths(stage, "leases").await?[0]).await?;
    node.and_then(|node| node.session).ok_or_else(|| Failure::new("it has no session"))
}

async fn are(stage: &Stage, part: &str, count: usize) -> Outcome {
    until(&format!("{count} {part}"), || async { Ok(paths(stage, part).await?.len() == count) }).await
}

async fn waiting(stage: &Stage, client: &LockClient, take: u32, places: usize) -> Outcome<Waiter> {
    let waiter = Waiter::start(slots(client)?.permits(take)?);
    are(stage, "locks", places).await?;
    Ok(waiter)
}

/// The other holder, with one permit, stays; then all permits are free.
async fn the_other_stays(stage: &Stage, other: &LockClient, guard: LockGuard) -> Outcome {
    are(stage, "leases", 1).await?;
    ensure!(slots(other)?.try_acquire(SIZE).await?.is_none(), "a permit was given twice");
    ensure!(guard.hold().is_valid(), "the other holder was lost with it");
    guard.release().await?;
    soon("all permits", slots(other)?.acquire(SIZE)).await??.release().await?;
    Ok(())
}

async fn a_creation_that_is_lost_takes_permits_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) = (stage.client_at(proxy.address(), IMPATIENT).await?, stage.client(LONG).await?);
    let slots_of_ours = slots(&client)?;
    for loss in LOSSES {
        let beside = soon("a permit", slots(&other)?.acquire(1)).await??;
        loss.of_next(&proxy, ZooKeeperRequest::Create);
        let guard = soon("the permits", slots_of_ours.acquire(2)).await??;
        let leases = paths(&stage, "leases").await?;
        ensure!(leases.len() == 3, "{loss:?}: {leases:?}");
        guard.release().await?;
        the_other_stays(&stage, &other, beside).await?;
    }
    Ok(())
}

async fn a_holder_whose_session_ends_is_notified_and_the_others_stay() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = slots(&client)?.permits(2)?;
    let recorder = EventRecorder::of(&lock);
    let (guard, beside) = (lock.acquire().await?, slots(&other)?.acquire(1).await?);
    stage.server.close_session(session_of_first(&stage).await?).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(BY_THE_END_OF_A_SESSION.contains(&reason), "{reason:?}");
    drop(guard);
    the_other_stays(&stage, &other, beside).await
}

async fn one_of_several_permits_that_is_deleted_is_the_loss_of_all() -> Outcome {
    let stage = Stage::new().await?;
    let ((client, time), other) = (stage.frozen(LONG).await?, stage.client(LONG).await?);
    let lock = slots(&client)?.permits(2)?;
    for (number, is_new) in [(0, true), (0, false), (1, true), (1, false)] {
        let recorder = EventRecorder::of(&lock);
        let (guard, beside) = (lock.acquire().await?, slots(&other)?.acquire(1).await?);
        let permit = paths(&stage, "leases").await?.swap_remove(number);
        if !is_new {
            time.advance(NO_LONGER_NEW);
            stage.is_watched(std::slice::from_ref(&permit), session_of_first(&stage).await?).await?;
        }
        stage.server.delete(&permit).await?;
        if is_new {
            time.advance(NO_LONGER_NEW);
        }
        let (reason, _) = recorder.abort().await?;
        ensure!(reason == LossReason::Deleted, "{reason:?}");
        drop(guard);
        the_other_stays(&stage, &other, beside).await?;
    }
    Ok(())
}

async fn a_waiter_whose_place_is_deleted_begins_anew() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let third = stage.client(LONG).await?;
    let guard = slots(&first)?.acquire(SIZE).await?;
    let unlucky = waiting(&stage, &second, 2, 1).await?;
    // The head has created its permits.
    are(&stage, "leases", 5).await?;
    let lucky = waiting(&stage, &third, 2, 2).await?;
    let place = paths(&stage, "locks").await?.swap_remove(0);
    stage.server.delete(&place).await?;
    until("it is in the queue again", || async {
        let places = paths(&stage, "locks").await?;
        Ok(places.len() == 2 && !places.contains(&place))
    })
    .await?;
    are(&stage, "leases", 5).await?;
    guard.release().await?;
    let (guard, _) = lucky.granted().await?;
    ensure!(!unlucky.is_finished(), "a fourth permit");
    guard.release().await?;
    let (guard, _) = unlucky.granted().await?;
    Ok(guard.release().await?)
}

async fn the_head_of_the_queue_whose_permits_are_deleted_begins_anew() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = slots(&first)?.acquire(2).await?;
    let waiter = waiting(&stage, &second, 2, 1).await?;
    are(&stage, "leases", 4).await?;
    let before = paths(&stage, "leases").await?;
    stage.server.delete(&before[3]).await?;
    until("it has others", || async {
        let leases = paths(&stage, "leases").await?;
        Ok(leases.len() == 4 && !leases.contains(&before[2]))
    })
    .await?;
    ensure!(!waiter.is_finished(), "a fourth permit");
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    are(&stage, "leases", 0).await?;
    are(&stage, "locks", 0).await
}

/// Its nodes are there until it has removed them.
async fn a_refused_try_is_not_shown_as_a_holder() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let slots = slots(&client)?;
    let guard = slots.acquire(2).await?;
    let path = format!("{}/leases/_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-of3-lease-", stage.directory(ROOM));
    for _ in 0..2 {
        stage.server.create(&path, b"", NodeKind::Numbered).await?;
    }
    let status = slots.status().await?;
    ensure!(status.holders.len() == 1 && status.waiters.is_empty(), "{status:?}");
    ensure!(status.holders[0].token == guard.token(), "{status:?}");
    Ok(guard.release().await?)
}

async fn a_newer_layout_is_refused() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let name = "_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-v2-of3-lease-";
    let path = format!("{}/leases/{name}", stage.directory(ROOM));
    let newer = stage.server.create(&path, b"", NodeKind::Numbered).await?;
    let slots = slots(&client)?;
    let tried = refusal(soon("the answer to a try", slots.try_acquire(1)).await?.map(drop))?;
    let waited = refusal(soon("the answer to a wait", slots.acquire(1)).await?.map(drop))?;
    let looked = refusal(slots.status().await)?;
    for error in [tried, waited, looked] {
        ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
        ensure!(error.to_string().contains(name) && error.to_string().contains("newer"), "{error}");
    }
    soon("the undoing", client.idle()).await?;
    are(&stage, "leases", 1).await?;
    stage.server.delete(&newer).await?;
    soon("a permit", slots.acquire(1)).await??.release().await?;
    Ok(())
}

async fn more_than_a_session_can_watch_are_refused() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let slots = client.semaphore(ROOM, 1_000)?;
    let all = soon("as many as one attempt takes", slots.acquire(256)).await??;
    ensure!(paths(&stage, "leases").await?.len() == 256, "not one node for each");
    all.release().await?;
    are(&stage, "leases", 0).await?;
    let long = client.semaphore("long-".repeat(100), 1_000)?;
    let refused = [
        (slots.acquire(257).await, ErrorKind::Unsupported),
        (long.acquire(256).await, ErrorKind::InvalidOption),
    ];
    for (answer, kind) in refused {
        let error = refusal(answer.map(drop))?;
        ensure!(error.kind() == kind, "{error:?}");
    }
    soon("some", long.acquire(100)).await??.release().await?;
    Ok(())
}

/// Also one that waits in the queue, where those before it hold nothing.
async fn a_wait_that_ends_names_the_holder() -> Outcome {
    let stage = Stage::new().await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?];
    let held = slots(&clients[0])?.acquire(2).await?;
    let next = waiting(&stage, &clients[1], SIZE, 1).await?;
    let permit = slots(&clients[2])?.permits(1)?;
    for patience in [Duration::ZERO, Duration::from_secs(10)] {
        let error = refusal(soon("the answer", permit.acquire_for(patience)).await?.map(drop))?;
        let named = error.holder().map(|holder| &holder.id);
        ensure!(error.kind() == ErrorKind::Busy && named == Some(&held.hold().id()), "{error:?}");
    }
    held.release().await?;
    let (guard, _) = next.granted().await?;
    Ok(guard.release().await?)
}

async fn what_permits_cost() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) = (stage.client_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let slots_of_ours = slots(&client)?;
    slots_of_ours.acquire(1).await?.release().await?;
    let kinds = [
        ZooKeeperRequest::Create,
        ZooKeeperRequest::Delete,
        ZooKeeperRequest::List,
        ZooKeeperRequest::ReadMany,
        ZooKeeperRequest::Change,
    ];
    let counts = || kinds.map(|kind| proxy.requests(kind));
    let spent = |before: [u64; 5]| -> Vec<u64> {
        counts().iter().zip(before).map(|(now, before)| now - before).collect()
    };
    let before = counts();
    for _ in 0..20 {
        slots_of_ours.acquire(2).await?.release().await?;
    }
    ensure!(spent(before) == [20, 20, 0, 0, 0], "alone: {kinds:?} {:?}", spent(before));
    let beside = slots(&other)?.acquire(1).await?;
    let before = counts();
    for _ in 0..20 {
        slots_of_ours.acquire(2).await?.release().await?;
    }
    ensure!(spent(before) == [20, 20, 20, 0, 0], "beside another: {kinds:?} {:?}", spent(before));
    Ok(beside.release().await?)
}
