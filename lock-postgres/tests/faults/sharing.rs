//! Readers and writers: shared advisory locks, and exclusive ones that become shared.

use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use lock_core::{LockClient, LockGuard, Wait};

use crate::concurrently::build_an_index;
use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, ensure, poll_times, soon};

cases!("sharing":
    a_reader_excludes_what_other_programs_lock,
    readers_of_one_client_have_a_session_each,
    a_terminated_reader_leaves_the_others,
    a_reader_waits_behind_a_writer_of_another_program,
    a_reader_dropped_at_the_moment_of_the_grant_leaves_nothing,
    a_cancelled_reader_waits_again,
    no_writer_comes_in_while_a_writer_becomes_a_reader,
    a_cancelled_downgrade_leaves_no_gap,
    a_downgrade_that_no_standby_has_costs_no_hold,
    an_index_is_built_beside_waiters,
);

/// How many sessions hold the room.
async fn holders(stage: &Stage, mode: &str) -> Outcome<u64> {
    let key = lock_postgres::key(ROOM).cast_unsigned() & 0xffff_ffff;
    let condition = format!("objid={key}::oid AND granted AND mode='{mode}'");
    stage
        .number(&format!(
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid=database \
             WHERE datname=current_database() AND locktype='advisory' AND {condition}"
        ))
        .await
}

async fn reader(client: &LockClient) -> Outcome<LockGuard> {
    Ok(soon("to read", client.rw_lock(ROOM)?.read().acquire()).await??)
}

/// An owner that writes and also reads.
async fn writer_that_reads(client: &LockClient) -> Outcome<(LockGuard, LockGuard)> {
    let lock = client.rw_lock(ROOM)?;
    let writer = lock.write().acquire().await?;
    let reader = lock.read().acquire_as(writer.owner(), Wait::Try).await?;
    Ok((writer, reader.ok_or_else(|| Failure::new("the writer may not read"))?))
}

async fn a_reader_excludes_what_other_programs_lock() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let key = lock_postgres::key(ROOM);
    let guard = reader(&client).await?;
    let mut other = stage.session().await?;
    let mut tried = async |function: &str| -> Outcome<bool> {
        let rows = other.query(&format!("SELECT {function}({key})")).await?;
        Ok(rows == [[Some("t".to_owned())]])
    };
    ensure!(!tried("pg_try_advisory_lock").await?, "another program writes beside a reader");
    ensure!(tried("pg_try_advisory_lock_shared").await?, "another program may not read");
    guard.release().await?;
    let writes = client.rw_lock(ROOM)?.write();
    ensure!(writes.try_acquire().await?.is_none(), "a writer beside the reader of another program");
    ensure!(tried("pg_advisory_unlock_shared").await?, "the other program does not read");
    writes.acquire().await?.release().await?;
    Ok(())
}

/// In one session the server would grant the second without a look at those that wait.
async fn readers_of_one_client_have_a_session_each() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut guards = Vec::new();
    for _ in 0..8 {
        guards.push(reader(&client).await?);
    }
    ensure!(
        holders(&stage, "ShareLock").await? == 8,
        "{} sessions read",
        holders(&stage, "ShareLock").await?
    );
    let other = client.mutex("another room")?.acquire().await?;
    ensure!(stage.connections().await? <= 9, "{} connections", stage.connections().await?);
    for guard in guards {
        guard.release().await?;
    }
    other.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

async fn a_terminated_reader_leaves_the_others() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(WATCHFUL).await?;
    let guards = [reader(&client).await?, reader(&client).await?, reader(&client).await?];
    let lost = guards[1].hold().id().to_string();
    let process = lost.split(' ').nth(1).unwrap_or_default().to_owned();
    stage.terminate(&process).await?;
    soon("the loss", guards[1].lost()).await?;
    let [first, second, third] = guards;
    ensure!(first.hold().is_valid() && third.hold().is_valid(), "another reader was lost with it");
    ensure!(second.release().await.is_err(), "a lost hold was released");
    ensure!(client.rw_lock(ROOM)?.write().try_acquire().await?.is_none(), "a writer beside readers");
    first.release().await?;
    third.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

async fn a_reader_waits_behind_a_writer_of_another_program() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let first = reader(&client).await?;
    let key = lock_postgres::key(ROOM);
    let mut other = stage.session().await?;
    let writing = tokio::spawn(async move {
        other.query(&format!("SELECT pg_advisory_lock({key})")).await?;
        Outcome::Ok(other)
    });
    stage.queued(1).await?;
    let reads = client.rw_lock(ROOM)?.read();
    ensure!(reads.try_acquire().await?.is_none(), "a reader went before a writer that waits");
    let second = Waiter::start(reads);
    stage.queued(2).await?;
    first.release().await?;
    let other = soon("the other program's turn", writing).await???;
    stage.queued(1).await?;
    ensure!(!second.is_finished(), "a reader beside a writer");
    drop(other);
    let (guard, _) = second.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

