//! Readers beside each other and before and behind writers: what each fault does to one of them and to the others.

use std::sync::Arc;
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{
    DistributedLock, ErrorKind, HolderId, LockClient, LockGuard, LossReason, ManualClock, Participant,
    RwLock, Wait,
};
use test_servers::{NodeKind, TcpProxy, ZooKeeperRequest};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{
    BY_THE_END_OF_A_SESSION, IMPATIENT, LONG, LOSSES, NO_LONGER_NEW, ROOM, Stage, Waiter, as_time_passes,
    refusal, soon, until,
};

cases!("sharing":
    a_reader_whose_creation_is_lost_reads_once,
    a_reader_whose_session_ends_is_notified_and_the_others_stay,
    a_readers_node_that_is_deleted_is_reported_at_once_and_the_others_stay,
    either_half_of_an_exclusive_hold_that_is_deleted_is_a_loss,
    a_waiting_writer_that_loses_a_half_begins_anew,
    a_lost_downgrade_leaves_one_reader_and_no_gap,
    a_writer_behind_one_that_goes_on_reading_has_the_higher_token,
    a_writer_that_goes_on_reading_keeps_its_node,
    a_writer_that_goes_on_reading_is_in_the_way_of_a_writer_without_contact,
    a_reader_passes_a_writer_that_goes_on_reading_and_none_that_waits,
    curators_readers_behind_one_that_goes_on_reading_are_waiters,
    a_refused_reader_names_the_holder,
    an_heir_of_curators_is_in_the_way_of_writers,
    a_writer_that_is_broken_does_not_go_on_reading,
    nodes_of_curators_read_write_lock_count,
    readers_wait_for_a_plain_mutex,
    a_newer_layout_is_refused,
    what_readers_cost,
);

fn room(client: &LockClient) -> Outcome<RwLock> {
    Ok(client.rw_lock(ROOM)?)
}

/// The names of all nodes of the lock, in order.
async fn all_nodes(stage: &Stage) -> Outcome<Vec<String>> {
    Ok(stage.server.children(&stage.directory(ROOM)).await?.unwrap_or_default())
}

/// The paths of the nodes whose names contain this word, in order.
async fn paths_with(stage: &Stage, word: &str) -> Outcome<Vec<String>> {
    let nodes = all_nodes(stage).await?.into_iter().filter(|name| name.contains(word));
    Ok(nodes.map(|name| format!("{}/{name}", stage.directory(ROOM))).collect())
}

async fn readers_are(stage: &Stage, count: usize) -> Outcome {
    until(&format!("{count} readers"), || async { Ok(paths_with(stage, "__READ__").await?.len() == count) })
        .await
}

async fn waiting(stage: &Stage, side: Arc<dyn DistributedLock>, nodes: usize) -> Outcome<Waiter> {
    let waiter = Waiter::start(side);
    until(&format!("{nodes} nodes"), || async { Ok(all_nodes(stage).await?.len() == nodes) }).await?;
    Ok(waiter)
}

async fn session_at(stage: &Stage, path: &str) -> Outcome<i64> {
    let node = stage.server.node(path).await?.ok_or_else(|| Failure::new(format!("{path} is gone")))?;
    node.session.ok_or_else(|| Failure::new(format!("{path} belongs to no session")))
}

async fn is_refused(side: &Arc<dyn DistributedLock>, what: &str) -> Outcome {
    ensure!(side.try_acquire().await?.is_none(), "{what} was granted");
    Ok(())
}

/// A reader through a proxy, whose clock stands still, and another one beside it.
struct TwoReaders {
    proxy: TcpProxy,
    time: ManualClock,
    clients: [LockClient; 2],
    guard: LockGuard,
    beside: LockGuard,
    recorder: EventRecorder,
}

