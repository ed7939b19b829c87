//! Clients that are there before their server, and the sign of life that a client asks for.

use conformance_tests::Outcome;
use lock_core::{ErrorKind, Operation};
use test_servers::MySqlFlavour;

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{LONG, Stage, connect, soon, until, with_options};

cases!("connecting":
    a_server_that_starts_late_is_waited_for,
    a_lazy_client_is_there_before_its_server,
    a_server_that_does_not_come_is_reported_with_time_and_cause,
    a_ping_at_a_server_that_is_stopped_ends,
);

async fn a_server_that_starts_late_is_waited_for(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    stage.server.kill()?;
    let url = with_options(&stage.url(), "connect_timeout=10m");
    let connecting = tokio::spawn(async move { connect(&url).await });
    until("an attempt has failed", || async {
        Ok(!logs::lines_with(&["not connected yet", &stage.place()]).is_empty())
    })
    .await?;
    stage.server.restart().await?;
    stage.works(&soon("the connection", connecting).await???).await
}

async fn a_lazy_client_is_there_before_its_server(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    stage.server.kill()?;
    let client = connect(&with_options(&stage.url(), "connect=lazy&connect_timeout=0s")).await?;
    let error = client.ping().await.err();
    let said = error.as_ref().map(|error| (error.kind(), error.operation()));
    ensure!(said == Some((ErrorKind::Unreachable, Operation::Ping)), "{error:?}");
    stage.server.restart().await?;
    stage.works(&client).await
}

async fn a_server_that_does_not_come_is_reported_with_time_and_cause(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    stage.server.kill()?;
    let error = connect(&with_options(&stage.url(), "connect_timeout=3s")).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    ensure!(text.contains("tried for 3s: ") && text.contains("refused"), "{error:?}");
    Ok(())
}

async fn a_ping_at_a_server_that_is_stopped_ends(flavour: MySqlFlavour) -> Outcome {
    let stage = Stage::alone(flavour).await?;
    let client = stage.client(LONG).await?;
    stage.server.stop()?;
    let error = soon("the end of a ping", client.ping()).await?.err();
    let kind = error.as_ref().map(lock_core::LockError::kind);
    ensure!(kind == Some(ErrorKind::Unreachable), "{error:?}");
    stage.server.resume()?;
    until("an answer", || async { Ok(client.ping().await.is_ok()) }).await
}
