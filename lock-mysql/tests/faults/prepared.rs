//! What a session has prepared, with which it begins an attempt. A session of `MySQL` prepares nothing, and does the same.

use std::collections::HashSet;
use std::pin::pin;

use conformance_tests::Outcome;
use lock_core::{LockClient, Operation};
use test_servers::{Losing, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::sharing::{nothing_is_left, pinned, reader, writer};
use crate::stage::{LONG, ROOM, Stage, Waiter, poll_times, reach, soon};

cases!("prepared":
    a_session_that_may_not_prepare_sends_texts,
    a_session_that_has_not_prepared_what_it_is_to_carry_out_is_given_up,
    what_a_dropped_attempt_has_begun_is_given_back,
    what_was_begun_without_an_answer_is_undone,
    a_held_lock_is_waited_for_by_a_text,
    a_writer_that_begins_behind_a_reader_lets_the_gate_go,
);

/// Uses the lock so often that the client has prepared, and has begun so.
async fn prepares(stage: &Stage, client: &LockClient) -> Outcome {
    for _ in 0..3 {
        stage.works(client).await?;
    }
    Ok(())
}

/// As when the server has as many prepared statements as it may have. The attempt that is made again may open another connection, if it
/// comes before the first one is given back.
async fn a_session_that_may_not_prepare_sends_texts(flavour: MySqlFlavour) -> Outcome {
    let used = connections_of_six(flavour, " FROM 'SELECT", " FROM 'nothing SELECT").await?;
    let most = if flavour == MySqlFlavour::MariaDb { 2 } else { 1 };
    ensure!(used <= most, "a lock was taken six times on {used} connections");
    Ok(())
}

/// As behind a proxy that has begun to spread statements over its connections. Each connection begins with a text.
async fn a_session_that_has_not_prepared_what_it_is_to_carry_out_is_given_up(
    flavour: MySqlFlavour,
) -> Outcome {
    let used = connections_of_six(flavour, "*/ distlock_take USING", "*/ distlock_other USING").await?;
    let expected = if flavour == MySqlFlavour::MariaDb { 6 } else { 1 };
    ensure!(used == expected, "a lock was taken six times on {used} connections");
    Ok(())
}

/// On how many connections a free lock is taken, behind a proxy that replaces `old` with `new`.
async fn connections_of_six(flavour: MySqlFlavour, old: &'static str, new: &'static str) -> Outcome<usize> {
    let (stage, middleman, _pin) = pinned(flavour, old, new).await?;
    let client = reach(&middleman.url(LONG)).await?;
    let mut used = HashSet::new();
    for _ in 0..6 {
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        used.insert(stage.holder().await?);
        guard.release().await?;
    }
    soon("the undoing", client.idle()).await?;
    nothing_is_left(&stage).await?;
    Ok(used.len())
}

/// The server has granted the lock when the client interrupts the statement, and the answer does not say so.
async fn what_a_dropped_attempt_has_begun_is_given_back(flavour: MySqlFlavour) -> Outcome {
    if flavour != MySqlFlavour::MariaDb {
        return Ok(());
    }
    let longer = "GET_LOCK(?,0)*GET_LOCK(''pin'',600)";
    let (stage, middleman, mut pin) = pinned(flavour, "GET_LOCK(?,0)", longer).await?;
    let client = reach(&middleman.url(LONG)).await?;
    stage.works(&client).await?;
    let lock = client.mutex(ROOM)?;
    for _ in 0..2 {
        let mut acquiring = pin!(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "an attempt did not wait for the pin");
        stage.queued(1).await?;
        stage.holder().await?;
        acquiring.set(lock.acquire());
        soon("the undoing", client.idle()).await?;
        ensure!(stage.waiting().await? == 0, "a client waits");
        nothing_is_left(&stage).await?;
    }
    pin.query("SELECT RELEASE_LOCK('pin')").await?;
    stage.works(&client).await
}

/// Once with what is prepared in the same message, and once with what was.
async fn what_was_begun_without_an_answer_is_undone(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    for uses in 1..3 {
        let proxy = stage.proxy()?;
        let client = stage.client_at(proxy.address(), LONG).await?;
        for _ in 0..uses {
            stage.works(&client).await?;
        }
        proxy.lose_reply(Operation::Acquire, Losing::Cut);
        let sent = proxy.requests(Operation::Acquire);
        let guard = soon("the lock", client.mutex(ROOM)?.acquire()).await??;
        ensure!(proxy.requests(Operation::Acquire) > sent + 1, "the answer was not lost");
        ensure!(guard.hold().is_valid(), "the hold has ended");
        guard.release().await?;
        soon("the undoing", client.idle()).await?;
        nothing_is_left(&stage).await?;
    }
    Ok(())
}

async fn a_held_lock_is_waited_for_by_a_text(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client, third) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    prepares(&stage, &client).await?;
    prepares(&stage, &third).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let waiters = holder.status(ROOM).await?.waiters.len();
    ensure!(waiters == 1, "a status shows {waiters} waiters");
    ensure!(third.mutex(ROOM)?.try_acquire().await?.is_none(), "a held lock was given");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    nothing_is_left(&stage).await
}

/// Other readers pass the gate, which the server itself has let go.
async fn a_writer_that_begins_behind_a_reader_lets_the_gate_go(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (proxy, ours) = (stage.proxy()?, stage.client(LONG).await?);
    let theirs = stage.client_at(proxy.address(), LONG).await?;
    let third = stage.client_at(proxy.address(), LONG).await?;
    prepares(&stage, &theirs).await?;
    prepares(&stage, &third).await?;
    let held = reader(&ours).await?;
    let sent = || (proxy.requests(Operation::Acquire), proxy.requests(Operation::Cancel));
    let (acquired, cancelled) = sent();
    ensure!(third.rw_lock(ROOM)?.write().try_acquire().await?.is_none(), "a writer is beside a reader");
    let statements = if flavour == MySqlFlavour::MariaDb { 2 } else { 1 };
    ensure!(sent() == (acquired + statements, cancelled), "{acquired}, {cancelled}; now {:?}", sent());
    let waiter = writer(&theirs)?;
    stage.queued(1).await?;
    ensure!(ours.rw_lock(ROOM)?.read().try_acquire().await?.is_none(), "a reader passes a writer that waits");
    ensure!(!waiter.is_finished() && held.hold().is_valid(), "a writer is beside a reader");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    soon("the undoing", theirs.idle()).await?;
    nothing_is_left(&stage).await
}
