//! Readers, writers and permits: what happens to the gate and the slots behind it.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient, LockGuard, LossReason, Mode, Operation};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::middleman::{Middleman, Way, url_without_password};
use crate::stage::{
    ENDED_SOON, KILLABLE, LONG, ROOM, Stage, Waiter, connect, reach, soon, until, with_options,
};

cases!("sharing":
    a_killed_reader_is_notified_and_the_others_stay,
    a_writer_that_is_interrupted_behind_the_gate_is_beside_no_reader,
    a_writer_that_is_killed_behind_the_gate_waits_again,
    a_writer_looks_at_each_slot,
    a_writer_waits_for_one_slot_in_each_statement,
    a_reader_finds_the_only_free_slot,
    a_reader_that_passes_by_the_gate_gives_way_to_a_writer,
    a_reader_that_is_interrupted_with_a_slot_leaves_none,
    a_reader_that_is_interrupted_with_gate_and_slot_leaves_no_gate,
    a_writer_that_is_interrupted_while_it_releases_a_slot_leaves_none,
    a_downgrade_that_is_interrupted_lets_no_writer_in,
    readers_without_a_slot_wait_in_order,
    a_killed_holder_of_permits_frees_all_of_them,
    permits_that_are_interrupted_are_given_back,
    one_who_waits_for_permits_and_is_killed_lets_others_in,
    a_table_of_another_release_is_refused,
    names_of_the_greatest_length_have_slots_of_their_own,
);

const TABLED: &str = "lease=10m&fencing=table";

pub async fn reader(client: &LockClient) -> Outcome<LockGuard> {
    Ok(soon("a reader's turn", client.rw_lock(ROOM)?.read().acquire()).await??)
}

pub fn writer(client: &LockClient) -> Outcome<Waiter> {
    Ok(Waiter::start(client.rw_lock(ROOM)?.write()))
}

/// Whether a client may write.
pub async fn is_writable(client: &LockClient) -> Outcome<bool> {
    Ok(match client.rw_lock(ROOM)?.write().try_acquire().await? {
        Some(guard) => {
            guard.release().await?;
            true
        }
        None => false,
    })
}

/// The connections that have slots of the lock `room`.
pub async fn readers(stage: &Stage) -> Outcome<Vec<String>> {
    let mut readers = Vec::new();
    for slot in 0..16 {
        readers.extend(stage.holder_of(&format!("room|{slot}")).await?);
    }
    Ok(readers)
}

pub async fn nothing_is_left(stage: &Stage) -> Outcome {
    ensure!(readers(stage).await?.is_empty(), "slots are left");
    ensure!(stage.holder_of(ROOM).await?.is_none(), "the gate is left");
    Ok(())
}

/// A server with a user without a password, and a proxy that replaces `old` with `new` in statements. A session holds what the new
/// text waits for. All readers go through the gate.
pub async fn pinned(
    flavour: MySqlFlavour,
    old: &'static str,
    new: &'static str,
) -> Outcome<(Stage, Middleman, test_servers::MySqlSession)> {
    let passing = "IF(IS_FREE_LOCK('distlock:room')=1 AND ";
    rewritten(flavour, move |text| text.replace(passing, "IF(0 AND ").replace(old, new)).await
}

/// The same with readers that pass by the gate.
async fn pinned_beside_the_gate(
    flavour: MySqlFlavour,
    old: &'static str,
    new: &'static str,
) -> Outcome<(Stage, Middleman, test_servers::MySqlSession)> {
    rewritten(flavour, move |text| text.replace(old, new)).await
}

async fn rewritten(
    flavour: MySqlFlavour,
    rewrite: impl Fn(&str) -> String + Send + Sync + 'static,
) -> Outcome<(Stage, Middleman, test_servers::MySqlSession)> {
    let stage = Stage::new(flavour).await?;
    let middleman = Middleman::start(stage.server.address(), move |text| (Way::First, rewrite(text))).await?;
    let mut pin = stage.server.session().await?;
    pin.query("SELECT GET_LOCK('pin', 0)").await?;
    Ok((stage, middleman, pin))
}

