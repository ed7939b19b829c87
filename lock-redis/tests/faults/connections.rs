//! What is left of a client's connection after the client ends, or while it works.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::{ClientBuilder, EngineChoice, ErrorKind};
use lock_kit::LockUrl;

use crate::case::{cases, ensure};
use crate::stage::{LONG, PATIENCE, ROOM, Stage, Waiter, until};

cases!("connections":
    a_closed_client_has_none,
    a_closed_client_makes_no_new_one,
    a_dropped_client_has_none,
    a_dropped_client_on_the_callers_runtime_has_none,
    a_client_has_one,
);

async fn no_connection(stage: &Stage) -> Outcome {
    until("no connection and no channel is left", || async {
        Ok(stage.connections().await?.is_empty() && stage.channels().await?.is_empty())
    })
    .await
}

/// Remaining handles of the client, or of a lock, keep no connection open.
async fn a_closed_client_has_none() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let lock = client.mutex(ROOM)?;
    lock.acquire().await?.release().await?;
    client.close(PATIENCE).await?;
    no_connection(&stage).await?;
    let refused = lock.try_acquire().await.map(|guard| guard.is_some()).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::Closed), "{refused:?}");
    stage.nothing_is_left("after the close").await
}

async fn a_closed_client_makes_no_new_one() -> Outcome {
    let stage = Stage::new().await?;
    let proxy = stage.proxy()?;
    let (client, time) = stage.frozen_at(proxy.address(), LONG).await?;
    stage.works(&client).await?;
    client.close(PATIENCE).await?;
    proxy.cut();
    time.advance(Duration::from_secs(600));
    // What the cut or the time had made it do comes before all that this one does.
    let other = stage.client_at(proxy.address(), LONG).await?;
    stage.works(&other).await?;
    ensure!(stage.connections().await?.len() == 1, "it is connected again");
    Ok(())
}

async fn a_dropped_client_has_none() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    let waiter = Waiter::of(&client)?;
    let (guard, _) = waiter.granted().await?;
    drop(guard);
    drop(client);
    no_connection(&stage).await?;
    stage.nothing_is_left("after the drop").await
}

async fn a_dropped_client_on_the_callers_runtime_has_none() -> Outcome {
    let stage = Stage::new().await?;
    let builder = ClientBuilder::new().engine(EngineChoice::Caller);
    let client = lock_redis::connect(&LockUrl::parse(&stage.server.url())?, builder).await?;
    stage.works(&client).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    drop(client);
    drop(guard);
    no_connection(&stage).await?;
    stage.nothing_is_left("after the drop").await
}

/// However many locks it holds and waits for.
async fn a_client_has_one() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let held = other.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let mut guards = Vec::new();
    for number in 0..20 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    let (connections, channels) = (stage.connections().await?, stage.channels().await?);
    ensure!(connections.len() == 2 && channels.len() == 2, "{connections:?} {channels:?}");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    for guard in guards {
        guard.release().await?;
    }
    client.idle().await;
    stage.nothing_is_left("after the releases").await
}