impl TwoReaders {
    async fn at(stage: &Stage) -> Outcome<Self> {
        let proxy = stage.proxy()?;
        let ((client, time), other) =
            (stage.frozen_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
        let (read, beside) = (room(&client)?.read(), room(&other)?.read());
        let recorder = EventRecorder::of(&read);
        let (guard, beside) = (read.acquire().await?, beside.acquire().await?);
        Ok(Self { proxy, time, clients: [client, other], guard, beside, recorder })
    }
}

/// The other reader stays, and a writer comes only after it.
async fn the_other_stays(stage: &Stage, other: &LockClient, guard: LockGuard) -> Outcome {
    readers_are(stage, 1).await?;
    let write = room(other)?.write();
    is_refused(&write, "a writer beside a reader").await?;
    ensure!(guard.hold().is_valid(), "the other reader was lost with it");
    guard.release().await?;
    soon("the writer", write.acquire()).await??.release().await?;
    Ok(())
}

async fn a_reader_whose_creation_is_lost_reads_once() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) = (stage.client_at(proxy.address(), IMPATIENT).await?, stage.client(LONG).await?);
    let (read, write) = (room(&client)?.read(), room(&other)?.write());
    for loss in LOSSES {
        let beside = room(&other)?.read().acquire().await?;
        loss.of_next(&proxy, ZooKeeperRequest::Create);
        let guard = soon("the lock", read.acquire()).await??;
        let readers = paths_with(&stage, "__READ__").await?;
        ensure!(readers.len() == 2, "{loss:?}: {readers:?}");
        beside.release().await?;
        is_refused(&write, "a writer beside a reader").await?;
        guard.release().await?;
        soon("the writer", write.acquire()).await??.release().await?;
    }
    Ok(())
}

async fn a_reader_whose_session_ends_is_notified_and_the_others_stay() -> Outcome {
    let stage = Stage::new().await?;
    let TwoReaders { proxy: _proxy, time, clients, guard, beside, recorder } = TwoReaders::at(&stage).await?;
    let session = session_at(&stage, &paths_with(&stage, "__READ__").await?[0]).await?;
    stage.server.close_session(session).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(BY_THE_END_OF_A_SESSION.contains(&reason), "{reason:?}");
    let released = guard.release().await.map_err(|error| error.kind());
    ensure!(released == Err(ErrorKind::Lost), "answered {released:?}");
    the_other_stays(&stage, &clients[1], beside).await?;
    stage.works_as_time_passes(&clients[0], &time).await
}

async fn a_readers_node_that_is_deleted_is_reported_at_once_and_the_others_stay() -> Outcome {
    let stage = Stage::new().await?;
    let TwoReaders { proxy: _proxy, time, clients, guard, beside, recorder } = TwoReaders::at(&stage).await?;
    time.advance(NO_LONGER_NEW);
    stage.server.delete(&paths_with(&stage, "__READ__").await?[0]).await?;
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "{reason:?}");
    drop(guard);
    the_other_stays(&stage, &clients[1], beside).await
}

