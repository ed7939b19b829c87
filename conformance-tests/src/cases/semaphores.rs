//! Cases: semaphores. Weights are all or nothing, never above the number of permits, in the order of arrival.

use std::time::Duration;

use crate::{Failure, Outcome, ensure};
use lock_core::{ErrorKind, LockGuard, Mode, Semaphore};

use super::cancellation::drop_at_every_poll;
use super::exclusion::release_all;
use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::history::{Share, excess};
use crate::probe::ByHand;
use crate::stage::{Stage, within};
use crate::worker::stamp;

cases!("semaphores":
    no_more_permits_are_held_than_there_are [Need::Permits],
    several_permits_are_had_all_or_nothing_and_in_order [Need::Permits, Need::Order, Need::Holder],
    waiters_of_one_client_are_served_in_order [Need::Permits, Need::Order],
    one_that_gives_up_lets_those_behind_it_in [Need::Permits, Need::Order, Need::Holder],
    another_number_of_permits_is_an_error_that_names_both [Need::Permits],
    more_permits_than_there_are_are_refused_at_once [Need::Permits],
    the_lock_of_that_name_is_another_thing [Need::Permits],
    waits_end_in_time [Need::Permits],
    one_holder_is_lost_and_the_others_stay [Need::Permits, Need::Breaking],
    permits_dropped_at_every_poll [Need::Permits],
    the_status_shows_weights_and_what_is_free [Need::Permits, Need::Holder],
    weights_are_never_above_the_number_in_contention [Need::Permits],
);

const NAME: &str = "render";

async fn semaphores(stage: &Stage, count: usize, size: u32) -> Outcome<Vec<Semaphore>> {
    let mut semaphores = Vec::new();
    for _ in 0..count {
        semaphores.push(stage.client().await?.semaphore(NAME, size)?);
    }
    Ok(semaphores)
}

async fn granted(slots: &Semaphore, take: u32) -> Outcome<LockGuard> {
    let guard = slots.try_acquire(take).await?;
    guard.ok_or_else(|| Failure::new(format!("{take} of {} permits were refused", slots.size())))
}

async fn refused(slots: &Semaphore, take: u32) -> Outcome {
    ensure!(slots.try_acquire(take).await?.is_none(), "{take} permits were granted");
    Ok(())
}

/// Waits until the semaphore has so many waiters at the server.
async fn queued(stage: &Stage, slots: &Semaphore, count: usize) -> Outcome {
    let waiting = || async { Ok(slots.status().await?.waiters.len() == count) };
    stage.until(&format!("{count} waiters"), waiting).await
}

async fn waiting(
    stage: &Stage,
    slots: &Semaphore,
    take: u32,
    count: usize,
) -> Outcome<ByHand<impl Future<Output = Outcome<LockGuard>> + use<>>> {
    let waits = slots.clone();
    let mut waiter = ByHand::new(async move { Ok(waits.acquire(take).await?) });
    ensure!(waiter.poll().is_none(), "{take} permits were granted");
    queued(stage, slots, count).await?;
    Ok(waiter)
}

async fn no_more_permits_are_held_than_there_are(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 2, 5).await?;
    let (two, three) = (granted(&slots[0], 2).await?, granted(&slots[1], 3).await?);
    for slots in &slots {
        refused(slots, 1).await?;
    }
    two.release().await?;
    refused(&slots[1], 3).await?;
    let one = granted(&slots[1], 1).await?;
    let another = granted(&slots[0], 1).await?;
    refused(&slots[0], 1).await?;
    release_all([three, one, another]).await?;
    granted(&slots[1], 5).await?.release().await?;
    Ok(())
}

