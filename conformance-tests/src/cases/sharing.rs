//! Cases: read-write locks. Readers hold a lock beside each other, a writer alone, in the order of arrival.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{Failure, Outcome, ensure};
use lock_core::{DistributedLock, ErrorKind, LockClient, LockGuard, Mode, Operation, Owner, RwLock};

use super::cancellation::drop_at_every_poll;
use super::exclusion::release_all;
use super::waiting::refused_in_time;
use crate::case::{Need, cases};
use crate::harness::{Ability, AfterRestart, Losing};
use crate::history::{Share, excess};
use crate::probe::{ByHand, EventRecorder};
use crate::stage::{Stage, has_tokens, within};
use crate::worker::stamp;

cases!("sharing":
    readers_are_beside_each_other_and_no_writer_is [Need::Sharing],
    a_writer_is_alone [Need::Sharing],
    the_mutex_is_the_write_side [Need::Sharing],
    a_reader_waits_behind_a_writer_that_waits [Need::Sharing, Need::Order],
    neighbours_that_read_enter_together [Need::Sharing, Need::Order],
    readers_and_writers_of_one_client_are_served_in_order [Need::Sharing, Need::Order],
    a_writer_that_gives_up_lets_those_behind_it_in [Need::Sharing, Need::Order],
    a_reader_enters_again_before_a_writer_that_waits [Need::Sharing],
    a_writer_that_reads_goes_on_reading [Need::Sharing],
    no_writer_comes_between_writing_and_reading [Need::Sharing, Need::Order],
    a_reader_cannot_become_a_writer [Need::Sharing],
    waits_end_in_time [Need::Sharing],
    one_reader_is_lost_and_the_others_stay [Need::Sharing, Need::Breaking],
    a_writer_that_is_lost_takes_its_reader_along [Need::Sharing, Need::Breaking],
    a_read_dropped_at_every_poll [Need::Sharing],
    a_read_dropped_at_every_poll_while_another_writes [Need::Sharing],
    a_downgrade_dropped_at_every_poll [Need::Sharing],
    a_downgrade_whose_reply_is_lost_lets_no_writer_in [Need::Sharing, Need::Ability(Ability::LostReplies)],
    the_status_shows_who_shares [Need::Sharing, Need::Holder],
    no_reader_is_beside_a_writer_in_contention [Need::Sharing],
);

const NAME: &str = "catalog";

type Lock = Arc<dyn DistributedLock>;

/// Several clients of the same lock.
async fn clients(stage: &Stage, count: usize) -> Outcome<Vec<(LockClient, RwLock)>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let client = stage.client().await?;
        let lock = client.rw_lock(NAME)?;
        clients.push((client, lock));
    }
    Ok(clients)
}

async fn is_refused(lock: &Lock, what: &str) -> Outcome {
    ensure!(lock.try_acquire().await?.is_none(), "{what} was granted");
    Ok(())
}

async fn is_granted(lock: &Lock, what: &str) -> Outcome<LockGuard> {
    lock.try_acquire().await?.ok_or_else(|| Failure::new(format!("{what} was refused")))
}

/// Begins to wait, and returns when the server has `count` waiters.
async fn waiting(
    stage: &Stage,
    observer: &LockClient,
    lock: Lock,
    count: usize,
) -> Outcome<ByHand<impl Future<Output = Outcome<LockGuard>> + use<>>> {
    let mut waiter = ByHand::new(async move { Ok(lock.acquire().await?) });
    ensure!(waiter.poll().is_none(), "it was granted beside holders or waiters");
    stage.queued(observer, NAME, count).await?;
    Ok(waiter)
}

async fn served<F: Future<Output = Outcome<LockGuard>>>(
    stage: &Stage,
    what: &str,
    waiter: ByHand<F>,
) -> Outcome<LockGuard> {
    stage.soon(what, waiter.finish()).await?
}

