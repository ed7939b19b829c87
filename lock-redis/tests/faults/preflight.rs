//! What a client checks about a server before it uses it for locks.

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockError};
use test_servers::ServerOptions;

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{LONG, ROOM, Stage, Waiter, connect};

cases!("preflight":
    a_replica_is_refused,
    a_node_of_a_cluster_is_refused,
    a_server_that_evicts_is_warned_of,
    a_server_that_forgets_at_a_restart_is_warned_of,
    a_server_without_the_newer_protocol_is_polled,
    a_server_without_client_commands,
);

async fn refused(options: ServerOptions) -> Outcome<LockError> {
    let stage = Stage::with(options).await?;
    connect(&stage.server.url()).await.err().ok_or_else(|| Failure::new("the server was taken for good"))
}

async fn a_replica_is_refused() -> Outcome {
    let error = refused(ServerOptions::new().setting("replicaof", "127.0.0.1 1")).await?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("primary"), "{error}");
    Ok(())
}

async fn a_node_of_a_cluster_is_refused() -> Outcome {
    let error = refused(ServerOptions::new().setting("cluster-enabled", "yes")).await?;
    ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("Cluster"), "{error}");
    Ok(())
}

async fn a_server_that_evicts_is_warned_of() -> Outcome {
    let evicting =
        ServerOptions::new().setting("maxmemory", "100mb").setting("maxmemory-policy", "allkeys-lru");
    let stage = Stage::with(evicting).await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await?;
    let warnings = logs::lines_with(&["WARN", &stage.place(), "maxmemory-policy"]);
    ensure!(warnings.len() == 1, "{warnings:?}");
    ensure!(warnings[0].contains("allkeys-lru") && warnings[0].contains("noeviction"), "{warnings:?}");
    let sound = ServerOptions::new().setting("maxmemory", "100mb").setting("appendonly", "yes");
    let sound = Stage::with(sound).await?;
    sound.client(LONG).await?;
    let warnings = logs::lines_with(&["WARN", &sound.place()]);
    ensure!(warnings.is_empty(), "{warnings:?}");
    Ok(())
}

async fn a_server_that_forgets_at_a_restart_is_warned_of() -> Outcome {
    let stage = Stage::with(ServerOptions::new()).await?;
    stage.client(&format!("{LONG}&restart_delay=1s")).await?;
    let warnings = || logs::lines_with(&["WARN", &stage.place()]);
    ensure!(warnings().is_empty(), "{:?}", warnings());
    stage.client(LONG).await?;
    let [warning] = &warnings()[..] else { return Err(Failure::new(format!("{:?}", warnings()))) };
    ensure!(warning.contains("appendonly no") && warning.contains("restart_delay"), "{warning}");
    Ok(())
}

/// The lock is handed off by polling, in order, and to a waiter that lives.
async fn polls(options: ServerOptions) -> Outcome<Stage> {
    let stage = Stage::with(options).await?;
    let (holder, one, other) =
        (stage.client(LONG).await?, stage.client(LONG).await?, stage.client(LONG).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let first = Waiter::of(&one)?;
    stage.queued(1).await?;
    let second = Waiter::of(&other)?;
    stage.queued(2).await?;
    held.release().await?;
    let (guard, _) = first.granted().await?;
    ensure!(!second.is_finished(), "the second had the lock together with the first");
    guard.release().await?;
    let (guard, _) = second.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("after all of them").await?;
    Ok(stage)
}

async fn a_server_without_the_newer_protocol_is_polled() -> Outcome {
    for options in [ServerOptions::new(), ServerOptions::new().password("pw")] {
        let stage = polls(options.setting("rename-command", "HELLO \"\"")).await?;
        let warnings = logs::lines_with(&["WARN", &stage.place(), "sends no messages"]);
        ensure!(warnings.len() == 3, "three clients said so {} times: {warnings:?}", warnings.len());
    }
    Ok(())
}

/// Some providers remove these commands.
async fn a_server_without_client_commands() -> Outcome {
    let stage = Stage::with(ServerOptions::new().setting("rename-command", "CLIENT \"\"")).await?;
    let client = stage.client(LONG).await?;
    stage.works(&client).await
}
