//! Errors that a server returns for a while, and that pass.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockError, LockGuard, LossReason};
use test_servers::{TcpProxy, Value};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, key, outlast, soon, until};

cases!("states":
    out_of_memory_refuses_an_acquire_and_says_what_to_do,
    out_of_memory_ends_no_hold_and_no_hand_off,
    out_of_memory_costs_no_waiter_its_place,
    a_primary_that_becomes_a_replica_and_a_primary_again,
    a_primary_that_another_has_replaced_is_left,
    a_script_that_blocks_the_server_is_waited_for,
    a_script_that_blocks_the_server_costs_no_hold,
    forgotten_scripts_are_loaded_again,
    forgotten_scripts_cost_no_renewal,
    scripts_that_are_forgotten_again_and_again,
    a_key_of_another_kind_is_named,
    a_key_of_another_kind_stands_where_a_break_is_noted,
);

/// Makes the server refuse all commands that need memory.
async fn fill(stage: &Stage) -> Outcome {
    stage.server.command(&["CONFIG", "SET", "maxmemory", "1"]).await.map(drop)
}

async fn empty(stage: &Stage) -> Outcome {
    stage.server.command(&["CONFIG", "SET", "maxmemory", "0"]).await.map(drop)
}

fn refusal(answer: Result<Option<LockGuard>, LockError>, parts: &[&str]) -> Outcome {
    let Err(error) = answer else {
        return Err(Failure::new("the server refuses, and no caller has learnt of it"));
    };
    let text = error.to_string();
    ensure!(error.kind() == ErrorKind::Server && error.is_retryable(), "{error:?}");
    ensure!(parts.iter().all(|part| text.contains(part)), "{text}");
    Ok(())
}

async fn out_of_memory_refuses_an_acquire_and_says_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    fill(&stage).await?;
    let lock = client.mutex(ROOM)?;
    refusal(lock.try_acquire().await, &["OOM", "maxmemory"])?;
    refusal(lock.try_acquire_for(Duration::from_millis(300)).await, &["OOM", "maxmemory"])?;
    let waiter = Waiter::of(&client)?;
    client.mutex("another room")?.try_acquire().await.err().ok_or_else(|| Failure::new("it is full"))?;
    stage.nothing_is_left("while it is full").await?;
    empty(&stage).await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

async fn out_of_memory_ends_no_hold_and_no_hand_off() -> Outcome {
    let stage = Stage::new().await?;
    let ((ours, time), theirs) = (stage.frozen(FROZEN).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    fill(&stage).await?;
    outlast(&time, INTERVAL, [&guard], async || Ok(())).await?;
    ensure!(recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("after both").await
}

/// A heartbeat needs no more memory than the waiter already has.
async fn out_of_memory_costs_no_waiter_its_place() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, (ours, time), theirs) =
        (stage.client(LONG).await?, stage.frozen(FROZEN).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&ours)?;
    stage.queued(1).await?;
    let second = Waiter::of(&theirs)?;
    stage.queued(2).await?;
    fill(&stage).await?;
    // The server notes of each waiter until when it may stay silent.
    let waiters = || async { stage.texts(&["HVALS", &key(ROOM, 'w')]).await };
    let before = waiters().await?;
    time.advance(INTERVAL);
    until("a heartbeat is noted", || async { Ok(waiters().await? != before) }).await?;
    held.release().await?;
    let (guard, _) = first.granted().await?;
    ensure!(!second.is_finished(), "the second had the lock together with the first");
    guard.release().await?;
    let (guard, _) = second.granted().await?;
    Ok(guard.release().await?)
}

async fn a_primary_that_becomes_a_replica_and_a_primary_again() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=20s&timeout=500ms").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    // No primary is there: the replica keeps its data, and takes no writes.
    stage.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await?;
    let other = client.mutex("another room")?;
    let refused = other.try_acquire().await;
    let error = refused.err().ok_or_else(|| Failure::new("a replica has given a lock"))?;
    ensure!(error.is_retryable() && error.to_string().contains("primary"), "{error}");
    recorder.suspect().await?;
    let waiter = Waiter::start(other);
    stage.server.command(&["REPLICAOF", "NO", "ONE"]).await?;
    recorder.restored().await?;
    let (room, _) = waiter.granted().await?;
    room.release().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    stage.nothing_is_left("after the release").await
}

/// The connection is intact. Only the next one leads to the new primary.
async fn a_primary_that_another_has_replaced_is_left() -> Outcome {
    let (old, new) = (Stage::new().await?, Stage::new().await?);
    let switch = TcpProxy::start(old.server.address())?;
    let client = old.client_at(switch.address(), "lease=12s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    switch.turn_to(new.server.address());
    old.server.command(&["REPLICAOF", "127.0.0.1", &new.server.address().port().to_string()]).await?;
    // The new primary does not know the hold.
    let (reason, _) = recorder.abort().await?;
    ensure!(reason == LossReason::Deleted, "lost because {reason}");
    drop(guard);
    new.works(&client).await?;
    ensure!(new.connections().await?.len() == 1, "{:?}", new.connections().await?);
    ensure!(old.connections().await?.is_empty(), "{:?}", old.connections().await?);
    Ok(())
}

/// Runs a script until it is killed; the server then answers that it is busy.
async fn block(stage: &Stage) -> Outcome {
    stage.server.command(&["CONFIG", "SET", "lua-time-limit", "20"]).await?;
    let mut blocking = tokio::net::TcpStream::connect(stage.server.address()).await?;
    tokio::io::AsyncWriteExt::write_all(&mut blocking, b"EVAL \"while true do end\" 0\r\n").await?;
    until("the server is blocked", || async {
        Ok(stage.server.command(&["PING"]).await.is_err_and(|failure| failure.to_string().contains("BUSY")))
    })
    .await
}

async fn unblock(stage: &Stage) -> Outcome {
    stage.server.command(&["SCRIPT", "KILL"]).await.map(drop)
}

async fn a_script_that_blocks_the_server_is_waited_for() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    block(&stage).await?;
    let lock = client.mutex(ROOM)?;
    let refused = [lock.try_acquire().await, lock.try_acquire_for(Duration::from_millis(300)).await];
    let waiter = Waiter::of(&client)?;
    unblock(&stage).await?;
    for refused in refused {
        refusal(refused, &["BUSY", "SCRIPT KILL"])?;
    }
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    client.idle().await;
    stage.nothing_is_left("after the release").await
}

