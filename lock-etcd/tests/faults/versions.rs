//! A server of the oldest version that can be used, which has known faults.

use conformance_tests::{Failure, Outcome};
use lock_core::ErrorKind;
use test_servers::ServerOptions;

use crate::case::{cases, ensure};
use crate::logs;
use crate::stage::{LONG, PREFIX, ROOM, Stage, Waiter, connect, until, with_options};

cases!("versions":
    a_server_with_known_faults_is_named_and_refused_if_that_is_strict,
    a_connection_with_such_a_server_is_not_kept_if_that_is_strict,
    the_oldest_server_has_all_that_locks_need,
);

/// What it says of them.
const FAULT: &str = "may answer reads with old data";

/// A server without known faults. For some days the newest suite may have none for this machine: then the case has nothing to test,
/// and says so. Whether each version is judged as it should be is a matter of a unit test.
async fn sound() -> Outcome<Option<Stage>> {
    let stage = Stage::new().await?;
    match stage.client("strict=on").await {
        Err(failure) if failure.to_string().contains(FAULT) => {
            eprintln!("NOT TESTED: a server without known faults, because there is none: {failure}");
            Ok(None)
        }
        client => client.map(|_| Some(stage)),
    }
}

async fn a_server_with_known_faults_is_named_and_refused_if_that_is_strict() -> Outcome {
    let stage = Stage::with(ServerOptions::new().oldest()).await?;
    drop(stage.client(LONG).await?);
    ensure!(!logs::lines_with(&[FAULT, "WARN"]).is_empty(), "there is no warning");
    let refused = connect(&with_options(&stage.server.url(PREFIX), "strict=on")).await;
    let error = refused.err().ok_or_else(|| Failure::new("the client uses it"))?;
    ensure!(error.kind() == ErrorKind::Unsupported && !error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains(FAULT), "{error}");
    ensure!(error.to_string().contains("update the servers to 3."), "{error}");
    sound().await.map(drop)
}

/// The next connection of a client may be with another server.
async fn a_connection_with_such_a_server_is_not_kept_if_that_is_strict() -> Outcome {
    let Some(sound) = sound().await? else { return Ok(()) };
    let old = Stage::with(ServerOptions::new().oldest()).await?;
    let proxy = sound.server.proxy()?;
    let client = sound.client_at(proxy.address(), "lease=5m&strict=on").await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    proxy.turn_to(old.server.address());
    proxy.cut();
    until("it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.to_string().contains(FAULT)))
    })
    .await?;
    ensure!(old.line().await?.is_empty(), "the client uses it");
    proxy.turn_to(sound.server.address());
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    Ok(guard.release().await?)
}

/// Also with a login.
async fn the_oldest_server_has_all_that_locks_need() -> Outcome {
    let stage = Stage::with(ServerOptions::new().oldest().user("app", "secret", &["locks/"])).await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    ensure!(other.mutex(ROOM)?.try_acquire().await?.is_none(), "two hold it");
    let waiter = Waiter::of(&other)?;
    stage.in_line(2).await?;
    let token = guard.token();
    guard.release().await?;
    let (next, _) = waiter.granted().await?;
    ensure!(next.token() > token, "{:?} follows {token:?}", next.token());
    next.release().await?;
    stage.is_free(&client, "then").await
}