async fn readers_are_beside_each_other_and_no_writer_is(stage: &Stage) -> Outcome {
    let clients = clients(stage, 3).await?;
    let mut readers = Vec::new();
    for number in 0..9 {
        let guard = is_granted(&clients[number % 3].1.read(), "a reader beside readers").await?;
        ensure!(guard.hold().mode() == Mode::Shared, "it is held {}", guard.hold().mode());
        readers.push(guard);
    }
    while let Some(reader) = readers.pop() {
        for (_, lock) in &clients {
            is_refused(&lock.write(), "a writer beside readers").await?;
        }
        ensure!(reader.hold().is_valid(), "a reader is not valid");
        reader.release().await?;
    }
    is_granted(&clients[0].1.write(), "a writer after the readers").await?.release().await?;
    Ok(())
}

async fn a_writer_is_alone(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let writer = is_granted(&clients[0].1.write(), "a writer").await?;
    ensure!(writer.hold().mode() == Mode::Exclusive, "it is held {}", writer.hold().mode());
    for (_, lock) in &clients {
        is_refused(&lock.read(), "a reader beside a writer").await?;
        is_refused(&lock.write(), "a writer beside a writer").await?;
    }
    writer.release().await?;
    is_granted(&clients[1].1.read(), "a reader after the writer").await?.release().await?;
    Ok(())
}

async fn the_mutex_is_the_write_side(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    for (client, _) in &clients {
        let guard = client.mutex(NAME)?.acquire().await?;
        is_refused(&clients[0].1.read(), "a reader beside the owner of the mutex").await?;
        guard.release().await?;
        let reader = is_granted(&clients[0].1.read(), "a reader").await?;
        is_refused(&client.mutex(NAME)?, "the mutex beside a reader").await?;
        reader.release().await?;
    }
    Ok(())
}

async fn a_reader_waits_behind_a_writer_that_waits(stage: &Stage) -> Outcome {
    let clients = clients(stage, 3).await?;
    let observer = &clients[0].0;
    let first = clients[0].1.read().acquire().await?;
    let writer = waiting(stage, observer, clients[1].1.write(), 1).await?;
    for (_, lock) in &clients {
        is_refused(&lock.read(), "a reader before a writer that waits").await?;
    }
    let mut last = waiting(stage, observer, clients[2].1.read(), 2).await?;
    first.release().await?;
    let writer = served(stage, "the writer's turn", writer).await?;
    ensure!(last.poll().is_none(), "the reader was served with the writer before it");
    writer.release().await?;
    served(stage, "the last reader's turn", last).await?.release().await?;
    Ok(())
}

async fn neighbours_that_read_enter_together(stage: &Stage) -> Outcome {
    let clients = clients(stage, 6).await?;
    let observer = &clients[0].0;
    let held = clients[0].1.write().acquire().await?;
    let mut neighbours = Vec::new();
    for (before, (_, lock)) in clients[1..4].iter().enumerate() {
        neighbours.push(waiting(stage, observer, lock.read(), before + 1).await?);
    }
    let mut writer = waiting(stage, observer, clients[4].1.write(), 4).await?;
    let mut last = waiting(stage, observer, clients[5].1.read(), 5).await?;
    held.release().await?;
    let mut readers = Vec::new();
    for neighbour in neighbours {
        readers.push(served(stage, "a neighbour's turn", neighbour).await?);
    }
    ensure!(readers.iter().all(|reader| reader.hold().is_valid()), "a neighbour is not valid");
    ensure!(writer.poll().is_none() && last.poll().is_none(), "those behind were served, too");
    release_all(readers).await?;
    let writer = served(stage, "the writer's turn", writer).await?;
    ensure!(last.poll().is_none(), "the last reader was served with the writer");
    writer.release().await?;
    served(stage, "the last reader's turn", last).await?.release().await?;
    Ok(())
}

