//! Faults of those that hold a lock together, and of those that wait for them: each fault ends its own hold alone.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{LockGuard, LossReason, Operation, Owner, Wait};
use test_servers::{Data, Direction, Losing};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::helper::Helper;
use crate::stage::{LONG, ROOM, Stage, Waiter, key, read_side, soon, until, with_options};

cases!("sharing":
    a_killed_reader_keeps_writers_out_until_its_lease_ends_and_no_longer,
    a_killed_writer_at_the_head_lets_the_readers_behind_it_in,
    a_reader_that_stood_still_across_its_grant_does_not_believe_in_it,
    a_silent_reader_is_lost_alone_and_in_time,
    a_silent_writer_at_the_head_lets_the_readers_behind_it_in,
    the_permits_of_a_silent_holder_come_back_when_its_lease_ends,
    a_broken_connection_costs_no_reader_its_hold,
    a_restart_without_its_data_is_reported_to_each_reader,
    lost_replies_leave_one_hold_each,
    a_downgrade_whose_reply_is_lost_happens_once,
    a_request_of_a_reader_that_arrives_late_takes_nothing,
    a_deleted_key_is_reported_to_each_reader,
    a_renewal_tells_the_reader_that_is_lost_and_no_other,
    a_broken_reader_is_notified_alone_and_at_once,
    many_readers_are_renewed_together,
    a_newer_layout_is_refused,
);

/// How much later than possible the server may grant the lock on a busy machine.
const LATE: Duration = Duration::from_millis(2500);

/// How many hold or wait in the queue of the lock `ROOM`.
async fn listed(stage: &Stage, count: i64) -> Outcome {
    stage.queued(count).await
}

async fn a_killed_reader_keeps_writers_out_until_its_lease_ends_and_no_longer() -> Outcome {
    let stage = Stage::new().await?;
    let mut reader = Helper::start_reader(&with_options(&stage.server.url(), "lease=3s"), ROOM).await?;
    reader.acquired().await?;
    let client = stage.client("lease=60s").await?;
    let beside = read_side(&client)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    listed(&stage, 3).await?;
    reader.kill().await?;
    let killed = Instant::now();
    beside.release().await?;
    let (guard, granted) = waiter.granted().await?;
    let took = granted.duration_since(killed);
    ensure!(took < Duration::from_secs(3) + LATE, "granted after {took:?}");
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}

/// A renewal of the holder lets them in, at the latest.
async fn a_killed_writer_at_the_head_lets_the_readers_behind_it_in() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=8s").await?;
    let reader = read_side(&client)?.acquire().await?;
    let mut writer = Helper::start(&with_options(&stage.server.url(), LONG), ROOM).await?;
    listed(&stage, 2).await?;
    let waiter = Waiter::start(read_side(&stage.client(LONG).await?)?);
    listed(&stage, 3).await?;
    writer.kill().await?;
    let killed = Instant::now();
    let (beside, granted) = waiter.granted().await?;
    let took = granted.duration_since(killed);
    ensure!(took < Duration::from_secs(2) + LATE, "granted after {took:?}");
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

/// Requests, replies, or both vanish: it stops before a writer enters, and the readers beside it do not notice.
async fn a_silent_reader_is_lost_alone_and_in_time() -> Outcome {
    for directions in
        [&[Direction::ToServer][..], &[Direction::ToClient], &[Direction::ToServer, Direction::ToClient]]
    {
        let stage = Stage::new().await?;
        let proxy = stage.proxy()?;
        let silent = stage.client_at(proxy.address(), "lease=3s").await?;
        let (beside, writer) = (stage.client("lease=9s").await?, stage.client(LONG).await?);
        let lock = read_side(&silent)?;
        let recorder = EventRecorder::of(&lock);
        let lost = lock.acquire().await?;
        let kept = read_side(&beside)?.acquire().await?;
        let waiter = Waiter::of(&writer)?;
        listed(&stage, 3).await?;
        for direction in directions {
            proxy.blackhole(*direction);
        }
        let (reason, told) = recorder.abort().await?;
        ensure!(reason == LossReason::Expired, "lost because {reason}");
        until("the server has removed it", || async {
            Ok(stage.number(&["ZCARD", &key(ROOM, 'q')]).await? == 2)
        })
        .await?;
        ensure!(kept.hold().is_valid() && !waiter.is_finished(), "the reader beside it has lost its hold");
        kept.release().await?;
        let (guard, granted) = waiter.granted().await?;
        ensure!(told < granted, "told {:?} after the writer's grant", told - granted);
        ensure!(!lost.hold().is_valid(), "it believes that it reads");
        proxy.heal();
        silent.idle().await;
        ensure!(guard.hold().is_valid(), "what the silent one sent ended the writer's hold");
        guard.release().await?;
    }
    Ok(())
}

