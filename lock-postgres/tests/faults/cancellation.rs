//! Dropped futures, and waits that end at the moment of the grant: they leave neither a waiter nor a lock.

use std::pin::pin;
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::Operation;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, ensure, poll_times, soon};

cases!("cancellation":
    after_each_poll_of_an_acquire_of_a_free_lock,
    after_each_poll_of_an_acquire_of_a_held_lock,
    at_the_moment_of_the_grant,
    while_the_grant_is_on_its_way,
    although_the_cancellation_is_not_answered,
    of_fifty_waits_at_once,
);

/// A busy machine may be late, but hardly each time.
const SOON: Duration = Duration::from_secs(1);

async fn after_each_poll_of_an_acquire_of_a_free_lock() -> Outcome {
    let stage = Stage::new().await?;
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
        stage.nothing_is_left(&client, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

async fn after_each_poll_of_an_acquire_of_a_held_lock() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let mut quickest = Duration::MAX;
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
    }
    ensure!(quickest < SOON, "the quickest of them left after {quickest:?}");
    held.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

/// The holder releases and the waiter leaves at about the same moment. A cancelled wait may have got the lock all the same.
async fn at_the_moment_of_the_grant() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for round in 0..100 {
        let held = holder.mutex(ROOM)?.acquire().await?;
        let mut acquiring = Box::pin(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        let releasing = tokio::spawn(held.release());
        let began = Instant::now();
        while began.elapsed() < Duration::from_micros(round * 10) {
            std::hint::spin_loop();
        }
        drop(acquiring);
        soon("the release", releasing).await???;
        stage.nothing_is_left(&client, &format!("round {round}")).await?;
    }
    stage.works(&client).await
}

/// The server has granted the lock to a waiter that is about to be dropped.
async fn while_the_grant_is_on_its_way() -> Outcome {
    let stage = Stage::new().await?;
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
    stage.nothing_is_left(&client, "at the end").await
}

/// The client gives the session up, and the server ends it.
async fn although_the_cancellation_is_not_answered() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let mut acquiring = Box::pin(lock.acquire());
    ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
    stage.queued(1).await?;
    proxy.hold_request(Operation::Cancel);
    drop(acquiring);
    stage.queued(0).await?;
    proxy.let_requests_go();
    held.release().await?;
    stage.nothing_is_left(&client, "at the end").await?;
    stage.works(&client).await
}

async fn of_fifty_waits_at_once() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) =
        (stage.client(LONG).await?, stage.client("lease=10m&max_waiting=50&max_connections=60").await?);
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for number in 0..50 {
        let name = format!("room {number}");
        held.push(holder.mutex(name.as_str())?.acquire().await?);
        waiters.push(Waiter::start(client.mutex(name)?));
    }
    stage.queued(50).await?;
    for waiter in waiters {
        waiter.give_up().await?;
    }
    stage.nothing_is_left(&client, "after all have left").await?;
    for guard in held {
        guard.release().await?;
    }
    ensure!(stage.held().await? == 0, "{} are held", stage.held().await?);
    stage.works(&client).await
}
