//! Dropped futures: whatever was on its way, they leave nothing at the server.

use std::pin::pin;
use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{LockClient, Operation};
use test_servers::Direction;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, Waiter, drop_after, poll_times, soon};

cases!("cancellation":
    after_each_poll_of_an_acquire_of_a_free_lock,
    after_each_poll_of_an_acquire_of_a_held_lock,
    at_any_moment_of_an_acquire,
    while_the_answer_is_on_its_way,
    while_the_script_is_loaded,
    while_the_grant_is_on_its_way,
    after_each_poll_of_a_release,
);

/// Checks that no key and no place is left, and no channel but those of the living clients, and that the lock is free.
async fn nothing_is_left(stage: &Stage, client: &LockClient, clients: usize, when: &str) -> Outcome {
    soon("the undoing", client.idle()).await?;
    stage.nothing_is_left(when).await?;
    let channels = stage.channels().await?;
    ensure!(channels.len() == clients, "{when}: {channels:?}");
    stage.works(client).await
}

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
        nothing_is_left(&stage, &client, 1, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

async fn after_each_poll_of_an_acquire_of_a_held_lock() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for polls in 0..2 {
        let held = holder.mutex(ROOM)?.acquire().await?;
        let mut acquiring = Box::pin(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), polls).await?.is_none(), "a held lock was given");
        if polls > 0 {
            stage.queued(1).await?;
        }
        drop(acquiring);
        soon("the undoing", client.idle()).await?;
        stage.queued(0).await?;
        held.release().await?;
        nothing_is_left(&stage, &client, 2, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}

/// Drops the future a little later each time, from before the request is sent until after the reply is read.
async fn at_any_moment_of_an_acquire() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let lock = client.mutex(ROOM)?;
    for step in 0..150 {
        let dropped_after = Duration::from_micros(step * 20);
        let held = if step % 2 == 0 { None } else { Some(other.mutex(ROOM)?.acquire().await?) };
        drop_after(lock.acquire(), dropped_after).await?;
        drop(held);
        soon("the release", other.idle()).await?;
        soon("the undoing", client.idle()).await?;
        stage.nothing_is_left(format_args!("dropped after {dropped_after:?}")).await?;
    }
    nothing_is_left(&stage, &client, 2, "at the end").await
}

async fn while_the_answer_is_on_its_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    proxy.hold_reply(Operation::Acquire);
    {
        let mut acquiring = pin!(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "it was not pending");
        soon("the answer", proxy.reply_is_held()).await?;
        ensure!(stage.holder().await?.is_some(), "it was not granted");
    }
    proxy.let_replies_go();
    nothing_is_left(&stage, &client, 1, "the answer was on its way").await
}

async fn while_the_script_is_loaded() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let client = stage.client_at(proxy.address(), LONG).await?;
    let lock = client.mutex(ROOM)?;
    for _ in 0..3 {
        stage.server.command(&["SCRIPT", "FLUSH"]).await?;
        proxy.blackhole(Direction::ToServer);
        {
            let mut acquiring = pin!(lock.acquire());
            ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "it was not pending");
            proxy.heal();
        }
        nothing_is_left(&stage, &client, 1, "the script was forgotten").await?;
    }
    Ok(())
}

/// The server has granted the lock to an attempt that is about to be dropped.
async fn while_the_grant_is_on_its_way() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (holder, client) = (stage.client(LONG).await?, stage.client_at(proxy.address(), LONG).await?);
    let next = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.mutex(ROOM)?;
    let waiter = {
        let mut acquiring = pin!(lock.acquire());
        ensure!(poll_times(acquiring.as_mut(), 1).await?.is_none(), "a held lock was given");
        stage.queued(1).await?;
        let waiter = Waiter::of(&next)?;
        stage.queued(2).await?;
        proxy.blackhole(Direction::ToClient);
        held.release().await?;
        stage.queued(1).await?;
        waiter
    };
    proxy.heal();
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    nothing_is_left(&stage, &client, 3, "the grant was on its way").await
}

/// The first poll ends the hold, and no future has to be polled for the rest.
async fn after_each_poll_of_a_release() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    for polls in 0..3 {
        let guard = lock.acquire().await?;
        let mut releasing = Box::pin(guard.release());
        let ready = poll_times(releasing.as_mut(), polls).await?;
        drop(releasing);
        ready.transpose()?;
        nothing_is_left(&stage, &client, 1, &format!("dropped after {polls} polls")).await?;
    }
    Ok(())
}
