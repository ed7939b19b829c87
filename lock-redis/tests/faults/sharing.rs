//! Faults of those that hold a lock together, and of those that wait for them: each fault ends its own hold alone.

use conformance_tests::{Failure, Outcome};
use lock_core::{LossReason, Operation};
use test_servers::{Data, Direction};

use crate::case::{cases, ensure};
use crate::helper::Helper;
use crate::stage::{
    FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, key, outlast, read_side, soon, with_options,
};

cases!("sharing":
    a_killed_reader_keeps_writers_out_until_its_lease_ends_and_no_longer,
    a_killed_writer_at_the_head_lets_the_readers_behind_it_in,
    a_reader_that_stood_still_across_its_grant_does_not_believe_in_it,
    a_restart_without_its_data_is_reported_to_each_reader,
    a_request_of_a_reader_that_arrives_late_takes_nothing,
    a_deleted_key_is_reported_to_each_reader,
    a_renewal_tells_the_reader_that_is_lost_and_no_other,
    a_broken_reader_is_notified_alone_and_at_once,
    many_readers_are_renewed,
    a_newer_layout_is_refused,
);

/// How many hold or wait in the queue of the lock `ROOM`.
async fn listed(stage: &Stage, count: i64) -> Outcome {
    stage.queued(count).await
}

/// The writer asks when the lease ends: its next heartbeat would be more than a minute away.
async fn a_killed_reader_keeps_writers_out_until_its_lease_ends_and_no_longer() -> Outcome {
    let stage = Stage::new().await?;
    let mut reader = Helper::start_reader(&with_options(&stage.server.url(), "lease=3s"), ROOM).await?;
    reader.acquired().await?;
    let client = stage.client(LONG).await?;
    let beside = read_side(&client)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    listed(&stage, 3).await?;
    reader.kill().await?;
    beside.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}

/// A renewal of the holder lets them in, at the latest.
async fn a_killed_writer_at_the_head_lets_the_readers_behind_it_in() -> Outcome {
    let stage = Stage::new().await?;
    let (client, time) = stage.frozen(FROZEN).await?;
    let reader = read_side(&client)?.acquire().await?;
    let mut writer = Helper::start(&with_options(&stage.server.url(), LONG), ROOM).await?;
    listed(&stage, 2).await?;
    let waiter = Waiter::start(read_side(&stage.client(LONG).await?)?);
    listed(&stage, 3).await?;
    writer.kill().await?;
    time.advance(INTERVAL);
    let (beside, _) = waiter.granted().await?;
    ensure!(reader.hold().is_valid() && beside.hold().is_valid(), "a reader is not valid");
    Ok(())
}

async fn a_reader_that_stood_still_across_its_grant_does_not_believe_in_it() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let held = client.mutex(ROOM)?.acquire().await?;
    let mut sleeper = Helper::start_reader(&with_options(&stage.server.url(), "lease=2s"), ROOM).await?;
    listed(&stage, 1).await?;
    sleeper.stop().await?;
    held.release().await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    sleeper.resume().await?;
    listed(&stage, 1).await?;
    ensure!(guard.hold().is_valid(), "the hold of the one who was awake has ended");
    guard.release().await?;
    sleeper.acquired().await
}

async fn a_restart_without_its_data_is_reported_to_each_reader() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=20s").await?;
    let lock = read_side(&client)?;
    let guards = [lock.acquire().await?, lock.acquire().await?];
    stage.server.restart(Data::Lost).await?;
    for guard in &guards {
        let reason = soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::Deleted), "lost because {reason:?}");
    }
    let again = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    ensure!(guards.iter().all(|guard| guard.token() < again.token()), "the token fell");
    Ok(again.release().await?)
}

/// The attempt is undone over a new connection before its request arrives.
async fn a_request_of_a_reader_that_arrives_late_takes_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=300ms").await?;
    let lock = read_side(&client)?;
    proxy.blackhole(Direction::ToServer);
    let tried = soon("the answer", lock.try_acquire()).await?;
    ensure!(tried.is_err(), "answered by a server that was not reached");
    proxy.heal();
    soon("the undoing", client.idle()).await?;
    let writer = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
    writer.release().await?;
    stage.nothing_is_left("after the release").await
}

