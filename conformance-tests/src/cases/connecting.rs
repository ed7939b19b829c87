//! Cases: clients that are there before their server, and the sign of life that a client asks for.

use std::time::Duration;

use crate::{Outcome, ensure};
use lock_core::{ConnectMode, ErrorKind, LockClient, Operation};

use super::outages::is_unreachable;
use crate::case::{Need, cases};
use crate::harness::{Ability, ServerChange};
use crate::stage::Stage;

cases!("connecting":
    a_server_that_starts_late_is_waited_for [Need::Ability(Ability::RestartServer)],
    a_lazy_client_is_there_before_its_server [Need::Ability(Ability::RestartServer)],
    a_server_that_does_not_come_is_reported_with_time_and_cause [Need::Ability(Ability::RestartServer)],
    a_ping_at_a_server_that_stands_still_ends [Need::Ability(Ability::StopServer)],
);

async fn works(stage: &Stage, client: &LockClient) -> Outcome {
    Ok(stage.soon("the lock", client.mutex("room")?.acquire()).await??.release().await?)
}

async fn a_server_that_starts_late_is_waited_for(stage: &Stage) -> Outcome {
    let builder = stage.builder();
    stage.harness().change_server(ServerChange::Kill).await?;
    let connecting = stage.harness().bystander(builder.clone().connect_timeout(stage.patience() * 2));
    let failing = async {
        for _ in 0..2 {
            let failed = stage.harness().bystander(builder.clone().connect_timeout(Duration::ZERO)).await;
            is_unreachable(failed.map(drop), "a connection to no server")?;
        }
        stage.harness().change_server(ServerChange::Restart).await
    };
    let (client, failed) = tokio::join!(connecting, failing);
    failed?;
    works(stage, &stage.opened(client?)).await
}

async fn a_lazy_client_is_there_before_its_server(stage: &Stage) -> Outcome {
    stage.harness().change_server(ServerChange::Kill).await?;
    let lazy = stage.builder().connect_mode(ConnectMode::Lazy).connect_timeout(Duration::ZERO);
    let client = stage.opened(stage.harness().bystander(lazy).await?);
    let error = client.ping().await.err();
    let said = error.as_ref().map(|error| (error.kind(), error.operation()));
    ensure!(said == Some((ErrorKind::Unreachable, Operation::Ping)), "{error:?}");
    stage.harness().change_server(ServerChange::Restart).await?;
    works(stage, &client).await
}

async fn a_server_that_does_not_come_is_reported_with_time_and_cause(stage: &Stage) -> Outcome {
    const SHORT: Duration = Duration::from_secs(3);
    stage.harness().change_server(ServerChange::Kill).await?;
    let error = stage.harness().bystander(stage.builder().connect_timeout(SHORT)).await.err();
    let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
    let cause = text.split_once("tried for 3s: ").map(|(_, cause)| cause);
    let says_why = |cause: &str| cause.contains("refused") || cause.contains("no server accepted");
    ensure!(cause.is_some_and(says_why), "{error:?}");
    ensure!(error.is_some_and(|error| error.is_retryable()), "it is not to be tried again");
    stage.harness().change_server(ServerChange::Restart).await
}

async fn a_ping_at_a_server_that_stands_still_ends(stage: &Stage) -> Outcome {
    let client = stage.client().await?;
    stage.harness().change_server(ServerChange::Stop).await?;
    is_unreachable(stage.soon("the end of a ping", client.ping()).await?, "a ping")?;
    stage.harness().change_server(ServerChange::Resume).await?;
    stage.until("an answer", || async { Ok(client.ping().await.is_ok()) }).await
}