/// Each half keeps other programs out, so a holder without one of them does not hold.
async fn either_half_of_an_exclusive_hold_that_is_deleted_is_a_loss() -> Outcome {
    let stage = Stage::new().await?;
    let ((client, time), other) = (stage.frozen(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for (word, is_new) in [("lock-", true), ("lock-", false), ("__WRIT__", true), ("__WRIT__", false)] {
        let recorder = EventRecorder::of(&lock);
        let guard = lock.acquire().await?;
        let waiter = waiting(&stage, room(&other)?.write(), 4).await?;
        let half = paths_with(&stage, word).await?.swap_remove(0);
        if !is_new {
            time.advance(NO_LONGER_NEW);
            stage.is_watched(std::slice::from_ref(&half), session_at(&stage, &half).await?).await?;
        }
        stage.server.delete(&half).await?;
        if is_new {
            time.advance(NO_LONGER_NEW);
        }
        let (reason, _) = recorder.abort().await?;
        ensure!(reason == LossReason::Deleted, "{word}: {reason:?}");
        drop(guard);
        let (next, _) = waiter.granted().await?;
        client.idle().await;
        let nodes = all_nodes(&stage).await?;
        ensure!(nodes.len() == 2 && next.hold().is_valid(), "{word}: {nodes:?}");
        next.release().await?;
    }
    Ok(())
}

async fn a_waiting_writer_that_loses_a_half_begins_anew() -> Outcome {
    let stage = Stage::new().await?;
    let (first, second) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let reader = room(&first)?.read().acquire().await?;
    let writer = waiting(&stage, room(&second)?.write(), 3).await?;
    let half = paths_with(&stage, "__WRIT__").await?.swap_remove(0);
    let session = session_at(&stage, &half).await?;
    stage.is_watched(std::slice::from_ref(&half), session).await?;
    stage.server.delete(&half).await?;
    until("it is in the queue again", || async {
        let halves = paths_with(&stage, "__WRIT__").await?;
        Ok(halves.len() == 1 && halves[0] != half && all_nodes(&stage).await?.len() == 3)
    })
    .await?;
    ensure!(!writer.is_finished(), "a writer is beside a reader");
    reader.release().await?;
    let (guard, _) = writer.granted().await?;
    Ok(guard.release().await?)
}

/// Acquires the write side and the read side for one owner.
async fn writing_and_reading(client: &LockClient) -> Outcome<(LockGuard, LockGuard)> {
    let lock = room(client)?;
    let writer = soon("the lock", lock.write().acquire()).await??;
    let reader = lock.read().acquire_as(writer.owner(), Wait::Forever).await?;
    Ok((writer, reader.ok_or_else(|| Failure::new("the writer may not read"))?))
}

/// Whether the first node says that its writer reads now.
async fn goes_on_reading(stage: &Stage) -> Outcome<bool> {
    Ok(String::from_utf8_lossy(&stage.node(0).await?.data).contains(r#""shared":true"#))
}

async fn until_it_goes_on_reading(stage: &Stage) -> Outcome {
    until("the writer goes on reading", || goes_on_reading(stage)).await
}

/// The client library takes 27 seconds, 0.45 of the session, to find a connection dead on which nothing arrives any more. Until then
/// the reader lives on what was renewed of the writer's hold: 40 seconds after a heartbeat, but less after an outage, until the next
/// heartbeat proves more.
async fn a_lost_downgrade_leaves_one_reader_and_no_gap() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let just_renewed = Duration::from_secs(36);
    let other = stage.client(LONG).await?;
    let write = room(&other)?.write();
    for loss in LOSSES {
        let (writer, reader) = writing_and_reading(&client).await?;
        let waiter = waiting(&stage, Arc::clone(&write), 4).await?;
        until("it is renewed", || async { Ok(writer.hold().remaining() > Some(just_renewed)) }).await?;
        loss.of_next(&proxy, ZooKeeperRequest::Change);
        // Where no answer comes in time, the release says so, and the client continues.
        let released = soon("the end of the write side", writer.release()).await?;
        let released = released.map_err(|error| error.kind());
        ensure!(matches!(released, Ok(()) | Err(ErrorKind::Unconfirmed)), "{loss:?}: {released:?}");
        until(&format!("{loss:?}: it reads"), || async {
            ensure!(reader.hold().is_valid(), "{loss:?}: the reader is lost: {:?}", reader.hold().end());
            Ok(goes_on_reading(&stage).await? && all_nodes(&stage).await?.len() == 4)
        })
        .await?;
        ensure!(reader.hold().is_valid() && !waiter.is_finished(), "{loss:?}: a writer came between");
        let read = reader.token();
        reader.release().await?;
        let (guard, _) = waiter.granted().await?;
        ensure!(guard.token() > read, "{loss:?}: {:?} follows {read:?}", guard.token());
        guard.release().await?;
        soon("the rest", client.idle()).await?;
        ensure!(all_nodes(&stage).await?.is_empty(), "{loss:?}: {:?}", all_nodes(&stage).await?);
    }
    Ok(())
}

/// It has its token since it waits, perhaps from the transaction that follows the one of the writer's.
async fn a_writer_behind_one_that_goes_on_reading_has_the_higher_token() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let behind = stage.client(LONG).await?;
    let (writer, reader) = writing_and_reading(&client).await?;
    let written = writer.token();
    let next = waiting(&stage, room(&other)?.write(), 4).await?;
    let last = waiting(&stage, room(&behind)?.read(), 5).await?;
    writer.release().await?;
    until_it_goes_on_reading(&stage).await?;
    let status = client.status(ROOM).await?;
    let read = reader.token();
    ensure!(read.is_some() && read >= written, "{read:?} follows {written:?}");
    reader.release().await?;
    let (next, _) = next.granted().await?;
    ensure!(next.token() > read, "{:?} follows {read:?}", next.token());
    ensure!(status.holders.len() == 1 && status.holders[0].token == read, "{read:?}: {status:?}");
    let last_written = next.token();
    next.release().await?;
    let (last, _) = last.granted().await?;
    ensure!(last.token() > last_written, "{:?} follows {last_written:?}", last.token());
    Ok(last.release().await?)
}

/// So a client that reads names alone takes it for a writer, and waits.
async fn a_writer_that_goes_on_reading_keeps_its_node() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (writer, reader) = writing_and_reading(&client).await?;
    let (nodes, token, id) = (all_nodes(&stage).await?, writer.token(), writer.hold().id());
    let lock = room(&other)?;
    let beside = waiting(&stage, lock.read(), 3).await?;
    ensure!(!beside.is_finished(), "a reader is beside a writer");
    writer.release().await?;
    let (beside, _) = beside.granted().await?;
    let again = soon("a reader", lock.read().try_acquire()).await??;
    let again = again.ok_or_else(|| Failure::new("a reader beside one that goes on reading was refused"))?;
    is_refused(&lock.write(), "a writer beside readers").await?;
    let status = other.status(ROOM).await?;
    ensure!(status.holders.len() == 3 && status.waiters.is_empty(), "{status:?}");
    ensure!(status.holders[0].id == id && status.holders[0].token == token, "{status:?}");
    ensure!(all_nodes(&stage).await?[..2] == nodes[..], "{nodes:?} {:?}", all_nodes(&stage).await?);
    ensure!(reader.token() == token && reader.hold().id() == id, "{:?} {token:?}", reader.token());
    for guard in [reader, beside, again] {
        guard.release().await?;
    }
    soon("the rest", client.idle()).await?;
    ensure!(all_nodes(&stage).await?.is_empty(), "{:?}", all_nodes(&stage).await?);
    Ok(())
}

/// When contact returns, a watch tells less than all that has happened.
async fn a_writer_that_goes_on_reading_is_in_the_way_of_a_writer_without_contact() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) =
        (stage.client(LONG).await?, stage.client_at(proxy.address(), "session_timeout=30s").await?);
    for _ in 0..3 {
        let (writer, reader) = writing_and_reading(&client).await?;
        let waiter = waiting(&stage, room(&other)?.write(), 4).await?;
        stage.waits(1).await?;
        proxy.sever();
        writer.release().await?;
        until_it_goes_on_reading(&stage).await?;
        proxy.heal();
        stage.waits(1).await?;
        other.ping().await?;
        ensure!(!waiter.is_finished() && reader.hold().is_valid(), "a writer is beside a reader");
        reader.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

/// Of two writers before a reader, the first goes on reading; the other one still waits for its turn before the reader.
async fn a_reader_passes_a_writer_that_goes_on_reading_and_none_that_waits() -> Outcome {
    let stage = Stage::new().await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?];
    let (writer, reader) = writing_and_reading(&clients[0]).await?;
    let between = waiting(&stage, room(&clients[1])?.write(), 4).await?;
    let last = waiting(&stage, room(&clients[2])?.read(), 5).await?;
    let own = session_at(&stage, &paths_with(&stage, "__READ__").await?[0]).await?;
    stage.is_watched(&[stage.path(0).await?], own).await?;
    writer.release().await?;
    let path = stage.path(1).await?;
    until("it has seen that the first one is not in its way any more", || async {
        ensure!(!last.is_finished(), "a reader passed a writer that waits");
        Ok(stage.server.watchers(&path).await?.contains(&own))
    })
    .await?;
    is_refused(&room(&clients[2])?.read(), "a reader behind a writer that waits").await?;
    ensure!(!between.is_finished() && !last.is_finished(), "a reader passed a writer, or is beside it");
    let status = clients[0].status(ROOM).await?;
    ensure!(status.holders.len() == 1 && status.waiters.len() == 2, "{status:?}");
    reader.release().await?;
    let (guard, _) = between.granted().await?;
    ensure!(!last.is_finished(), "a reader is beside a writer");
    guard.release().await?;
    let (guard, _) = last.granted().await?;
    Ok(guard.release().await?)
}

