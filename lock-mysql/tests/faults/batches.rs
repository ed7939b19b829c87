//! Readers of one client that wait together: they have one connection, one pass through the gate and one slot.

use std::pin::pin;

use conformance_tests::{Failure, Outcome};
use lock_core::{DistributedLock, LockClient, LockGuard, LossReason, Mode};
use std::sync::Arc;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::middleman::url_without_password;
use crate::sharing::{fill_slots, interrupt, is_writable, nothing_is_left, pinned, reader, readers, writer};
use crate::stage::{KILLABLE, LONG, ROOM, Stage, Waiter, poll_times, reach, soon, until};

cases!("batches":
    readers_that_wait_together_have_one_connection_and_one_slot,
    a_writer_that_waits_behind_a_batch_is_before_later_readers,
    a_writer_of_the_same_client_is_before_later_readers,
    the_first_reader_may_leave_and_so_may_all,
    a_reader_is_dropped_after_each_poll_and_the_first_stays,
    all_are_dropped_at_the_moment_of_the_grant,
    a_killed_connection_takes_all_that_share_it_and_no_others,
    a_killed_or_interrupted_wait_of_several_begins_anew,
    several_that_are_interrupted_with_gate_and_slot_leave_none,
    a_batch_waits_for_a_slot_and_takes_readers_in_meanwhile,
    the_status_and_a_break_know_each_reader,
    readers_with_another_label_wait_on_their_own,
);

const TABLED: &str = "lease=10m&timeout=15s&fencing=table";

fn read(client: &LockClient) -> Outcome<Arc<dyn DistributedLock>> {
    Ok(client.rw_lock(ROOM)?.read())
}

/// Starts so many readers one after the other, each when the client says that those before it wait.
pub(crate) async fn waiting(client: &LockClient, count: usize) -> Outcome<Vec<Waiter>> {
    let before = client.status(ROOM).await?.waiters.len();
    let mut waiters = Vec::new();
    for number in 1..=count {
        waiters.push(Waiter::start(read(client)?));
        wait_in_all(client, before + number).await?;
    }
    Ok(waiters)
}

/// Waits until so many wait, as far as this client knows.
async fn wait_in_all(client: &LockClient, count: usize) -> Outcome {
    let do_wait = || async { Ok(client.status(ROOM).await?.waiters.len() == count) };
    until(&format!("{count} wait as far as the client knows"), do_wait).await
}

/// The statements that wait, each of which names the reader that has sent it.
async fn statements(stage: &Stage) -> Outcome<Vec<String>> {
    let waiting = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE='User lock'";
    Ok(stage.server.query(waiting).await?.into_iter().flatten().flatten().collect())
}

pub(crate) async fn granted(waiters: Vec<Waiter>) -> Outcome<Vec<LockGuard>> {
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(waiter.granted().await?.0);
    }
    ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "a reader is not valid");
    Ok(guards)
}

async fn readers_that_wait_together_have_one_connection_and_one_slot(flavour: MySqlFlavour) -> Outcome {
    const COUNT: usize = 40;
    for options in [LONG, TABLED] {
        // Alone, because it counts connections.
        let stage = Stage::alone_with_table(flavour).await?;
        let (ours, theirs) = (stage.client(options).await?, stage.client(options).await?);
        let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
        let mut waiters: Vec<_> = Vec::new();
        for _ in 0..COUNT {
            waiters.push(Waiter::start(read(&ours)?));
        }
        wait_in_all(&ours, COUNT).await?;
        ensure!(stage.waiting().await? == 1, "{} connections wait", stage.waiting().await?);
        // That which waits, and one each for tries, for control and for the table.
        let most = stage.connections().await?;
        ensure!(most <= 8, "two clients have {most} connections");
        let written = held.token();
        held.release().await?;
        let mut guards = granted(waiters).await?;
        ensure!(readers(&stage).await?.len() == 1, "{:?} have slots", readers(&stage).await?);
        let mut tokens: Vec<_> = guards.iter().map(LockGuard::token).collect();
        tokens.sort();
        tokens.dedup();
        ensure!(tokens.len() == COUNT, "{COUNT} readers have {} tokens", tokens.len());
        ensure!(tokens.iter().all(|token| *token > written), "{tokens:?} follow {written:?}");
        let waiter = writer(&theirs)?;
        stage.queued(1).await?;
        let last = guards.pop();
        for guard in guards {
            guard.release().await?;
        }
        let last = last.ok_or_else(|| Failure::new("no guard"))?;
        ensure!(last.hold().is_valid() && !waiter.is_finished(), "the last reader is not alone");
        ensure!(readers(&stage).await?.len() == 1, "{:?} have slots", readers(&stage).await?);
        let greatest = tokens.last().copied().flatten();
        last.release().await?;
        let (guard, _) = waiter.granted().await?;
        ensure!(guard.token() > greatest, "{:?} follows {greatest:?}", guard.token());
        guard.release().await?;
        soon("the releases", ours.idle()).await?;
        nothing_is_left(&stage).await?;
    }
    Ok(())
}