/// Interrupts the statement that waits for the pin, and takes the pin out when that statement has ended.
pub async fn interrupt(stage: &Stage, mut pin: test_servers::MySqlSession) -> Outcome {
    let waiting = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE='User lock'";
    stage.queued(1).await?;
    let interrupted = stage.server.query(waiting).await?;
    for id in stage.waiters().await? {
        stage.server.query(&format!("KILL QUERY {id}")).await?;
    }
    until("it has ended", || async { Ok(stage.server.query(waiting).await? != interrupted) }).await?;
    pin.query("SELECT RELEASE_LOCK('pin')").await?;
    Ok(())
}

async fn a_killed_reader_is_notified_and_the_others_stay(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(KILLABLE).await?, stage.client(LONG).await?);
    let lock = ours.rw_lock(ROOM)?.read();
    let recorder = EventRecorder::of(&lock);
    let lost = lock.acquire().await?;
    let first = readers(&stage).await?;
    let (beside, other) = (reader(&ours).await?, reader(&theirs).await?);
    stage.server.end_connection(&first[0]).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::ConnectionLost, "lost because {reason}");
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    ensure!(beside.hold().is_valid() && other.hold().is_valid(), "another reader was lost, too");
    ensure!(!is_writable(&theirs).await?, "a writer is beside readers");
    drop(lost);
    beside.release().await?;
    ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
    other.release().await?;
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

async fn a_writer_that_is_interrupted_behind_the_gate_is_beside_no_reader(flavour: MySqlFlavour) -> Outcome {
    behind_the_gate(flavour, "KILL QUERY").await
}

async fn a_writer_that_is_killed_behind_the_gate_waits_again(flavour: MySqlFlavour) -> Outcome {
    behind_the_gate(flavour, "KILL").await
}