async fn readers_and_writers_of_one_client_are_served_in_order(stage: &Stage) -> Outcome {
    let (client, lock) = clients(stage, 1).await?.swap_remove(0);
    let held = lock.write().acquire().await?;
    let sides = [lock.read(), lock.read(), lock.write(), lock.write(), lock.read(), lock.write()];
    let mut waiters: Vec<_> = Vec::new();
    for side in sides {
        let mut waiter = ByHand::new(async move { Outcome::Ok(side.acquire().await?) });
        ensure!(waiter.poll().is_none(), "it was granted beside a writer");
        waiters.push(waiter);
    }
    held.release().await?;
    let mut waiters = waiters.into_iter();
    for (group, size) in [2, 1, 1, 1, 1].into_iter().enumerate() {
        let mut guards = Vec::new();
        for waiter in waiters.by_ref().take(size) {
            guards.push(served(stage, &format!("the turn of group {group}"), waiter).await?);
        }
        ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "group {group} is not together");
        let mut rest: Vec<_> = waiters.collect();
        for later in &mut rest {
            ensure!(later.poll().is_none(), "a later one was served with group {group}");
        }
        waiters = rest.into_iter();
        release_all(guards).await?;
    }
    stage.is_free(&client, NAME).await
}

/// Nothing but the writer was in the way of the reader behind it, so this must not take until a lease ends.
async fn a_writer_that_gives_up_lets_those_behind_it_in(stage: &Stage) -> Outcome {
    let clients = clients(stage, 3).await?;
    let observer = &clients[0].0;
    let first = clients[0].1.read().acquire().await?;
    let writer = waiting(stage, observer, clients[1].1.write(), 1).await?;
    let reader = waiting(stage, observer, clients[2].1.read(), 2).await?;
    let since = Instant::now();
    drop(writer);
    let reader = served(stage, "the reader's turn", reader).await?;
    let took = since.elapsed();
    let bound = stage.lease().map_or(stage.patience(), |lease| stage.patience().min(lease / 2));
    ensure!(took < bound, "the reader waited for {took:?} after the writer had left");
    ensure!(first.hold().is_valid(), "the first reader is not valid");
    release_all([first, reader]).await
}

async fn a_reader_enters_again_before_a_writer_that_waits(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (read, write) = (clients[0].1.read(), clients[1].1.write());
    Owner::new()
        .scope(async {
            read.lock().await?;
            let mut writer = ByHand::new(write.acquire());
            ensure!(writer.poll().is_none(), "a writer was granted beside a reader");
            stage.queued(&clients[0].0, NAME, 1).await?;
            stage.soon("to enter again", read.lock()).await??;
            ensure!(read.hold_count() == 2, "entered {} times", read.hold_count());
            read.unlock().await?;
            ensure!(writer.poll().is_none(), "a writer was granted beside a reader");
            read.unlock().await?;
            stage.soon("the writer's turn", writer.finish()).await??.release().await?;
            Outcome::Ok(())
        })
        .await
}

async fn a_writer_that_reads_goes_on_reading(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (read, write) = (clients[0].1.read(), clients[0].1.write());
    let recorder = EventRecorder::of(&read);
    let owner = Owner::new();
    let writer = write.acquire_as(owner, lock_core::Wait::Forever).await?;
    let writer = writer.ok_or_else(|| Failure::new("a wait without an end has ended"))?;
    let reader = stage.soon("to read while writing", read.acquire_as(owner, lock_core::Wait::Try)).await??;
    let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
    ensure!(reader.hold().mode() == Mode::Shared, "it is held {}", reader.hold().mode());
    is_refused(&clients[1].1.read(), "a reader beside a writer that also reads").await?;
    let written = reader.token();
    writer.release().await?;
    ensure!(reader.hold().is_valid(), "the reader is not valid after the writer's end");
    is_refused(&clients[1].1.write(), "a writer beside a reader that has written").await?;
    let beside = is_granted(&clients[1].1.read(), "a reader beside one that has written").await?;
    if has_tokens(&clients[0].0) {
        ensure!(reader.token() >= written, "{:?} follows {written:?}", reader.token());
        ensure!(beside.token() > reader.token(), "{:?} follows {:?}", beside.token(), reader.token());
    }
    ensure!(recorder.aborts() == 0, "told of a loss: {:?}", recorder.events());
    release_all([reader, beside]).await?;
    stage.is_free(&clients[1].0, NAME).await
}

