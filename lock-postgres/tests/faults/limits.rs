//! Limits of a client and of the server.

use std::time::Duration;

use conformance_tests::Outcome;
use lock_core::ErrorKind;
use test_servers::PostgresOptions;

use crate::stage::{LONG, Stage, Waiter, cases, connect, ensure, soon, until, with_options};

cases!("limits":
    waits_beyond_the_bound_wait_in_the_client,
    many_holds_share_connections,
    a_server_without_room_is_asked_again,
);

/// Two at a time wait at the server; all of them get the lock.
async fn waits_beyond_the_bound_wait_in_the_client() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client("lease=10m&max_waiting=2").await?);
    let mut held = Vec::new();
    let mut waiters = Vec::new();
    for number in 0..6 {
        let name = format!("room {number}");
        held.push(holder.mutex(name.as_str())?.acquire().await?);
        waiters.push(Waiter::start(client.mutex(name)?));
    }
    stage.queued(2).await?;
    for guard in held {
        guard.release().await?;
        ensure!(stage.waiters().await?.len() <= 2, "{:?} wait at the server", stage.waiters().await?);
    }
    for waiter in waiters {
        let (guard, _) = waiter.granted().await?;
        guard.release().await?;
    }
    stage.nothing_is_left(&client, "at the end").await
}

async fn many_holds_share_connections() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let mut guards = Vec::new();
    for number in 0..600 {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    let connections = stage.connections().await?;
    ensure!(stage.held().await? == 600 && connections <= 4, "600 holds need {connections} connections");
    for guard in guards {
        guard.release().await?;
    }
    ensure!(stage.held().await? == 0, "{} are held", stage.held().await?);
    Ok(())
}

async fn a_server_without_room_is_asked_again() -> Outcome {
    let options = PostgresOptions::new().user("locks", "secret", &[]);
    let stage =
        Stage::with(options.setting("max_connections", "8").setting("superuser_reserved_connections", "4"))
            .await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    let mut others = Vec::new();
    let error = loop {
        match connect(&with_options(&stage.url(), LONG)).await {
            Ok(other) => others.push(other),
            Err(error) => break error,
        }
        ensure!(others.len() < 10, "the server accepts all");
    };
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("max_connections"), "{error}");
    for other in others {
        soon("the close", other.close(Duration::from_secs(5))).await??;
    }
    until("there is room again", || async { Ok(connect(&stage.url()).await.is_ok()) }).await
}
