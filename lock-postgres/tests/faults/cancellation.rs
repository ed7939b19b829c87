//! A dropped future whose cancellation never reaches the server.

use conformance_tests::Outcome;
use lock_core::Operation;

use crate::stage::{LONG, ROOM, Stage, cases, ensure, poll_times};

cases!("cancellation":
    although_the_cancellation_is_not_answered,
);

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
    proxy.let_go();
    held.release().await?;
    stage.nothing_is_left(&client, "at the end").await?;
    stage.works(&client).await
}