/// They know names alone, and so wait for it as for a writer.
async fn curators_readers_behind_one_that_goes_on_reading_are_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let (writer, reader) = writing_and_reading(&client).await?;
    let prefix = format!("{}/_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-__READ__", stage.directory(ROOM));
    let theirs = stage.server.create(&prefix, b"10.0.0.7", NodeKind::Numbered).await?;
    writer.release().await?;
    until_it_goes_on_reading(&stage).await?;
    let beside = soon("our reader", room(&other)?.read().acquire()).await??;
    let status = other.status(ROOM).await?;
    let name = theirs.rsplit('/').next().unwrap_or_default();
    let ids = |all: &[Participant]| all.iter().map(|one| one.id.as_str().to_owned()).collect::<Vec<_>>();
    let [held, besides] = [&reader, &beside].map(|guard| guard.hold().id().as_str().to_owned());
    ensure!(ids(&status.holders) == [held, besides] && ids(&status.waiters) == [name], "{status:?}");
    let broken = other.break_holder(ROOM, &HolderId::new(name)).await?;
    ensure!(!broken.taken_away && stage.server.node(&theirs).await?.is_some(), "{broken:?}");
    reader.release().await?;
    let status = other.status(ROOM).await?;
    ensure!(status.holders.len() == 2 && status.waiters.is_empty(), "{status:?}");
    stage.server.delete(&theirs).await?;
    Ok(beside.release().await?)
}