async fn several_permits_are_had_all_or_nothing_and_in_order(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 4, 3).await?;
    let (one, other) = (granted(&slots[0], 1).await?, granted(&slots[0], 1).await?);
    let mut large = waiting(stage, &slots[1], 3, 1).await?;
    let mut small = waiting(stage, &slots[2], 1, 2).await?;
    refused(&slots[3], 1).await?;
    one.release().await?;
    ensure!(large.poll().is_none() && small.poll().is_none(), "served before all permits were free");
    let status = slots[0].status().await?;
    ensure!(status.waiters.len() == 2, "the waiters are {:?}", status.waiters);
    other.release().await?;
    let large = stage.soon("all permits", large.finish()).await??;
    ensure!(small.poll().is_none(), "a fourth permit was granted");
    large.release().await?;
    stage.soon("the permit", small.finish()).await??.release().await?;
    Ok(())
}

async fn waiters_of_one_client_are_served_in_order(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 1, 4).await?.swap_remove(0);
    let held = slots.acquire(4).await?;
    let mut waiters = Vec::new();
    for take in [2, 2, 4, 1, 3, 2] {
        let slots = slots.clone();
        let mut waiter = ByHand::new(async move { Outcome::Ok(slots.acquire(take).await?) });
        ensure!(waiter.poll().is_none(), "{take} permits were granted");
        waiters.push(waiter);
    }
    held.release().await?;
    let mut waiters = waiters.into_iter();
    for (group, size) in [2, 1, 2, 1].into_iter().enumerate() {
        let mut guards = Vec::new();
        for waiter in waiters.by_ref().take(size) {
            guards.push(stage.soon(&format!("the turn of group {group}"), waiter.finish()).await??);
        }
        let mut rest: Vec<_> = waiters.collect();
        for later in &mut rest {
            ensure!(later.poll().is_none(), "a later one was served with group {group}");
        }
        waiters = rest.into_iter();
        release_all(guards).await?;
    }
    Ok(())
}

async fn one_that_gives_up_lets_those_behind_it_in(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 3, 3).await?;
    let held = granted(&slots[0], 2).await?;
    let large = waiting(stage, &slots[1], 2, 1).await?;
    let small = waiting(stage, &slots[2], 1, 2).await?;
    drop(large);
    let small = stage.soon("the permit", small.finish()).await??;
    release_all([held, small]).await
}

async fn another_number_of_permits_is_an_error_that_names_both(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let held = ours.semaphore(NAME, 3)?.acquire(1).await?;
    for client in [&ours, &theirs] {
        for size in [2, 5] {
            let other = client.semaphore(NAME, size)?;
            for answer in [other.try_acquire(1).await.map(drop), other.acquire(1).await.map(drop)] {
                let Err(error) = answer else { return Err(Failure::new(format!("{size} permits, too"))) };
                let text = error.to_string();
                ensure!(error.kind() == ErrorKind::InvalidOption, "the kind is {:?}", error.kind());
                ensure!(text.contains('3') && text.contains(&size.to_string()), "{text} names not both");
            }
        }
    }
    held.release().await?;
    // The next one decides.
    theirs.semaphore(NAME, 5)?.acquire(5).await?.release().await?;
    Ok(())
}

async fn more_permits_than_there_are_are_refused_at_once(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 1, 3).await?.swap_remove(0);
    for take in [0, 4] {
        let kind = slots.acquire(take).await.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::InvalidOption), "{take} permits were answered {kind:?}");
    }
    Ok(())
}

async fn the_lock_of_that_name_is_another_thing(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let guard = ours.mutex(NAME)?.acquire().await?;
    let permits = granted(&theirs.semaphore(NAME, 2)?, 2).await?;
    refused(&ours.semaphore(NAME, 2)?, 1).await?;
    stage.is_held(&theirs, NAME).await?;
    guard.release().await?;
    stage.is_free(&theirs, NAME).await?;
    ensure!(permits.hold().is_valid(), "the permits ended with the lock");
    permits.release().await?;
    Ok(())
}

async fn waits_end_in_time(stage: &Stage) -> Outcome {
    const SHORT: Duration = Duration::from_millis(50);
    let slots = semaphores(stage, 2, 2).await?;
    let held = granted(&slots[0], 1).await?;
    for slots in &slots {
        let waited = refused_in_time(SHORT, |wait| slots.acquire_for(2, wait)).await;
        let kind = waited.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Busy), "the wait ended with {kind:?}");
    }
    let other = slots[1].acquire_for(1, stage.patience()).await?;
    release_all([held, other]).await
}