/// Waits until one waits at a slot with another statement than before, which MariaDB numbers: its text may be the same.
async fn waits_anew(stage: &Stage, flavour: MySqlFlavour, before: &str) -> Outcome<String> {
    let number = if flavour == MySqlFlavour::MariaDb { "QUERY_ID," } else { "" };
    let waiting = &format!(
        "SELECT CONCAT(ID,' ',{number}INFO) FROM information_schema.PROCESSLIST WHERE STATE='User lock'"
    );
    let seeing = async {
        loop {
            let mut texts = stage.server.query(waiting).await?.into_iter().flatten().flatten();
            if let Some(text) = texts.find(|text| text.contains("IS_FREE_LOCK") && text != before) {
                return Outcome::Ok(text);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon("one waits anew", seeing).await?
}

async fn behind_the_gate(flavour: MySqlFlavour, command: &str) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = reader(&ours).await?;
    let waiter = writer(&theirs)?;
    // The answer of MariaDB to an interrupted statement says that a slot is not free: the writer keeps its place, and asks the same.
    let keeps_its_place = flavour == MySqlFlavour::MariaDb && command == "KILL QUERY";
    let mut statement = waits_anew(&stage, flavour, "").await?;
    let first = stage.holder().await?;
    for _ in 0..5 {
        for id in stage.waiters().await? {
            // It may have ended by itself.
            let _ = stage.server.query(&format!("{command} {id}")).await;
        }
        statement = waits_anew(&stage, flavour, &statement).await?;
    }
    ensure!(!keeps_its_place || stage.holder().await? == first, "the writer has lost its place");
    ensure!(!waiter.is_finished() && held.hold().is_valid(), "a writer is beside a reader");
    ensure!(ours.rw_lock(ROOM)?.read().try_acquire().await?.is_none(), "a reader passes a writer that waits");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    soon("the undoing", theirs.idle()).await?;
    nothing_is_left(&stage).await
}

async fn a_writer_looks_at_each_slot(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (client, mut stranger) = (stage.client(LONG).await?, stage.server.session().await?);
    for slot in 0..16 {
        stranger.query(&format!("SELECT GET_LOCK('distlock:room|{slot}', 0)")).await?;
        ensure!(!is_writable(&client).await?, "a writer is beside the reader with slot {slot}");
        stranger.query(&format!("SELECT RELEASE_LOCK('distlock:room|{slot}')")).await?;
        ensure!(is_writable(&client).await?, "a free lock was refused");
    }
    nothing_is_left(&stage).await
}

/// With more of them, the gate of a writer that has vanished would stay for a lease for each.
async fn a_writer_waits_for_one_slot_in_each_statement(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let goes_on = |text: &str| {
        let is_behind = text.contains("IS_FREE_LOCK(") && !text.contains("GET_LOCK('distlock:room',");
        is_behind.then_some(Operation::Acquire)
    };
    let proxy = stage.server.proxy(goes_on)?;
    let (client, mut stranger) =
        (stage.client_at(proxy.address(), LONG).await?, stage.server.session().await?);
    for slot in [3, 5] {
        stranger.query(&format!("SELECT GET_LOCK('distlock:room|{slot}', 0)")).await?;
    }
    proxy.hold_reply(Operation::Acquire);
    let waiter = writer(&client)?;
    stage.queued(1).await?;
    ensure!(client.status(ROOM).await?.waiters.len() == 1, "the writer is not shown as one who waits");
    stranger.query("SELECT RELEASE_LOCK('distlock:room|3')").await?;
    soon("the answer", proxy.is_held()).await?;
    ensure!(stage.waiting().await? == 0, "the writer waits for another slot");
    proxy.let_go();
    stage.queued(1).await?;
    stranger.query("SELECT RELEASE_LOCK('distlock:room|5')").await?;
    waiter.granted().await?.0.release().await?;
    nothing_is_left(&stage).await
}

async fn a_reader_finds_the_only_free_slot(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (client, mut stranger) = (stage.client(LONG).await?, stage.server.session().await?);
    for slot in 0..16 {
        stranger.query(&format!("SELECT GET_LOCK('distlock:room|{slot}', 0)")).await?;
    }
    ensure!(client.rw_lock(ROOM)?.read().try_acquire().await?.is_none(), "there is another slot");
    for slot in [0, 7, 15] {
        stranger.query(&format!("SELECT RELEASE_LOCK('distlock:room|{slot}')")).await?;
        let guard = reader(&client).await?;
        let name = format!("room|{slot}");
        ensure!(stage.holder_of(&name).await?.is_some(), "the reader has another slot than {slot}");
        guard.release().await?;
        stranger.query(&format!("SELECT GET_LOCK('distlock:room|{slot}', 0)")).await?;
    }
    Ok(())
}

/// The writer comes when the reader has seen that the gate is free, and has no slot yet.
async fn a_reader_that_passes_by_the_gate_gives_way_to_a_writer(flavour: MySqlFlavour) -> Outcome {
    let slot = " AND GET_LOCK('distlock:room|";
    let later = " AND GET_LOCK('pin',600)=1 AND RELEASE_LOCK('pin')=1 AND GET_LOCK('distlock:room|";
    let (stage, middleman, mut pin) = pinned_beside_the_gate(flavour, slot, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let waiter = Waiter::start(ours.rw_lock(ROOM)?.read());
    stage.queued(1).await?;
    let written = theirs.rw_lock(ROOM)?.write().acquire().await?;
    pin.query("SELECT RELEASE_LOCK('pin')").await?;
    let is_at_the_gate = || async {
        let pin = stage.server.value("SELECT IS_FREE_LOCK('pin')").await?;
        Ok(pin.as_deref() == Some("1") && stage.waiting().await? == 1)
    };
    until("the reader waits at the gate", is_at_the_gate).await?;
    ensure!(!waiter.is_finished(), "a reader is beside a writer");
    ensure!(readers(&stage).await?.is_empty(), "the reader keeps a slot");
    let token = written.token();
    written.release().await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(guard.token() > token, "{:?} follows {token:?}", guard.token());
    guard.release().await?;
    nothing_is_left(&stage).await
}

/// The interruption hits the statement when it has a slot and has not looked at the gate again.
async fn a_reader_that_is_interrupted_with_a_slot_leaves_none(flavour: MySqlFlavour) -> Outcome {
    let look = "IF(IS_FREE_LOCK('distlock:room')=1,CONCAT(";
    let later = "IF(GET_LOCK('pin',600)*IS_FREE_LOCK('distlock:room')=1,CONCAT(";
    let (stage, middleman, pin) = pinned_beside_the_gate(flavour, look, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let waiter = Waiter::start(ours.rw_lock(ROOM)?.read());
    interrupt(&stage, pin).await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(readers(&stage).await?.len() == 1, "{:?} have slots", readers(&stage).await?);
    ensure!(stage.holder_of(ROOM).await?.is_none(), "the gate is left");
    reader(&theirs).await?.release().await?;
    ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
    guard.release().await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

/// The interruption hits the statement when it has the gate and a slot.
async fn a_reader_that_is_interrupted_with_gate_and_slot_leaves_no_gate(flavour: MySqlFlavour) -> Outcome {
    let release = "IFNULL(RELEASE_LOCK('distlock:room'),-1)";
    let later = "IFNULL(GET_LOCK('pin',600)*RELEASE_LOCK('distlock:room'),-1)";
    let (stage, middleman, pin) = pinned(flavour, release, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let waiter = Waiter::start(ours.rw_lock(ROOM)?.read());
    interrupt(&stage, pin).await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(readers(&stage).await?.len() == 1, "{:?} have slots", readers(&stage).await?);
    ensure!(stage.holder_of(ROOM).await?.is_none(), "the gate is left");
    let beside = reader(&theirs).await?;
    beside.release().await?;
    ensure!(!is_writable(&theirs).await?, "a writer is beside a reader");
    guard.release().await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

/// The interruption hits the statement when the writer has a slot only to see that it is free.
async fn a_writer_that_is_interrupted_while_it_releases_a_slot_leaves_none(flavour: MySqlFlavour) -> Outcome {
    let release = "IF(RELEASE_LOCK(CONCAT('distlock:room|'";
    let later = "IF(GET_LOCK('pin',600)=1 AND RELEASE_LOCK(CONCAT('distlock:room|'";
    let (stage, middleman, pin) = pinned(flavour, release, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let held = reader(&theirs).await?;
    let waiter = writer(&ours)?;
    stage.queued(1).await?;
    held.release().await?;
    let has_a_slot = || async { Ok(readers(&stage).await?.len() == 1) };
    until("the writer has a slot", has_a_slot).await?;
    interrupt(&stage, pin).await?;
    let (guard, _) = waiter.granted().await?;
    ensure!(readers(&stage).await?.is_empty(), "the writer keeps a slot");
    ensure!(theirs.rw_lock(ROOM)?.read().try_acquire().await?.is_none(), "a reader is beside a writer");
    guard.release().await?;
    nothing_is_left(&stage).await
}

/// The interruption hits the statement when the reader has a slot and the writer still has the gate.
async fn a_downgrade_that_is_interrupted_lets_no_writer_in(flavour: MySqlFlavour) -> Outcome {
    let release = "IFNULL(RELEASE_LOCK('distlock:room'),-1)";
    let later = "IFNULL(GET_LOCK('pin',600)*RELEASE_LOCK('distlock:room'),-1)";
    let (stage, middleman, pin) = pinned(flavour, release, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?;
    let lock = ours.rw_lock(ROOM)?;
    let writing = lock.write().acquire().await?;
    let reading = lock.read().acquire_as(writing.owner(), lock_core::Wait::Forever).await?;
    let reading = reading.ok_or_else(|| Failure::new("the writer may not read"))?;
    let written = writing.token();
    let (released, interrupted) = tokio::join!(writing.release(), interrupt(&stage, pin));
    interrupted?;
    released?;
    let beside = reader(&theirs).await?;
    ensure!(
        reading.hold().is_valid() && reading.token() > written,
        "{:?} follows {written:?}",
        reading.token()
    );
    ensure!(!is_writable(&theirs).await?, "a writer is beside readers");
    beside.release().await?;
    reading.release().await?;
    soon("the undoing", ours.idle()).await?;
    ensure!(is_writable(&theirs).await?, "a free lock was refused");
    nothing_is_left(&stage).await
}

/// How many slots a lock has for readers.
pub(crate) const SLOTS: usize = 16;

/// Takes all slots of the room but so many.
pub(crate) async fn fill_slots(client: &LockClient, left: usize) -> Outcome<Vec<LockGuard>> {
    let mut guards = Vec::new();
    for _ in left..SLOTS {
        guards.push(reader(client).await?);
    }
    Ok(guards)
}

async fn readers_without_a_slot_wait_in_order(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(stage.client(TABLED).await?);
    }
    let others = fill_slots(&clients[0], 2).await?;
    let held = [reader(&clients[0]).await?, reader(&clients[1]).await?];
    ensure!(clients[2].rw_lock(ROOM)?.read().try_acquire().await?.is_none(), "there is a third slot");
    let third = Waiter::start(clients[2].rw_lock(ROOM)?.read());
    let waits = |count| {
        let client = &clients[0];
        move || async move { Ok(client.status(ROOM).await.is_ok_and(|status| status.waiters.len() == count)) }
    };
    until("the reader waits", waits(1)).await?;
    let last = writer(&clients[3])?;
    until("the writer waits", waits(2)).await?;
    let status = clients[0].status(ROOM).await?;
    let modes: Vec<_> = status.waiters.iter().map(|waiter| waiter.mode).collect();
    ensure!(modes == [Mode::Shared, Mode::Exclusive] && status.holders.len() == SLOTS, "{status:?}");
    ensure!(!third.is_finished() && !last.is_finished(), "served without a slot");
    let [first, second] = held;
    first.release().await?;
    let (third, _) = third.granted().await?;
    ensure!(!last.is_finished(), "a writer is beside readers");
    second.release().await?;
    third.release().await?;
    for guard in others {
        guard.release().await?;
    }
    last.granted().await?.0.release().await?;
    Ok(())
}

async fn a_killed_holder_of_permits_frees_all_of_them(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(KILLABLE).await?, stage.client(LONG).await?);
    let lost = ours.semaphore(ROOM, 5)?.acquire(3).await?;
    let connection = stage.holder_of("room|p0").await?.unwrap_or_default();
    let other = ours.semaphore(ROOM, 5)?.acquire(1).await?;
    let slots = theirs.semaphore(ROOM, 5)?;
    let waiting = tokio::spawn({
        let slots = slots.clone();
        async move { slots.acquire(4).await }
    });
    let has_the_gate = || async { Ok(stage.holder_of("room|p").await?.is_some()) };
    until("one waits", has_the_gate).await?;
    ensure!(slots.try_acquire(1).await?.is_none(), "one who waits was passed");
    stage.server.end_connection(&connection).await?;
    let reason = soon("the loss", lost.lost()).await?;
    ensure!(reason == Some(LossReason::ConnectionLost), "lost because {reason:?}");
    let four = soon("the permits", waiting).await???;
    ensure!(other.hold().is_valid() && slots.try_acquire(1).await?.is_none(), "there are more than five");
    other.release().await?;
    four.release().await?;
    drop(lost);
    slots.acquire(5).await?.release().await?;
    Ok(())
}

/// The interruption hits the statement when it has all permits and still the gate.
async fn permits_that_are_interrupted_are_given_back(flavour: MySqlFlavour) -> Outcome {
    let release = "IFNULL(RELEASE_LOCK('distlock:room|p'),-1)";
    let later = "IFNULL(GET_LOCK('pin',600)*RELEASE_LOCK('distlock:room|p'),-1)";
    let (stage, middleman, pin) = pinned(flavour, release, later).await?;
    let ours = reach(&middleman.url(LONG)).await?;
    let theirs = reach(&url_without_password(stage.server.address(), LONG)).await?.semaphore(ROOM, 3)?;
    let slots = ours.semaphore(ROOM, 3)?;
    let acquiring = tokio::spawn(async move { slots.acquire(2).await });
    interrupt(&stage, pin).await?;
    let two = soon("two permits", acquiring).await???;
    let one = soon("the third", theirs.acquire(1)).await??;
    ensure!(theirs.try_acquire(1).await?.is_none(), "there is a fourth permit");
    two.release().await?;
    one.release().await?;
    soon("all of them", theirs.acquire(3)).await??.release().await?;
    ensure!(stage.holder_of("room|p").await?.is_none(), "the gate is left");
    Ok(())
}

async fn one_who_waits_for_permits_and_is_killed_lets_others_in(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (ours, theirs) = (stage.client(ENDED_SOON).await?, stage.client(LONG).await?);
    let slots = theirs.semaphore(ROOM, 3)?;
    let held = slots.acquire(2).await?;
    let large = ours.semaphore(ROOM, 3)?;
    let waiting = tokio::spawn(async move { large.acquire(2).await });
    let gate = || stage.holder_of("room|p");
    until("one waits", || async { Ok(gate().await?.is_some()) }).await?;
    let first = gate().await?.unwrap_or_default();
    stage.server.end_connection(&first).await?;
    until("it waits again", || async { Ok(gate().await?.is_some_and(|next| next != first)) }).await?;
    ensure!(!waiting.is_finished(), "a fourth permit was given");
    waiting.abort();
    until("it has gone", || async { Ok(gate().await?.is_none()) }).await?;
    soon("the permit", slots.acquire(1)).await??.release().await?;
    Ok(held.release().await?)
}

/// A later layout, and another number of slots for readers.
async fn a_table_of_another_release_is_refused(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::with_table(flavour).await?;
    stage.client(TABLED).await?;
    for other in ["layout=1 readers=8", "layout=2 readers=16"] {
        let written = format!("ALTER TABLE locks.distlock_locks COMMENT='{other}'");
        stage.server.query(&written).await?;
        let refused = connect(&with_options(&stage.url(), TABLED)).await;
        let error = refused.err().ok_or_else(|| Failure::new(format!("{other} was accepted")))?;
        ensure!(error.kind() == ErrorKind::Unsupported && error.to_string().contains(other), "{error:?}");
    }
    Ok(())
}

/// Two names that differ only at the end have different slots, and each lock excludes.
async fn names_of_the_greatest_length_have_slots_of_their_own(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client("lease=10m&prefix=").await?;
    let names = ["x".repeat(64), format!("{}y", "x".repeat(63)), "x".repeat(65)];
    for (number, name) in names.iter().enumerate() {
        let lock = client.rw_lock(name.as_str())?;
        let reading = lock.read().acquire().await?;
        ensure!(lock.write().try_acquire().await?.is_none(), "a writer is beside a reader of {name}");
        for other in names.iter().skip(number + 1) {
            let write = client.rw_lock(other.as_str())?.write();
            let guard = write.try_acquire().await?;
            guard.ok_or_else(|| Failure::new("two names share a slot"))?.release().await?;
        }
        let permits = client.semaphore(name.as_str(), 64)?.acquire(64).await?;
        permits.release().await?;
        reading.release().await?;
    }
    Ok(())
}