/// And not the writer that waits before it.
async fn a_refused_reader_names_the_holder() -> Outcome {
    let stage = Stage::new().await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?];
    let reader = room(&clients[0])?.read().acquire().await?;
    let writer = waiting(&stage, room(&clients[1])?.write(), 3).await?;
    let other = room(&clients[2])?.read();
    for patience in [Duration::ZERO, Duration::from_secs(10)] {
        let error = refusal(soon("the answer", other.acquire_for(patience)).await?.map(drop))?;
        let named = error.holder().map(|holder| &holder.id);
        ensure!(error.kind() == ErrorKind::Busy && named == Some(&reader.hold().id()), "{error:?}");
    }
    reader.release().await?;
    let (guard, _) = writer.granted().await?;
    let error = refusal(soon("the answer", other.acquire_for(Duration::ZERO)).await?.map(drop))?;
    ensure!(error.holder().map(|holder| &holder.id) == Some(&guard.hold().id()), "{error:?}");
    Ok(guard.release().await?)
}

/// Newer versions of Curator create the reader with the number of the writer, and then delete the writer, in two steps.
async fn an_heir_of_curators_is_in_the_way_of_writers() -> Outcome {
    let stage = Stage::new().await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?];
    let prefix = format!("{}/_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-", stage.directory(ROOM));
    let writer = stage.server.create(&format!("{prefix}__WRIT__"), b"10.0.0.7", NodeKind::Numbered).await?;
    let ours = waiting(&stage, room(&clients[0])?.write(), 3).await?;
    let behind = waiting(&stage, room(&clients[1])?.read(), 4).await?;
    let last = waiting(&stage, room(&clients[2])?.write(), 6).await?;
    let number = writer.rsplit("__WRIT__").next().unwrap_or_default();
    let successor =
        format!("{}/_c_0c9f4f5e-2c1b-4a7d-9d0e-3b6f5c8a1e22-__READ__{number}", stage.directory(ROOM));
    stage.server.create(&successor, b"10.0.0.7", NodeKind::Lasting).await?;
    stage.server.delete(&writer).await?;
    let own = session_at(&stage, &stage.path(0).await?).await?;
    stage.is_watched(std::slice::from_ref(&successor), own).await?;
    ensure!(
        ![&ours, &behind, &last].iter().any(|waiter| waiter.is_finished()),
        "a writer is beside a reader"
    );
    let status = clients[0].status(ROOM).await?;
    ensure!(status.holders.len() == 1 && status.waiters.len() == 3, "{status:?}");
    stage.server.delete(&successor).await?;
    for waiter in [ours, behind, last] {
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

/// The mark of a break is not overwritten by what the writer itself writes when it goes on reading. The reader has its abort margin before
/// another client has the lock.
async fn a_writer_that_is_broken_does_not_go_on_reading() -> Outcome {
    const MARGIN: Duration = Duration::from_secs(5);
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), "session_timeout=60s&abort_margin=5s").await?;
    let (operator, operators) = stage.frozen(LONG).await?;
    let (writer, reader) = writing_and_reading(&client).await?;
    // The news of the break comes later than the answer to the downgrade.
    let path = stage.path(0).await?;
    let id = writer.hold().id();
    proxy.hold_request(ZooKeeperRequest::Change);
    let releasing = tokio::spawn(writer.release());
    soon("the downgrade", proxy.is_held()).await?;
    let breaking = tokio::spawn(async move { operator.break_holder(ROOM, &id).await });
    until("the mark", || async {
        let node = stage.server.node(&path).await?;
        Ok(node.is_none_or(|node| String::from_utf8_lossy(&node.data).contains("broken")))
    })
    .await?;
    proxy.let_go();
    let released = soon("the end of the write side", releasing).await??.map_err(|error| error.kind());
    ensure!(released == Err(ErrorKind::Lost), "answered {released:?}");
    soon("the loss of the reader", reader.lost()).await?;
    for time in [&time, &operators] {
        time.advance(MARGIN.saturating_sub(Duration::from_nanos(1)));
    }
    // What the client has asked for before this is done, also in several steps.
    for _ in 0..20 {
        client.ping().await?;
    }
    ensure!(stage.server.node(&path).await?.is_some(), "the reader had less than its margin");
    drop(reader);
    as_time_passes(&time, "the rest", client.idle()).await?;
    soon("the answer", breaking).await???;
    stage.works(&client).await
}