async fn no_writer_comes_between_writing_and_reading(stage: &Stage) -> Outcome {
    let clients = clients(stage, 4).await?;
    let (read, write) = (clients[0].1.read(), clients[0].1.write());
    let observer = &clients[0].0;
    let owner = Owner::new();
    let first = write.acquire_as(owner, lock_core::Wait::Forever).await?;
    let first = first.ok_or_else(|| Failure::new("a wait without an end has ended"))?;
    let reader = read.acquire_as(owner, lock_core::Wait::Forever).await?;
    let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
    let neighbour = waiting(stage, observer, clients[1].1.read(), 1).await?;
    let mut writer = waiting(stage, observer, clients[2].1.write(), 2).await?;
    let mut last = waiting(stage, observer, clients[3].1.read(), 3).await?;
    first.release().await?;
    let neighbour = served(stage, "the turn of the reader at the head", neighbour).await?;
    ensure!(writer.poll().is_none() && last.poll().is_none(), "those behind were served, too");
    let (read, beside) = (reader.token(), neighbour.token());
    release_all([reader, neighbour]).await?;
    let writer = served(stage, "the writer's turn", writer).await?;
    if has_tokens(observer) {
        let most = read.max(beside);
        ensure!(writer.token() > most, "{:?} follows {most:?}", writer.token());
    }
    writer.release().await?;
    served(stage, "the last reader's turn", last).await?.release().await?;
    Ok(())
}

async fn a_reader_cannot_become_a_writer(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (client, lock) = &clients[0];
    let reader = lock.read().acquire().await?;
    for write in [lock.write(), client.mutex(NAME)?] {
        for wait in [lock_core::Wait::Try, lock_core::Wait::Forever] {
            let answer = stage.soon("the refusal", write.acquire_as(reader.owner(), wait)).await?;
            let kind = answer.map(|guard| guard.is_some()).map_err(|error| error.kind());
            ensure!(kind == Err(ErrorKind::Deadlock), "the upgrade was answered {kind:?}");
        }
    }
    ensure!(reader.hold().is_valid(), "the refusal ended the reader's hold");
    // Nothing of it waits at the server.
    is_granted(&clients[1].1.read(), "another reader").await?.release().await?;
    reader.release().await?;
    Ok(())
}

async fn waits_end_in_time(stage: &Stage) -> Outcome {
    const SHORT: Duration = Duration::from_millis(50);
    let clients = clients(stage, 2).await?;
    let sides = |lock: &RwLock| [lock.read(), lock.write()];
    let writer = clients[0].1.write().acquire().await?;
    for side in clients.iter().flat_map(|(_, lock)| sides(lock)) {
        let tried = refused_in_time(SHORT, |wait| side.try_acquire_for(wait)).await?;
        ensure!(tried.is_none(), "it was granted beside a writer");
        let waited = refused_in_time(SHORT, |wait| side.acquire_for(wait)).await;
        let kind = waited.map(drop).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Busy), "the wait ended with {kind:?}");
    }
    writer.release().await?;
    let reader = clients[0].1.read().acquire_for(stage.patience()).await?;
    let write = clients[1].1.write();
    let tried = refused_in_time(SHORT, |wait| write.try_acquire_for(wait)).await?;
    ensure!(tried.is_none(), "granted beside a reader");
    reader.release().await?;
    clients[1].1.write().acquire_for(stage.patience()).await?.release().await?;
    Ok(())
}

