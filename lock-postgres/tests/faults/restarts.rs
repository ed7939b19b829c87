//! Restarts of the server, and standbys.

use conformance_tests::Outcome;
use lock_core::ErrorKind;

use crate::stage::{LONG, ROOM, Stage, cases, connect, ensure, soon};

cases!("restarts":
    while_nothing_is_held,
    a_standby_is_refused_until_it_is_promoted,
);

async fn while_nothing_is_held() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage.server.restart().await?;
    let guard = client.mutex(ROOM)?.try_acquire().await?;
    ensure!(guard.is_some(), "a free lock was refused");
    Ok(())
}

/// Advisory locks of a standby exclude no client of the primary.
async fn a_standby_is_refused_until_it_is_promoted() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    stage.server.restart_as_standby().await?;
    let error = connect(&stage.url()).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let kind = error.map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Unreachable) && text.contains("standby"), "answered {text}");
    let tried = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.is_retryable());
    ensure!(tried == Err(true), "a try was answered {tried:?}");
    ensure!(client.ping().await.is_err(), "the ping was answered");
    stage.server.promote().await?;
    soon("the undoing", client.idle()).await?;
    stage.works(&client).await
}