async fn a_script_that_blocks_the_server_costs_no_hold() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=8s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    block(&stage).await?;
    let suspected = recorder.suspect().await;
    unblock(&stage).await?;
    suspected?;
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "lost: {:?}", recorder.events());
    Ok(guard.release().await?)
}

async fn flush_scripts(stage: &Stage) -> Outcome {
    stage.server.command(&["SCRIPT", "FLUSH"]).await.map(drop)
}

async fn forgotten_scripts_are_loaded_again() -> Outcome {
    let stage = Stage::new().await?;
    let (ours, theirs) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = ours.mutex(ROOM)?;
    flush_scripts(&stage).await?;
    let guard = lock.try_acquire().await?.ok_or_else(|| Failure::new("a free lock was not given"))?;
    flush_scripts(&stage).await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    flush_scripts(&stage).await?;
    ensure!(ours.status(ROOM).await?.waiters.len() == 1, "the waiter is not shown");
    flush_scripts(&stage).await?;
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    flush_scripts(&stage).await?;
    let lock = ours.mutex(ROOM)?;
    let given_up = tokio::spawn(async move { lock.acquire().await.map(drop) });
    stage.queued(1).await?;
    flush_scripts(&stage).await?;
    given_up.abort();
    soon("the cancel", ours.idle()).await?;
    stage.queued(0).await?;
    flush_scripts(&stage).await?;
    let holder = ours.status(ROOM).await?.holders.remove(0).id;
    flush_scripts(&stage).await?;
    ours.break_holder(ROOM, &holder).await?;
    ensure!(stage.holder().await?.is_none(), "the broken hold stands");
    drop(guard);
    Ok(())
}

/// Clients notice nothing: a script that is loaded again is no loss of contact.
async fn forgotten_scripts_cost_no_renewal() -> Outcome {
    // So short that no PING is due between two renewals: one that is sent while the time jumps is not answered in time.
    const INTERVAL: Duration = Duration::from_millis(6100);
    let stage = Stage::new().await?;
    let (client, time) = stage.frozen("lease=24s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    outlast(&time, INTERVAL, [&guard], async || flush_scripts(&stage).await).await?;
    ensure!(recorder.aborts() == 0, "lost: {:?}", recorder.events());
    guard.release().await?;
    let noise = recorder.events();
    ensure!(!noise.contains(&crate::event_recorder::Event::Suspect), "{noise:?}");
    Ok(())
}

async fn scripts_that_are_forgotten_again_and_again() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    let flushing = async {
        loop {
            if let Err(failure) = flush_scripts(&stage).await {
                return failure;
            }
            // Between two of them there is time for one request, but not for many.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let working = async {
        for _ in 0..100 {
            lock.acquire().await?.release().await?;
        }
        Ok::<_, Failure>(())
    };
    tokio::select! {
        failure = flushing => Err(failure),
        worked = soon("the work", working) => worked?,
    }
}

/// The client leaves another program's key as it is, and tells the user which it is.
async fn a_key_of_another_kind_is_named() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    for (room, part) in [("room 1", 'l'), ("room 2", 'f')] {
        let key = key(room, part);
        stage.server.command(&["HSET", &key, "field", "value"]).await?;
        let answer = client.mutex(room)?.try_acquire().await.map(|guard| guard.is_some());
        names_the_foreign(&stage, &key, answer).await?;
    }
    let left = stage.leftovers().await?;
    ensure!(left == [key("room 1", 'l')], "{left:?} is left");
    Ok(())
}

/// The lock is not taken away before it is certain that the holder can learn of the break.
async fn a_key_of_another_kind_stands_where_a_break_is_noted() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let key = key(ROOM, 'b');
    stage.server.command(&["HSET", &key, "field", "value"]).await?;
    let holder = client.status(ROOM).await?.holders.remove(0).id;
    let answer = client.break_holder(ROOM, &holder).await.map(|broken| broken.taken_away);
    names_the_foreign(&stage, &key, answer).await?;
    ensure!(guard.hold().is_valid(), "the hold has ended");
    Ok(guard.release().await?)
}

async fn names_the_foreign(stage: &Stage, key: &str, answer: Result<bool, LockError>) -> Outcome {
    let field = stage.server.command(&["HGET", key, "field"]).await;
    ensure!(field == Ok(Value::Text("value".to_owned())), "{key} was overwritten: {field:?}");
    let error = answer.err().ok_or_else(|| Failure::new(format!("{key} was taken for one of ours")))?;
    let text = error.to_string();
    ensure!(error.kind() == ErrorKind::Server && text.contains(key) && text.contains("prefix"), "{text}");
    Ok(())
}