async fn one_reader_is_lost_and_the_others_stay(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let lost = clients[0].1.read().acquire().await?;
    let others = [clients[0].1.read().acquire().await?, clients[1].1.read().acquire().await?];
    clients[1].0.break_holder(NAME, &lost.hold().id()).await?;
    let reason = stage.loss(lost.hold()).await?;
    let expected = stage.harness().reason_of_a_break();
    ensure!(expected.is_none_or(|expected| expected == reason), "lost because {reason}");
    ensure!(others.iter().all(|other| other.hold().is_valid()), "another reader was lost with it");
    is_refused(&clients[1].1.write(), "a writer beside readers").await?;
    let kind = lost.release().await.map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    ensure!(others.iter().all(|other| other.hold().is_valid()), "the release ended another's hold");
    is_refused(&clients[1].1.write(), "a writer beside readers").await?;
    release_all(others).await?;
    stage.becomes_free(&clients[1].0, NAME).await
}

async fn a_writer_that_is_lost_takes_its_reader_along(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (read, write) = (clients[0].1.read(), clients[0].1.write());
    let recorder = EventRecorder::of(&read);
    let writer = write.acquire().await?;
    let reader = read.acquire_as(writer.owner(), lock_core::Wait::Try).await?;
    let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
    clients[1].0.break_holder(NAME, &writer.hold().id()).await?;
    let reasons = (stage.loss(writer.hold()).await?, stage.loss(reader.hold()).await?);
    ensure!(reasons.0 == reasons.1, "lost because {reasons:?}");
    for guard in [reader, writer] {
        let kind = guard.release().await.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Lost), "the release was answered {kind:?}");
    }
    clients[0].0.idle().await;
    stage.until("both losses are told", || async { Ok(recorder.aborts() >= 2) }).await?;
    stage.becomes_free(&clients[1].0, NAME).await?;
    ensure!(recorder.aborts() == 2, "each was to be told once: {:?}", recorder.events());
    Ok(())
}

async fn a_read_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let read = clients[0].1.read();
    let make = || async { Ok(read.acquire().await?) };
    drop_at_every_poll(stage, make, |guard| {
        drop(guard);
        async {
            stage.becomes_free(&clients[1].0, NAME).await?;
            clients[0].0.idle().await;
            ensure!(!read.is_locked(), "the client says that it is locked");
            Ok(())
        }
    })
    .await
}

async fn a_read_dropped_at_every_poll_while_another_writes(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let read = clients[0].1.read();
    for polls in 0..4 {
        let held = clients[1].1.write().acquire().await?;
        let mut waiter = ByHand::new(read.acquire());
        for _ in 0..polls {
            ensure!(waiter.poll().is_none(), "a reader was granted beside a writer");
        }
        if polls > 1 {
            stage.queued(&clients[1].0, NAME, 1).await?;
        }
        drop(waiter);
        stage.queued(&clients[1].0, NAME, 0).await?;
        ensure!(held.hold().is_valid(), "a wait that was dropped ended another's hold");
        held.release().await?;
        stage.becomes_free(&clients[1].0, NAME).await?;
    }
    Ok(())
}

/// From its first poll on, the end of the write side is carried out, and the reader goes on.
async fn a_downgrade_dropped_at_every_poll(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (read, write) = (clients[0].1.read(), clients[0].1.write());
    for polls in 1..20 {
        let writer = write.acquire().await?;
        let reader = read.acquire_as(writer.owner(), lock_core::Wait::Forever).await?;
        let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
        let mut by_hand = ByHand::new(writer.release());
        let output = stage.soon("the next poll", by_hand.poll_times(polls)).await?;
        drop(by_hand);
        let beside = stage.soon("a reader beside it", clients[1].1.read().acquire()).await??;
        ensure!(reader.hold().is_valid(), "the reader is not valid after {polls} polls");
        is_refused(&clients[1].1.write(), "a writer beside readers").await?;
        release_all([beside, reader]).await?;
        clients[0].0.idle().await;
        stage.becomes_free(&clients[1].0, NAME).await?;
        if let Some(output) = output {
            return Ok(output?);
        }
    }
    Ok(())
}