/// Its host has fallen silent, its connection is open: those behind it enter at its deadline, although the lock is held.
async fn a_silent_writer_at_the_head_lets_the_readers_behind_it_in() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client(LONG).await?;
    let reader = read_side(&client)?.acquire().await?;
    let silent = stage.client_at(proxy.address(), "lease=3s").await?;
    let _writer = Waiter::of(&silent)?;
    listed(&stage, 2).await?;
    let waiter = Waiter::start(read_side(&stage.client(LONG).await?)?);
    listed(&stage, 3).await?;
    proxy.blackhole(Direction::ToServer);
    proxy.blackhole(Direction::ToClient);
    let since = Instant::now();
    let (beside, granted) = waiter.granted().await?;
    let took = granted.duration_since(since);
    ensure!(took < Duration::from_secs(3) + LATE, "granted after {took:?}");
    ensure!(reader.hold().is_valid(), "the first reader is not valid");
    beside.release().await?;
    reader.release().await.map_err(Failure::from)
}

async fn the_permits_of_a_silent_holder_come_back_when_its_lease_ends() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let silent = stage.client_at(proxy.address(), "lease=3s").await?;
    let client = stage.client(LONG).await?;
    let slots = client.semaphore(ROOM, 5)?;
    let kept = slots.acquire(1).await?;
    let lost = silent.semaphore(ROOM, 5)?.acquire(3).await?;
    let waiter = Waiter::start(slots.permits(2)?);
    until("it waits", || async { Ok(slots.status().await?.waiters.len() == 1) }).await?;
    proxy.blackhole(Direction::ToServer);
    let since = Instant::now();
    let (guard, granted) = waiter.granted().await?;
    ensure!(!lost.hold().is_valid(), "two have the same permits");
    ensure!(granted.duration_since(since) < Duration::from_secs(3) + LATE, "granted too late");
    ensure!(slots.status().await?.free_permits() == Some(2), "{:?}", slots.status().await?);
    guard.release().await?;
    kept.release().await?;
    proxy.heal();
    silent.idle().await;
    stage.nothing_is_left("after the releases").await
}

async fn a_broken_connection_costs_no_reader_its_hold() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=12s").await?;
    let lock = read_side(&client)?;
    let recorder = EventRecorder::of(&lock);
    let guards = [lock.acquire().await?, lock.acquire().await?];
    let permits = client.semaphore(ROOM, 3)?.acquire(2).await?;
    proxy.sever();
    recorder.suspect().await?;
    proxy.heal();
    recorder.restored().await?;
    let other = stage.client(LONG).await?;
    ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "a writer is beside readers");
    ensure!(other.semaphore(ROOM, 3)?.try_acquire(2).await?.is_none(), "four of three permits");
    ensure!(guards.iter().chain([&permits]).all(|guard| guard.hold().is_valid()), "one has ended");
    release_all(guards.into_iter().chain([permits])).await?;
    stage.nothing_is_left("after the releases").await
}

async fn release_all(guards: impl IntoIterator<Item = LockGuard>) -> Outcome {
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
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

async fn lost_replies_leave_one_hold_each() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=300ms").await?;
    let other = stage.client(LONG).await?;
    for way in [Losing::Cut, Losing::ResetHalfway, Losing::Silence] {
        proxy.lose_reply(Operation::Acquire, way);
        let guard = soon("the lock", read_side(&client)?.acquire()).await??;
        let permits = soon("the permits", client.semaphore(ROOM, 3)?.acquire(2)).await??;
        let holders = other.status(ROOM).await?.holders;
        ensure!(holders.len() == 1 && holders[0].token == guard.token(), "{way:?}: {holders:?}");
        proxy.lose_reply(Operation::Release, way);
        guard.release().await?;
        permits.release().await?;
        client.idle().await;
        stage.nothing_is_left(format_args!("{way:?}")).await?;
    }
    Ok(())
}

async fn a_downgrade_whose_reply_is_lost_happens_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=60s&timeout=300ms").await?;
    let other = stage.client(LONG).await?;
    let lock = client.rw_lock(ROOM)?;
    for way in [Losing::Cut, Losing::Silence] {
        let owner = Owner::new();
        let writer = lock.write().acquire_as(owner, Wait::Forever).await?;
        let writer = writer.ok_or_else(|| Failure::new("no writer"))?;
        let reader = lock.read().acquire_as(owner, Wait::Try).await?;
        let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
        proxy.lose_reply(Operation::Downgrade, way);
        soon("the end of the write side", writer.release()).await??;
        let beside = soon("a reader beside it", read_side(&other)?.acquire()).await??;
        ensure!(reader.hold().is_valid(), "{way:?}: the reader is not valid");
        ensure!(other.status(ROOM).await?.holders.len() == 2, "{way:?}: {:?}", other.status(ROOM).await?);
        release_all([reader, beside]).await?;
        client.idle().await;
        stage.nothing_is_left(format_args!("{way:?}")).await?;
    }
    Ok(())
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

/// By a message: the next renewal would be more than a minute away.
async fn a_broken_reader_is_notified_alone_and_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let (client, operator) = (stage.client(LONG).await?, stage.client(LONG).await?);
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

/// One call renews those of a name that are in one group.
async fn many_readers_are_renewed_together() -> Outcome {
    const READERS: usize = 250;
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), "lease=8s").await?;
    let lock = read_side(&client)?;
    let mut guards = Vec::new();
    for _ in 0..READERS {
        guards.push(lock.acquire().await?);
    }
    let before = proxy.requests(Operation::Renew);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let renewals = proxy.requests(Operation::Renew) - before;
    ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "one was not renewed");
    ensure!((3..100).contains(&renewals), "{renewals} calls renewed {READERS} readers");
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
