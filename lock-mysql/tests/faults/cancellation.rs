//! Dropped futures: after a second they have left neither a waiter nor a lock.

use std::pin::pin;
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::{LockClient, Operation};
use test_servers::{Losing, MySqlFlavour};

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, poll_times, soon, until};

cases!("cancellation":
    after_each_poll_of_an_acquire_of_a_free_lock,
    after_each_poll_of_an_acquire_of_a_held_lock,
    at_any_moment_of_an_acquire,
    while_the_grant_is_on_its_way,
    without_a_connection_to_interrupt_it,
    although_the_interruption_is_not_answered,
    by_dropping_the_client,
    of_a_hundred_waits_at_once,
);

/// A busy machine may be late, but hardly each time.
const SOON: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_secs(10);

async fn nothing_is_left(stage: &Stage, client: &LockClient, when: &str) -> Outcome {
    soon("the undoing", client.idle()).await?;
    ensure!(stage.waiting().await? == 0, "{when}: a client waits");
    ensure!(stage.holder_of(ROOM).await?.is_none(), "{when}: the lock is held");
    Ok(())
}

async fn after_each_poll_of_an_acquire_of_a_free_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for polls in 0.. {
        let mut acquiring = Box::pin(lock.acquire());
        let ready = poll_times(acquiring.as_mut(), polls).await?;
        drop(acquiring);
        if let Some(ready) = ready {
            ready?.release().await?;
            break;
        }
        nothing_is_left(&stage, &client, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

async fn after_each_poll_of_an_acquire_of_a_held_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let mut quickest = LATE;
    for round in 0..20 {
        let polls = round % 3;
        let mut acquiring = Box::pin(lock.acquire());
        for _ in 0..polls {
            ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        }
        if polls > 0 {
            stage.queued(1).await?;
        }
        let dropped = Instant::now();
        drop(acquiring);
        stage.queued(0).await?;
        quickest = quickest.min(dropped.elapsed());
        ensure!(dropped.elapsed() < LATE, "a waiter was left for {:?}", dropped.elapsed());
    }
    ensure!(quickest < SOON, "the quickest of them left after {quickest:?}");
    held.release().await?;
    nothing_is_left(&stage, &client, "at the end").await
}

/// The future is dropped a little later each time, from before the statement is sent until after the answer is read.
async fn at_any_moment_of_an_acquire(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for step in 0..200 {
        let dropped_after = Duration::from_micros(step * 20);
        let held = if step % 2 == 0 { None } else { Some(other.mutex(ROOM)?.acquire().await?) };
        {
            let mut acquiring = pin!(lock.acquire());
            let began = Instant::now();
            let _ = poll_times(acquiring.as_mut(), 1).await?;
            while began.elapsed() < dropped_after {
                std::hint::spin_loop();
            }
        }
        drop(held);
        soon("the release", other.idle()).await?;
        nothing_is_left(&stage, &client, &format!("dropped after {dropped_after:?}")).await?;
    }
    stage.works(&client).await
}

/// The server has granted the lock to a waiter that is about to be dropped.
async fn while_the_grant_is_on_its_way(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let next = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let waiter = {
        let mut acquiring = pin!(lock.acquire());
        proxy.hold_reply(Operation::Acquire);
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        let waiter = Waiter::of(&next)?;
        stage.queued(2).await?;
        held.release().await?;
        soon("the grant", proxy.reply_is_held()).await?;
        waiter
    };
    proxy.let_replies_go();
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    nothing_is_left(&stage, &client, "the grant was on its way").await
}

/// The client drops the connection of the wait without sending anything on it: with an unread byte, the server would not notice for
/// as long as the wait lasts.
async fn without_a_connection_to_interrupt_it(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    stage.works(&client).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    proxy.refuse();
    {
        let mut acquiring = pin!(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
    }
    let dropped = Instant::now();
    stage.queued(0).await?;
    ensure!(dropped.elapsed() < LATE, "a waiter was left for {:?}", dropped.elapsed());
    proxy.heal();
    held.release().await?;
    nothing_is_left(&stage, &client, "at the end").await?;
    stage.works(&client).await
}

async fn although_the_interruption_is_not_answered(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let proxy = stage.proxy()?;
    // The client soon gives up an answer that is lost.
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), "lease=10m").await?);
    let lock = client.mutex(ROOM)?;
    for losing in [Losing::Silence, Losing::Cut, Losing::ResetHalfway] {
        let held = holder.mutex(ROOM)?.acquire().await?;
        {
            let mut acquiring = pin!(lock.acquire());
            ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
            stage.queued(1).await?;
            proxy.lose_reply(Operation::Cancel, losing);
        }
        stage.queued(0).await?;
        held.release().await?;
        nothing_is_left(&stage, &client, &format!("{losing:?}")).await?;
        stage.works(&client).await?;
    }
    Ok(())
}

async fn by_dropping_the_client(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    {
        let mut acquiring = Box::pin(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        drop(acquiring);
        drop((lock, client));
    }
    stage.queued(0).await?;
    until("its connections are gone", || async { Ok(stage.connections().await? == 1) }).await?;
    held.release().await?;
    stage.works(&holder).await
}

async fn of_a_hundred_waits_at_once(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let mut held = Vec::new();
    let mut waiting = Vec::new();
    for number in 0..90 {
        held.push(holder.mutex(format!("room {number}"))?.acquire().await?);
        let lock = client.mutex(format!("room {number}"))?;
        waiting.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    // The others wait in the client.
    stage.queued(16).await?;
    let dropped = Instant::now();
    for waiting in &waiting {
        waiting.abort();
    }
    stage.queued(0).await?;
    ensure!(dropped.elapsed() < LATE, "they were left for {:?}", dropped.elapsed());
    soon("the undoing", client.idle()).await?;
    ensure!(held.iter().all(|guard| guard.hold().is_valid()), "a hold has ended");
    Ok(())
}