/// If a lock ends with its connection, the hold of the reader may end with the reply.
async fn a_downgrade_whose_reply_is_lost_lets_no_writer_in(stage: &Stage) -> Outcome {
    let clients = clients(stage, 2).await?;
    let (read, write) = (clients[0].1.read(), clients[0].1.write());
    for losing in Losing::ALL {
        let writer = stage.soon("the lock", write.acquire()).await??;
        let reader = read.acquire_as(writer.owner(), lock_core::Wait::Forever).await?;
        let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
        let mut waiter = waiting(stage, &clients[1].0, clients[1].1.write(), 1).await?;
        stage.harness().lose_reply(Operation::Downgrade, losing).await?;
        let released = stage.soon("the end of the write side", writer.release()).await?;
        if stage.harness().after_a_restart() != AfterRestart::Nothing {
            let kind = released.map_err(|error| error.kind());
            ensure!(matches!(kind, Ok(()) | Err(ErrorKind::Unconfirmed)), "{losing:?}: {kind:?}");
            stage.until("contact", || async { Ok(clients[0].0.ping().await.is_ok()) }).await?;
            ensure!(reader.hold().is_valid(), "{losing:?}: the reader is lost: {:?}", reader.hold().end());
            ensure!(waiter.poll().is_none(), "{losing:?}: a writer is beside a reader");
        }
        drop(reader);
        served(stage, "the writer's turn", waiter).await?.release().await?;
        stage.soon("the rest", clients[0].0.idle()).await?;
        stage.is_free(&clients[1].0, NAME).await?;
    }
    Ok(())
}

async fn the_status_shows_who_shares(stage: &Stage) -> Outcome {
    let clients = clients(stage, 3).await?;
    let observer = &clients[0].0;
    let readers = [clients[0].1.read().acquire().await?, clients[1].1.read().acquire().await?];
    let writer = waiting(stage, observer, clients[2].1.write(), 1).await?;
    let status = observer.status(NAME).await?;
    let mut ids: Vec<_> = status.holders.iter().map(|holder| holder.id.to_string()).collect();
    let mut expected: Vec<_> = readers.iter().map(|reader| reader.hold().id().to_string()).collect();
    ids.sort();
    expected.sort();
    ensure!(ids == expected, "{ids:?} hold it, not {expected:?}");
    ensure!(status.holders.iter().all(|holder| holder.mode == Mode::Shared), "{:?}", status.holders);
    ensure!(status.waiters.iter().all(|waiter| waiter.mode == Mode::Exclusive), "{:?}", status.waiters);
    release_all(readers).await?;
    served(stage, "the writer's turn", writer).await?.release().await?;
    Ok(())
}

async fn no_reader_is_beside_a_writer_in_contention(stage: &Stage) -> Outcome {
    /// What a writer has: all of it.
    const WRITER: u64 = 1000;
    let clients = clients(stage, 3).await?;
    let (rounds, patience) = (stage.rounds(60), stage.patience());
    let mut tasks = Vec::new();
    for number in 0..12_u32 {
        let lock = clients[number as usize % 3].1.clone();
        tasks.push(tokio::spawn(async move {
            let mut shares = Vec::new();
            for round in 0..rounds {
                let writes = (number + round).is_multiple_of(4);
                let (side, weight) = if writes { (lock.write(), WRITER) } else { (lock.read(), 1) };
                let guard = within(patience, "a turn", side.acquire()).await??;
                let from = stamp();
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
    if let Some(excess) = excess(&shares, WRITER) {
        return Err(Failure::new(format!("exclusion: {excess}")));
    }
    stage.becomes_free(&clients[0].0, NAME).await
}
