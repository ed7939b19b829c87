//! Users, permissions that they lack, and encryption.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::{ErrorKind, LockClient, LockError};
use test_servers::ServerOptions;

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{LONG, PREFIX, ROOM, Stage, connect, soon, with_options};

cases!("access":
    a_wrong_password_is_refused_and_shown_nowhere,
    a_prefix_of_others_is_denied,
    a_user_who_is_not_told_the_version_is_refused_if_that_is_strict,
    a_login_that_has_expired_is_renewed,
    tls_needs_the_authority_and_the_clients_certificate,
    a_server_of_plain_text_is_not_reached_with_tls,
);

fn refusal(answer: Result<LockClient, LockError>) -> Outcome<LockError> {
    answer.err().ok_or_else(|| Failure::new("the client was let in"))
}

fn with_user() -> ServerOptions {
    ServerOptions::new().user("app", "right-9a77", &["locks/"])
}

async fn a_wrong_password_is_refused_and_shown_nowhere() -> Outcome {
    let stage = Stage::with(with_user()).await?;
    let canary = "canary-5f1c";
    let address = stage.server.address();
    let error = refusal(connect(&format!("etcd://app:{canary}@{address}/{PREFIX}")).await)?;
    ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
    let without = refusal(connect(&format!("etcd://{address}/{PREFIX}")).await)?;
    ensure!(without.kind() == ErrorKind::Denied, "{without:?}");
    let client = stage.client(LONG).await?;
    let shown = format!("{error} {error:?} {client:?}");
    for secret in [canary, "right-9a77"] {
        ensure!(!shown.contains(secret), "{shown}");
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    Ok(())
}

async fn a_prefix_of_others_is_denied() -> Outcome {
    let stage = Stage::with(with_user()).await?;
    let client = connect(&stage.server.url("others")).await?;
    let refused = client.mutex(ROOM)?.acquire().await;
    let error = refused.err().ok_or_else(|| Failure::new("granted"))?;
    ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains("readwrite"), "{error}");
    Ok(())
}

async fn a_user_who_is_not_told_the_version_is_refused_if_that_is_strict() -> Outcome {
    let stage = Stage::with(with_user()).await?;
    drop(stage.client(LONG).await?);
    // Each user is by some versions.
    if stage.server.command(&["--user=app:right-9a77", "endpoint", "status"]).await.is_ok() {
        return Ok(());
    }
    let error = refusal(connect(&with_options(&stage.server.url(PREFIX), "strict=on")).await)?;
    ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("leave out strict=on"), "{error}");
    Ok(())
}

async fn a_login_that_has_expired_is_renewed() -> Outcome {
    let stage = Stage::with(with_user().setting("auth-token-ttl", "4")).await?;
    // Its heartbeats are further apart than the login lasts, and a busy machine may take its time for the next login.
    let client = stage.client("lease=5m&timeout=60s").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    // The server looks each second which logins have expired.
    tokio::time::sleep(Duration::from_secs(6)).await;
    soon("the release", guard.release()).await??;
    stage.is_free(&client, "with another login").await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_some(), "a try is not made again by the core");
    Ok(())
}

async fn tls_needs_the_authority_and_the_clients_certificate() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls_with_client_certificates()).await?;
    let client = stage.client(LONG).await?;
    soon("the lock", client.mutex(ROOM)?.acquire()).await??.release().await?;
    let left = stage.server.command(&["get", "--prefix", "--keys-only", PREFIX]).await?;
    ensure!(left.trim().is_empty(), "{left} is left");
    let bare = format!("etcds://{}/{PREFIX}?connect_timeout=2s", stage.server.address());
    let files = stage.server.certificates();
    let with_authority = format!("{bare}&ca={}", files.authority.display());
    for url in [bare, with_authority] {
        let error = refusal(connect(&url).await)?;
        ensure!(error.kind() == ErrorKind::Unreachable, "{url}: {error:?}");
    }
    Ok(())
}

async fn a_server_of_plain_text_is_not_reached_with_tls() -> Outcome {
    let stage = Stage::new().await?;
    let url = format!("etcds://{}/{PREFIX}", stage.server.address());
    let error = refusal(connect(&with_options(&url, "connect_timeout=1s")).await)?;
    ensure!(error.kind() == ErrorKind::Unreachable, "{error:?}");
    Ok(())
}