async fn a_deleted_key_is_reported_to_each_reader() -> Outcome {
    for parts in [&['q'][..], &['q', 'w'], &['q', 'w', 'f']] {
        let stage = Stage::new().await?;
        let client = stage.client("lease=12s").await?;
        let lock = read_side(&client)?;
        let guards = [lock.acquire().await?, lock.acquire().await?];
        for part in parts {
            stage.server.command(&["DEL", &key(ROOM, *part)]).await?;
        }
        for guard in &guards {
            let reason = soon("the loss", guard.lost()).await?;
            ensure!(reason == Some(LossReason::Deleted), "lost because {reason:?}");
        }
        let writer = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        ensure!(guards.iter().all(|guard| guard.token() < writer.token()), "the token fell");
        writer.release().await?;
        drop(guards);
        client.idle().await;
        stage.nothing_is_left("after all of them").await?;
    }
    Ok(())
}

/// One call renews both.
async fn a_renewal_tells_the_reader_that_is_lost_and_no_other() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=8s").await?;
    let lock = read_side(&client)?;
    let (lost, other) = (lock.acquire().await?, lock.acquire().await?);
    stage.server.command(&["ZREM", &key(ROOM, 'q'), lost.hold().id().as_str()]).await?;
    let reason = soon("the loss", lost.lost()).await?;
    ensure!(reason == Some(LossReason::Deleted), "lost because {reason:?}");
    ensure!(other.hold().is_valid(), "the other reader was lost with it");
    Ok(other.release().await?)
}

/// By a message: no renewal is due.
async fn a_broken_reader_is_notified_alone_and_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let ((client, _), operator) = (stage.frozen(FROZEN).await?, stage.client(LONG).await?);
    let lock = read_side(&client)?;
    let guards = [lock.acquire().await?, lock.acquire().await?, lock.acquire().await?];
    for guard in &guards[..2] {
        operator.break_holder(ROOM, &guard.hold().id()).await?;
        let reason = soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::Broken), "lost because {reason:?}");
    }
    ensure!(guards[2].hold().is_valid(), "another reader was lost with them");
    let holders = operator.status(ROOM).await?.holders;
    ensure!(holders.len() == 1 && holders[0].id == guards[2].hold().id(), "{holders:?}");
    Ok(())
}

/// One call each, as many as there are, and no more.
async fn many_readers_are_renewed() -> Outcome {
    const READERS: usize = 250;
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), FROZEN).await?;
    let lock = read_side(&client)?;
    let mut guards = Vec::new();
    for _ in 0..READERS {
        guards.push(lock.acquire().await?);
    }
    let before = proxy.requests(Operation::Renew);
    let times = std::cell::Cell::new(0);
    outlast(&time, INTERVAL, &guards, async || {
        times.set(times.get() + READERS as u64);
        Ok(())
    })
    .await?;
    let renewals = proxy.requests(Operation::Renew) - before;
    ensure!(renewals == times.get(), "{renewals} calls renewed {READERS} readers, and not {}", times.get());
    drop(guards);
    soon("the releases", client.idle()).await?;
    stage.nothing_is_left("after the releases").await
}

async fn a_newer_layout_is_refused() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for (part, text) in [('l', "id v2 somewhere else"), ('f', "v2 12")] {
        stage.server.command(&["SET", &key(ROOM, part), text]).await?;
        for lock in [client.mutex(ROOM)?, read_side(&client)?] {
            for answer in
                [lock.try_acquire().await.map(drop), soon("the refusal", lock.acquire()).await?.map(drop)]
            {
                let Err(error) = answer else {
                    return Err(Failure::new("a newer layout was taken for ours"));
                };
                let text = error.to_string();
                ensure!(error.kind() == lock_core::ErrorKind::Unsupported, "the kind is {:?}", error.kind());
                ensure!(text.contains("layout 2") && text.contains("newer version"), "{text}");
            }
        }
        ensure!(client.status(ROOM).await.is_err(), "a newer layout was shown as ours");
        stage.server.command(&["DEL", &key(ROOM, part)]).await?;
    }
    stage.works(&client).await
}