async fn one_holder_is_lost_and_the_others_stay(stage: &Stage) -> Outcome {
    // They learn of a loss at the next renewal, if not by a message.
    let slots = [stage.client().await?.semaphore(NAME, 3)?, stage.client().await?.semaphore(NAME, 3)?];
    let lost = granted(&slots[0], 2).await?;
    let other = granted(&slots[0], 1).await?;
    slots[1].break_holder(&lost.hold().id()).await?;
    stage.loss(lost.hold()).await?;
    ensure!(other.hold().is_valid(), "another holder was lost with it");
    drop(lost);
    let two = stage.soon("the permits that were lost", slots[1].acquire(2)).await??;
    refused(&slots[1], 1).await?;
    release_all([other, two]).await
}

/// A request that is on its way when its caller leaves may still get the permits, until the client has undone it.
async fn permits_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let (ours, theirs) = (stage.client().await?, stage.client().await?);
    let (slots, others) = (ours.semaphore(NAME, 3)?, theirs.semaphore(NAME, 3)?);
    let all_are_free = || async {
        stage.soon("all permits", others.acquire(3)).await??.release().await?;
        stage.soon("the undoing", ours.idle()).await
    };
    let make = || async { Ok(slots.acquire(2).await?) };
    drop_at_every_poll(stage, make, |guard| {
        drop(guard);
        all_are_free()
    })
    .await?;
    for polls in 0..4 {
        let held = granted(&others, 2).await?;
        let mut waiter = ByHand::new(slots.acquire(2));
        for _ in 0..polls {
            ensure!(waiter.poll().is_none(), "permits that are held were granted");
        }
        drop(waiter);
        held.release().await?;
        all_are_free().await?;
    }
    Ok(())
}

async fn the_status_shows_weights_and_what_is_free(stage: &Stage) -> Outcome {
    let slots = semaphores(stage, 2, 5).await?;
    ensure!(slots[0].status().await?.free_permits().is_none(), "a semaphore without users has a number");
    let held = granted(&slots[0], 3).await?;
    let waiter = waiting(stage, &slots[1], 4, 1).await?;
    let status = slots[1].status().await?;
    let takes = |mode: Mode| match mode {
        Mode::Permits { take, of } => (take.get(), of.get()),
        _ => (0, 0),
    };
    let holders: Vec<_> = status.holders.iter().map(|holder| takes(holder.mode)).collect();
    let waiters: Vec<_> = status.waiters.iter().map(|waiter| takes(waiter.mode)).collect();
    ensure!((&*holders, &*waiters) == (&[(3, 5)][..], &[(4, 5)][..]), "{holders:?} and {waiters:?}");
    ensure!(status.free_permits() == Some(2), "{:?} are free", status.free_permits());
    held.release().await?;
    stage.soon("the permits", waiter.finish()).await??.release().await?;
    Ok(())
}

async fn weights_are_never_above_the_number_in_contention(stage: &Stage) -> Outcome {
    const SIZE: u32 = 5;
    let slots = semaphores(stage, 3, SIZE).await?;
    let (rounds, patience) = (stage.rounds(40), stage.patience());
    let mut tasks = Vec::new();
    for number in 0..9_u32 {
        let slots = slots[number as usize % 3].clone();
        tasks.push(tokio::spawn(async move {
            let mut shares = Vec::new();
            for round in 0..rounds {
                let take = 1 + (number + round) % SIZE;
                let guard = within(patience, "a turn", slots.acquire(take)).await??;
                let (from, weight) = (stamp(), u64::from(take));
                tokio::task::yield_now().await;
                shares.push(Share { who: format!("{number}/{round}"), weight, from, until: stamp() });
                guard.release().await?;
            }
            Outcome::Ok(shares)
        }));
    }
    let mut shares = Vec::new();
    for task in tasks {
        shares.extend(task.await??);
    }
    excess(&shares, u64::from(SIZE)).map_or(Ok(()), |excess| Err(Failure::new(excess.to_string())))
}