async fn a_writer_that_waits_behind_a_batch_is_before_later_readers(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let batch = waiting(&ours, 3).await?;
    held.release().await?;
    let mut batch = granted(batch).await?;
    let between = writer(&theirs)?;
    stage.queued(1).await?;
    let later = waiting(&ours, 2).await?;
    stage.queued(2).await?;
    while let Some(guard) = batch.pop() {
        ensure!(!between.is_finished() && later.iter().all(|later| !later.is_finished()), "one entered");
        guard.release().await?;
    }
    let (guard, _) = between.granted().await?;
    ensure!(later.iter().all(|later| !later.is_finished()), "a reader is beside a writer");
    guard.release().await?;
    for guard in granted(later).await? {
        guard.release().await?;
    }
    soon("the releases", ours.idle()).await?;
    nothing_is_left(&stage).await
}

/// Also while those before it still wait.
async fn a_writer_of_the_same_client_is_before_later_readers(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let first = waiting(&ours, 2).await?;
    let between = writer(&ours)?;
    wait_in_all(&ours, 3).await?;
    let last = waiting(&ours, 2).await?;
    stage.queued(3).await?;
    held.release().await?;
    let first = granted(first).await?;
    ensure!(!between.is_finished() && last.iter().all(|last| !last.is_finished()), "one was passed");
    for guard in first {
        guard.release().await?;
    }
    let (guard, _) = between.granted().await?;
    ensure!(last.iter().all(|last| !last.is_finished()), "a reader is beside a writer");
    guard.release().await?;
    for guard in granted(last).await? {
        guard.release().await?;
    }
    soon("the releases", ours.idle()).await?;
    nothing_is_left(&stage).await
}