async fn nodes_of_curators_read_write_lock_count() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = room(&client)?;
    for prefix in ["_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-", ""] {
        let path = |word: &str| format!("{}/{prefix}{word}", stage.directory(ROOM));
        let reader = stage.server.create(&path("__READ__"), b"", NodeKind::Numbered).await?;
        is_refused(&lock.write(), "a writer beside a reader").await?;
        is_refused(&client.mutex(ROOM)?, "a mutex beside a reader").await?;
        let beside = soon("a reader", lock.read().try_acquire()).await??;
        let beside = beside.ok_or_else(|| Failure::new("a reader beside a reader was refused"))?;
        let waiter = waiting(&stage, room(&other)?.write(), 4).await?;
        stage.server.delete(&reader).await?;
        ensure!(!waiter.is_finished(), "a writer is beside a reader");
        beside.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;

        let writer = stage.server.create(&path("__WRIT__"), b"", NodeKind::Numbered).await?;
        is_refused(&lock.write(), "a writer beside a writer").await?;
        is_refused(&lock.read(), "a reader beside a writer").await?;
        let waiter = waiting(&stage, lock.read(), 2).await?;
        stage.server.delete(&writer).await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    Ok(())
}

/// Curator's mutex does not know readers, but at least no reader enters beside it.
async fn readers_wait_for_a_plain_mutex() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let prefix = format!("{}/_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-lock-", stage.directory(ROOM));
    let mutex = stage.server.create(&prefix, b"10.0.0.7", NodeKind::Numbered).await?;
    let read = room(&client)?.read();
    is_refused(&read, "a reader beside a mutex").await?;
    let waiter = waiting(&stage, read, 2).await?;
    stage.server.delete(&mutex).await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn a_newer_layout_is_refused() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = room(&client)?;
    for word in ["lock-", "__READ__", "news-"] {
        let name = format!("_c_6f1d3c52-7f0f-4b12-93d5-7d0a6a5f7a10-v2-{word}");
        let path = format!("{}/{name}", stage.directory(ROOM));
        let newer = stage.server.create(&path, b"", NodeKind::Numbered).await?;
        for side in [lock.read(), lock.write()] {
            let tried = refusal(soon("the answer to a try", side.try_acquire()).await?.map(drop))?;
            let waited = refusal(soon("the answer to a wait", side.acquire()).await?.map(drop))?;
            let looked = refusal(client.status(ROOM).await)?;
            for error in [tried, waited, looked] {
                ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
                ensure!(error.to_string().contains(&name) && error.to_string().contains("newer"), "{error}");
            }
        }
        soon("the undoing", client.idle()).await?;
        stage.server.delete(&newer).await?;
    }
    stage.works(&client).await
}

/// A free lock costs a reader what it costs a writer; beside other readers it also lists them.
async fn what_readers_cost() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, other) = (stage.client_at(proxy.address(), LONG).await?, stage.client(LONG).await?);
    let read = room(&client)?.read();
    stage.works(&client).await?;
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
        read.acquire().await?.release().await?;
    }
    ensure!(spent(before) == [20, 20, 0, 0, 0], "alone: {kinds:?} {:?}", spent(before));
    let beside = room(&other)?.read().acquire().await?;
    let before = counts();
    for _ in 0..20 {
        read.acquire().await?.release().await?;
    }
    ensure!(spent(before) == [20, 20, 20, 0, 0], "beside a reader: {kinds:?} {:?}", spent(before));
    Ok(beside.release().await?)
}