async fn a_reader_dropped_at_the_moment_of_the_grant_leaves_nothing() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let reads = client.rw_lock(ROOM)?.read();
    for round in 0..100 {
        let held = holder.mutex(ROOM)?.acquire().await?;
        let mut acquiring = Box::pin(reads.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        let releasing = tokio::spawn(held.release());
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(round * 10) {
            std::hint::spin_loop();
        }
        drop(acquiring);
        soon("the release", releasing).await???;
        soon("the undoing", client.idle()).await?;
        ensure!(holders(&stage, "ShareLock").await? == 0, "round {round}: the room is still read");
    }
    stage.works(&client).await
}

async fn a_cancelled_reader_waits_again() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::start(client.rw_lock(ROOM)?.read());
    for _ in 0..5 {
        stage.queued(1).await?;
        stage.cancel_waiter().await?;
    }
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "after the release").await
}

/// A writer of another client waits all the time.
async fn no_writer_comes_in_while_a_writer_becomes_a_reader() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    for round in 0..30 {
        let (writer, reader) = writer_that_reads(&client).await?;
        let waiter = Waiter::of(&other)?;
        stage.queued(1).await?;
        let written = writer.token();
        writer.release().await?;
        ensure!(reader.hold().is_valid() && !waiter.is_finished(), "round {round}: a writer came between");
        ensure!(holders(&stage, "ShareLock").await? == 1, "round {round}: no session reads");
        ensure!(holders(&stage, "ExclusiveLock").await? == 0, "round {round}: a session still writes");
        ensure!(reader.token() > written, "round {round}: {written:?} before {:?}", reader.token());
        reader.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    stage.nothing_is_left(&client, "at the end").await
}

async fn a_cancelled_downgrade_leaves_no_gap() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let mut administrator = stage.session().await?;
    for round in 0..30 {
        let (writer, reader) = writer_that_reads(&client).await?;
        let process = stage.holder().await?;
        let waiter = Waiter::of(&other)?;
        stage.queued(1).await?;
        let releasing = tokio::spawn(writer.release());
        let cancel = format!("SELECT pg_cancel_backend({process})");
        for _ in 0..20 {
            administrator.query(&cancel).await?;
        }
        soon("the end of writing", releasing).await???;
        ensure!(reader.hold().is_valid() && !waiter.is_finished(), "round {round}: a writer came between");
        reader.release().await?;
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
        soon("the undoing", client.idle()).await?;
        ensure!(stage.held().await? == 0, "round {round}: {} are held", stage.held().await?);
    }
    stage.nothing_is_left(&client, "at the end").await
}

/// Its token is one of a sequence, whose commit waits for the standby.
async fn a_downgrade_that_no_standby_has_costs_no_hold() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client("lease=12s&fencing=sequence").await?;
    let held = client.mutex("held")?.acquire().await?;
    let lock = client.rw_lock(ROOM)?;
    let writer = lock.write().try_acquire().await?.ok_or_else(|| Failure::new("a free lock was refused"))?;
    let reader = lock.read().acquire_as(writer.owner(), Wait::Try).await?;
    let reader = reader.ok_or_else(|| Failure::new("the writer may not read"))?;
    ensure!(stage.holder_of("held").await? == Some(stage.holder().await?), "each has a session");
    stage.query("ALTER SYSTEM SET synchronous_standby_names='absent'").await?;
    stage.query("SELECT pg_reload_conf()").await?;
    // The next number after it is written.
    stage.query("CHECKPOINT").await?;
    let releasing = tokio::spawn(writer.release());
    // Only a hold that is checked is valid for so long.
    let lost = tokio::time::timeout(Duration::from_secs(13), held.lost()).await;
    ensure!(lost.is_err() && reader.hold().is_valid(), "the other hold is lost: {lost:?}");
    stage.query("ALTER SYSTEM RESET synchronous_standby_names").await?;
    stage.query("SELECT pg_reload_conf()").await?;
    soon("the end of writing", releasing).await???;
    reader.release().await?;
    Ok(held.release().await?)
}

async fn an_index_is_built_beside_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let permits = holder.semaphore(ROOM, 2)?.acquire(2).await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?];
    let mut waiters = Vec::new();
    for client in &clients {
        waiters.push(Waiter::start(client.rw_lock(ROOM)?.read()));
        waiters.push(Waiter::start(client.semaphore(ROOM, 2)?.permits(1)?));
    }
    // One of those that wait for permits is at the head, and looks for them itself.
    stage.queued(3).await?;
    build_an_index(&stage).await?;
    ensure!(held.hold().is_valid() && permits.hold().is_valid(), "a lock was lost");
    stage.queued(3).await?;
    held.release().await?;
    permits.release().await?;
    for waiter in waiters {
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    stage.nothing_is_left(&clients[0], "at the end").await
}
