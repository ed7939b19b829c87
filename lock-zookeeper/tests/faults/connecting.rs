//! Clients that are there before their server, and the sign of life that a client asks for.

use conformance_tests::Outcome;
use lock_core::{ErrorKind, Operation};
use test_servers::Data;

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{IMPATIENT, Stage, connect, soon, until};

cases!("connecting":
    a_server_that_starts_late_is_waited_for,
    a_lazy_client_is_there_before_its_server,
    a_server_that_does_not_come_is_reported_with_time_and_cause,
    a_ping_at_a_server_that_is_stopped_ends,
);

async fn a_server_that_starts_late_is_waited_for() -> Outcome {
    let stage = Stage::alone().await?;
    stage.server.kill()?;
    let url = stage.url("connect_timeout=10m");
    let place = format!("{}{}", stage.server.address(), stage.root);
    let connecting = tokio::spawn(async move { connect(&url).await });
    until("an attempt has failed", || async {
        Ok(!logs::lines_with(&["not connected yet", &place]).is_empty())
    })
    .await?;
    // It opens its port long before it serves clients.
    stage.server.begin_restart(Data::Kept)?;
    stage.works(&soon("the connection", connecting).await???).await
}

async fn a_lazy_client_is_there_before_its_server() -> Outcome {
    let stage = Stage::alone().await?;
    stage.server.kill()?;
    let client = connect(&stage.url("connect=lazy&connect_timeout=0s")).await?;
    let error = client.ping().await.err();
    let said = error.as_ref().map(|error| (error.kind(), error.operation()));
    ensure!(said == Some((ErrorKind::Unreachable, Operation::Ping)), "{error:?}");
    stage.server.begin_restart(Data::Kept)?;
    stage.works(&client).await
}

async fn a_server_that_does_not_come_is_reported_with_time_and_cause() -> Outcome {
    let stage = Stage::alone().await?;
    stage.server.kill()?;
    let error = connect(&stage.url("connect_timeout=3s")).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    ensure!(text.contains("tried for 3s: no server accepted"), "{error:?}");
    Ok(())
}

async fn a_ping_at_a_server_that_is_stopped_ends() -> Outcome {
    let stage = Stage::alone().await?;
    let client = stage.client(IMPATIENT).await?;
    stage.server.stop()?;
    let error = soon("the end of a ping", client.ping()).await?.err();
    let kind = error.as_ref().map(lock_core::LockError::kind);
    ensure!(kind == Some(ErrorKind::Unreachable), "{error:?}");
    stage.server.resume()?;
    until("an answer", || async { Ok(client.ping().await.is_ok()) }).await
}
