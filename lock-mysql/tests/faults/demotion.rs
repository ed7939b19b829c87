//! A server that is not a primary, or no longer one.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, Wait};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::sharing::nothing_is_left;
use crate::stage::{LONG, ROOM, Stage, WATCHFUL, connect, soon, until};

cases!("demotion":
    a_read_only_server_is_refused,
    a_holder_at_a_demoted_server_is_notified,
    a_demoted_server_gives_no_lock,
    a_server_that_is_demoted_during_a_wait_gives_no_lock,
    a_downgrade_at_a_demoted_server_leaves_no_slot,
);

async fn a_read_only_server_is_refused(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    stage.server.query("SET GLOBAL read_only = 1").await?;
    let answer = connect(&stage.url()).await;
    let error = answer.err().ok_or_else(|| Failure::new("the server was taken for a primary"))?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("primary"), "{error}");
    Ok(())
}

async fn a_holder_at_a_demoted_server_is_notified(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(WATCHFUL).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.query("SET GLOBAL read_only = 1").await?;
    recorder.abort().await?;
    ensure!(!guard.hold().is_valid(), "lost, and valid");
    drop(guard);
    until("what counts no more is given back", || async { Ok(stage.holder_of(ROOM).await?.is_none()) })
        .await?;
    stage.server.query("SET GLOBAL read_only = 0").await?;
    stage.works(&client).await
}

async fn a_demoted_server_gives_no_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    stage.server.query("SET GLOBAL read_only = 1").await?;
    let kind = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::Unreachable), "a try was answered {kind:?}");
    let lock = client.mutex(ROOM)?;
    let waiter = tokio::spawn(async move { lock.acquire().await });
    soon("the undoing", client.idle()).await?;
    stage.server.query("SET GLOBAL read_only = 0").await?;
    let guard = soon("the grant", waiter).await???;
    Ok(guard.release().await?)
}

async fn a_server_that_is_demoted_during_a_wait_gives_no_lock(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let mut session = stage.server.session().await?;
    session.query("SELECT GET_LOCK('distlock:room', 0)").await?;
    let lock = client.mutex(ROOM)?;
    let waiter = tokio::spawn(async move { lock.try_acquire_for(Duration::from_secs(5)).await });
    stage.queued(1).await?;
    stage.server.query("SET GLOBAL read_only = 1").await?;
    session.query("SELECT RELEASE_LOCK('distlock:room')").await?;
    let answer = soon("the end of the wait", waiter).await??;
    ensure!(!matches!(answer, Ok(Some(_))), "granted by a server that is read-only");
    soon("the undoing", client.idle()).await?;
    ensure!(stage.holder_of(ROOM).await?.is_none(), "what was refused is held");
    Ok(())
}

/// The statement takes a slot before its answer says that the server is no primary.
async fn a_downgrade_at_a_demoted_server_leaves_no_slot(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::new(flavour).await?;
    let client = stage.client(LONG).await?;
    let lock = client.rw_lock(ROOM)?;
    let writing = lock.write().acquire().await?;
    let reading = lock.read().acquire_as(writing.owner(), Wait::Forever).await?;
    let reading = reading.ok_or_else(|| Failure::new("the writer may not read"))?;
    stage.server.query("SET GLOBAL read_only = 1").await?;
    // It says that the lock was lost.
    let _ = writing.release().await;
    soon("the loss", reading.lost()).await?;
    drop(reading);
    soon("the undoing", client.idle()).await?;
    nothing_is_left(&stage).await
}