async fn the_first_reader_may_leave_and_so_may_all(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let mut waiters = waiting(&ours, 4).await?.into_iter();
    let (connection, statement) = (stage.waiters().await?, statements(&stage).await?);
    let (first, second, third) = (waiters.next(), waiters.next(), waiters.next());
    for leaves in [first, third].into_iter().flatten() {
        leaves.give_up().await?;
    }
    soon("the undoing", ours.idle()).await?;
    ensure!(statements(&stage).await? == statement, "the wait began anew");
    wait_in_all(&ours, 2).await?;
    // One that comes now takes part, too.
    let joins = waiting(&ours, 1).await?;
    ensure!(statements(&stage).await? == statement, "one waits on its own");
    held.release().await?;
    let guards = granted(second.into_iter().chain(waiters).chain(joins).collect()).await?;
    ensure!(guards.len() == 3 && readers(&stage).await? == connection, "{:?}", readers(&stage).await?);
    for guard in guards {
        guard.release().await?;
    }
    nothing_is_left(&stage).await?;

    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    for leaves in waiting(&ours, 3).await? {
        leaves.give_up().await?;
    }
    stage.queued(0).await?;
    held.release().await?;
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

async fn a_reader_is_dropped_after_each_poll_and_the_first_stays(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for polls in 0..6 {
        let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
        let first = waiting(&ours, 1).await?;
        {
            let lock = read(&ours)?;
            let mut joining = pin!(lock.acquire());
            for _ in 0..polls {
                ensure!(poll_times(joining.as_mut(), 1).await?.is_none(), "a reader is beside a writer");
            }
            if polls > 3 {
                wait_in_all(&ours, 2).await?;
            }
        }
        wait_in_all(&ours, 1).await?;
        held.release().await?;
        for guard in granted(first).await? {
            guard.release().await?;
        }
        soon("the undoing", ours.idle()).await?;
        nothing_is_left(&stage).await?;
    }
    Ok(())
}

async fn all_are_dropped_at_the_moment_of_the_grant(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for round in 0..20 {
        let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
        let waiters = waiting(&ours, 3).await?;
        let releasing = tokio::spawn(held.release());
        for _ in 0..round * 20 {
            tokio::task::yield_now().await;
        }
        let mut served = Vec::new();
        for (number, waiter) in waiters.into_iter().enumerate() {
            // One stays in every other round.
            if number == 1 && round % 2 == 0 {
                served.push(waiter);
            } else {
                // It may have been served.
                let _ = waiter.give_up().await;
            }
        }
        soon("the release", releasing).await???;
        for guard in granted(served).await? {
            guard.release().await?;
        }
        soon("the undoing", ours.idle()).await?;
        nothing_is_left(&stage).await?;
    }
    Ok(())
}

async fn a_killed_connection_takes_all_that_share_it_and_no_others(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(KILLABLE).await?, stage.client(LONG).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let batch = waiting(&ours, 3).await?;
    held.release().await?;
    let batch = granted(batch).await?;
    let connection = readers(&stage).await?;
    let others = [reader(&ours).await?, reader(&theirs).await?];
    ensure!(readers(&stage).await?.len() == 3, "{:?} have slots", readers(&stage).await?);
    stage.server.end_connection(&connection[0]).await?;
    for guard in &batch {
        let reason = soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    }
    ensure!(others.iter().all(|other| other.hold().is_valid()), "another reader was lost, too");
    drop(batch);
    for other in others {
        ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
        other.release().await?;
    }
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

async fn a_killed_or_interrupted_wait_of_several_begins_anew(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for command in ["KILL QUERY", "KILL"] {
        let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
        let waiters = waiting(&ours, 3).await?;
        for id in stage.waiters().await? {
            stage.server.query(&format!("{command} {id}")).await?;
        }
        wait_in_all(&ours, 3).await?;
        ensure!(waiters.iter().all(|waiter| !waiter.is_finished()), "a reader is beside a writer");
        held.release().await?;
        for guard in granted(waiters).await? {
            ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
            guard.release().await?;
        }
        soon("the undoing", ours.idle()).await?;
        nothing_is_left(&stage).await?;
    }
    Ok(())
}

/// The interruption hits the statement when it has the gate and a slot.
async fn several_that_are_interrupted_with_gate_and_slot_leave_none(flavour: MySqlFlavour) -> Outcome {
    let release = "IFNULL(RELEASE_LOCK('distlock:room'),-1)";
    let later = "IFNULL(GET_LOCK('pin',600)*RELEASE_LOCK('distlock:room'),-1)";
    let (stage, middleman, pin) = pinned(flavour, release, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let waiters = waiting(&ours, 3).await?;
    interrupt(&stage, pin).await?;
    let guards = granted(waiters).await?;
    ensure!(stage.holder_of(ROOM).await?.is_none(), "the gate is left");
    reader(&theirs).await?.release().await?;
    for guard in guards {
        ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
        guard.release().await?;
    }
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

async fn a_batch_waits_for_a_slot_and_takes_readers_in_meanwhile(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let (ours, theirs) = (stage.client(TABLED).await?, stage.client(TABLED).await?);
    let others = fill_slots(&theirs, 2).await?;
    let held = [reader(&ours).await?, reader(&theirs).await?];
    let waiters = waiting(&ours, 5).await?;
    ensure!(waiters.iter().all(|waiter| !waiter.is_finished()), "served without a slot");
    let last = writer(&theirs)?;
    wait_in_all(&theirs, 2).await?;
    let [first, second] = held;
    first.release().await?;
    for guard in granted(waiters).await? {
        ensure!(!last.is_finished(), "a writer is beside readers");
        guard.release().await?;
    }
    second.release().await?;
    for guard in others {
        guard.release().await?;
    }
    Ok(last.granted().await?.0.release().await?)
}

async fn the_status_and_a_break_know_each_reader(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let options = "lease=8s&validation_interval=200ms&fencing=table";
    let (ours, theirs) = (stage.client(options).await?, stage.client(options).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let batch = waiting(&ours, 3).await?;
    held.release().await?;
    let mut batch = granted(batch).await?;
    let single = reader(&ours).await?;
    let shown = async |guards: &[LockGuard]| {
        let mut expected: Vec<_> =
            guards.iter().chain([&single]).map(|guard| (guard.hold().id(), guard.token())).collect();
        let status = theirs.status(ROOM).await?;
        ensure!(status.holders.iter().all(|holder| holder.mode == Mode::Shared), "{status:?}");
        let mut holders: Vec<_> =
            status.holders.into_iter().map(|holder| (holder.id, holder.token)).collect();
        holders.sort_by_key(|(id, _)| id.to_string());
        expected.sort_by_key(|(id, _)| id.to_string());
        ensure!(holders == expected, "{holders:?} are shown, not {expected:?}");
        Outcome::Ok(())
    };
    shown(&batch).await?;
    let ended = batch.remove(0);
    let id = ended.hold().id();
    ended.release().await?;
    shown(&batch).await?;
    let broken = theirs.break_holder(ROOM, &id).await?;
    ensure!(!broken.taken_away, "one that has ended was broken: {broken:?}");
    ensure!(batch.iter().all(|guard| guard.hold().is_valid()), "a reader is not valid");
    theirs.break_holder(ROOM, &batch[1].hold().id()).await?;
    for guard in &batch {
        let reason = soon("the loss", guard.lost()).await?;
        ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    }
    ensure!(single.hold().is_valid(), "a reader with a slot of its own was lost, too");
    drop(batch);
    single.release().await?;
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

async fn readers_with_another_label_wait_on_their_own(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let (ours, theirs) = (stage.client(TABLED).await?, stage.client(TABLED).await?);
    let held = theirs.rw_lock(ROOM)?.write().acquire().await?;
    let first = waiting(&ours, 2).await?;
    let named = lock_core::LockOptions::new().label("another");
    let other = Waiter::start(ours.rw_lock_with(ROOM, named)?.read());
    stage.queued(2).await?;
    held.release().await?;
    let first = granted(first).await?;
    let (other, _) = other.granted().await?;
    let status = theirs.status(ROOM).await?;
    let labels: Vec<_> = status.holders.iter().map(|holder| holder.label.as_deref()).collect();
    ensure!(labels.iter().filter(|label| **label == Some("another")).count() == 1, "{labels:?}");
    for guard in first.into_iter().chain([other]) {
        guard.release().await?;
    }
    nothing_is_left(&stage).await
}
