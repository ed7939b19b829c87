//! Dropped futures for which the client has no connection, or of which no client is left.

use std::pin::pin;
use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use lock_core::LockClient;
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::stage::{LONG, ROOM, Stage, poll_times, soon, until};

cases!("cancellation":
    without_a_connection_to_interrupt_it,
    by_dropping_the_client,
);

const LATE: Duration = Duration::from_secs(10);

async fn nothing_is_left(stage: &Stage, client: &LockClient, when: &str) -> Outcome {
    soon("the undoing", client.idle()).await?;
    ensure!(stage.waiting().await? == 0, "{when}: a client waits");
    ensure!(stage.holder_of(ROOM).await?.is_none(), "{when}: the lock is held");
    Ok(())
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
