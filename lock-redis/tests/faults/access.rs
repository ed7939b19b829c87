//! Users of the server, and permissions that they lack.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance_tests::faults::as_time_passes;
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, ErrorKind, LockClient, LockError, Password, Secret};
use lock_kit::LockUrl;
use test_servers::ServerOptions;

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::logs;
use crate::stage::{FROZEN, INTERVAL, LONG, ROOM, Stage, Waiter, connect, until, with_options};

cases!("access":
    a_wrong_password_is_refused_once_and_shown_nowhere,
    a_password_in_a_url_that_cannot_be_read_is_shown_nowhere,
    a_password_that_is_missing_is_asked_for,
    a_password_that_is_changed_meanwhile,
    a_password_that_is_changed_in_its_file,
    a_password_of_the_program_is_asked_for_by_each_connection,
    without_channels_everybody_polls,
    without_publish_the_heartbeat_finds_the_grant,
    without_client_kill_a_client_goes_on,
    without_info_a_client_goes_on,
    without_info_a_restart_delay_is_refused,
    without_info_a_replica_is_not_connected_to_without_pause,
    without_scripts_the_permission_is_named,
    a_permission_that_is_taken_away_meanwhile,
);

fn refusal(answer: Result<LockClient, LockError>) -> Outcome<LockError> {
    answer.err().ok_or_else(|| Failure::new("the client was let in"))
}

async fn a_wrong_password_is_refused_once_and_shown_nowhere() -> Outcome {
    let canary = "canary-5f1c";
    let stage =
        Stage::with(ServerOptions::new().password("right-9a77").user("app", "app-right-41d0", &["+@all"]))
            .await?;
    for login in [format!(":{canary}"), format!("app:{canary}")] {
        let url = format!("redis://{login}@{}/0", stage.place());
        let before = stage.info("stats", "total_connections_received:").await?;
        let error = refusal(connect(&url).await)?;
        // The query opens a connection of its own.
        let tried = stage.info("stats", "total_connections_received:").await? - before - 1;
        ensure!(tried == 1, "tried {tried} times");
        ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
        let shown = format!("{error} {error:?} {error:#?}");
        ensure!(!shown.contains(canary), "{shown}");
    }
    let client = connect(&with_options(&stage.server.url(), LONG)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    let shown = format!("{client:?} {client:#?} {guard:?}");
    guard.release().await?;
    for secret in [canary, "right-9a77", "app-right-41d0"] {
        ensure!(!shown.contains(secret), "{shown}");
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    Ok(())
}

/// If a user forgets to encode a slash or a question mark, the rest of the password is in another part of the URL.
async fn a_password_in_a_url_that_cannot_be_read_is_shown_nowhere() -> Outcome {
    let canary = "canary-77d0";
    for url in [
        format!("redis://app:12/{canary}@127.0.0.1:1/0"),
        format!("redis://app:12?{canary}@127.0.0.1:1/0"),
        format!("redis://app:x{canary}/@127.0.0.1:1/0"),
        format!("redis://app:{canary}@127.0.0.1:x/0"),
        format!("redis://app:{canary}%@127.0.0.1:1/0"),
        format!("redis://app:{canary}@127.0.0.1:1/x"),
        format!("redis://app:{canary}@127.0.0.1:1/0?unknown=1"),
        format!("unix://app:12/{canary}@/nowhere"),
        format!("unix://app:{canary}@/nowhere"),
    ] {
        let error = refusal(connect(&url).await)?;
        let shown = format!("{error} {error:?} {error:#?}");
        ensure!(!shown.contains(canary), "{url}: {shown}");
    }
    ensure!(logs::lines_with(&[canary]).is_empty(), "{:?}", logs::lines_with(&[canary]));
    Ok(())
}

async fn a_password_that_is_missing_is_asked_for() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("right")).await?;
    let error = refusal(connect(&format!("redis://{}/0", stage.place())).await)?;
    ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains("password"), "{error:?}");
    Ok(())
}

/// The existing connection continues; the server refuses the next one until the old password is valid again.
async fn a_password_that_is_changed_meanwhile() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("old-7c21")).await?;
    let client = stage.client("lease=3s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.command(&["ACL", "SETUSER", "default", "resetpass", ">new-1b5e"]).await?;
    stage.server.command(&["CLIENT", "KILL", "USER", "default"]).await?;
    recorder.suspect().await?;
    until("the client knows that it is refused", || async {
        let error = client.mutex("another room")?.try_acquire().await.err();
        Ok(error.is_some_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    recorder.abort().await?;
    drop(guard);
    stage.server.command(&["ACL", "SETUSER", "default", "resetpass", ">old-7c21"]).await?;
    stage.works(&client).await?;
    for secret in ["old-7c21", "new-1b5e"] {
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}

/// Gives the server another password, and cuts all connections of its users.
async fn rotate(stage: &Stage, password: &str) -> Outcome {
    stage.server.command(&["ACL", "SETUSER", "default", "resetpass", &format!(">{password}")]).await?;
    stage.server.command(&["CLIENT", "KILL", "USER", "default"]).await?;
    Ok(())
}

async fn until_refused(client: &LockClient) -> Outcome {
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await
}

async fn a_password_that_is_changed_in_its_file() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("old-4d20")).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    std::fs::write(&file, "old-4d20\n")?;
    let url = format!("redis://{}/0?password_file={}&{LONG}", stage.place(), file.display());
    let client = connect(&url).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    rotate(&stage, "new-83e6").await?;
    until_refused(&client).await?;
    std::fs::remove_file(&file)?;
    until("the missing file is named", || async {
        Ok(client.ping().await.is_err_and(|error| error.to_string().contains(&*file.to_string_lossy())))
    })
    .await?;
    std::fs::write(&file, "new-83e6\n")?;
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    ensure!(guard.hold().is_valid(), "lost: {:?}", guard.hold().end());
    guard.release().await?;
    for secret in ["old-4d20", "new-83e6"] {
        ensure!(logs::lines_with(&[secret]).is_empty(), "{:?}", logs::lines_with(&[secret]));
    }
    Ok(())
}

async fn a_password_of_the_program_is_asked_for_by_each_connection() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("token-0-c1d9")).await?;
    let url = LockUrl::parse(&with_options(&format!("redis://{}/0", stage.place()), LONG))?;
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    // The third call finds the service of the tokens closed.
    let token = Password::from_fn(move || {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        let token = match call {
            0 | 1 => Ok(Secret::new("token-0-c1d9")),
            2 => Err("the service of the tokens is closed"),
            _ => Ok(Secret::new("token-1-c1d9")),
        };
        std::future::ready(token)
    });
    let client = lock_redis::connect(&url, ClientBuilder::new().password(token)).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    rotate(&stage, "token-1-c1d9").await?;
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    ensure!(calls.load(Ordering::SeqCst) >= 4, "asked {} times", calls.load(Ordering::SeqCst));
    ensure!(
        !logs::lines_with(&["no contact yet", "the service of the tokens is closed", &stage.place()])
            .is_empty(),
        "not told"
    );
    let shown = format!("{client:?} {client:#?}");
    ensure!(!shown.contains("c1d9") && logs::lines_with(&["c1d9"]).is_empty(), "{shown}");
    Ok(guard.release().await?)
}

/// Three clients of a user that has all permissions but those that `rules` take away: the lock is exclusive, in order, and
/// handed off.
async fn works_under(rules: &str, lease: &str) -> Outcome<(Stage, LockClient)> {
    let stage = Stage::with(ServerOptions::new().user("app", "pw", &[rules])).await?;
    let holder = stage.client(LONG).await?;
    let (one, other) = (stage.client(lease).await?, stage.client(lease).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    ensure!(one.mutex(ROOM)?.try_acquire().await?.is_none(), "given twice");
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
    drop((one, other));
    until("the other clients are gone", || async { Ok(stage.connections().await?.len() == 1) }).await?;
    Ok((stage, holder))
}

/// Makes the server close the client's connection, and waits until the client has another one.
async fn reconnect(stage: &Stage, client: &LockClient) -> Outcome {
    let before = stage.connections().await?;
    stage.server.command(&["CLIENT", "KILL", "USER", "app"]).await?;
    until("the client is connected again", || async {
        let now = stage.connections().await?;
        Ok(now.len() == 1 && now != before)
    })
    .await?;
    stage.works(client).await
}

async fn without_channels_everybody_polls() -> Outcome {
    let (stage, client) = works_under("~distlock:* resetchannels +@all", LONG).await?;
    let warned = || logs::lines_with(&["WARN", &stage.place(), "sends no messages"]).len();
    // Each client warns once.
    ensure!(warned() == 3, "said {} times", warned());
    reconnect(&stage, &client).await?;
    ensure!(warned() == 3, "said {} times after another connection", warned());
    Ok(())
}

async fn without_publish_the_heartbeat_finds_the_grant() -> Outcome {
    let (stage, client) = works_under("~distlock:* &distlock:* +@all -publish", "lease=3s").await?;
    reconnect(&stage, &client).await
}

async fn without_client_kill_a_client_goes_on() -> Outcome {
    let (stage, client) = works_under("~distlock:* &distlock:* +@all -client|kill", LONG).await?;
    let warned = || logs::lines_with(&["WARN", &stage.place(), "CLIENT KILL"]).len();
    reconnect(&stage, &client).await?;
    reconnect(&stage, &client).await?;
    // The other clients connected only once.
    ensure!(warned() == 1, "said {} times", warned());
    Ok(())
}

async fn without_info_a_client_goes_on() -> Outcome {
    let (stage, client) = works_under("~distlock:* &distlock:* +@all -info", LONG).await?;
    reconnect(&stage, &client).await?;
    let warned = logs::lines_with(&["WARN", &stage.place(), "INFO"]).len();
    ensure!(warned == 3, "three clients said so {warned} times");
    Ok(())
}

/// It is unknown when the server was started.
async fn without_info_a_restart_delay_is_refused() -> Outcome {
    let stage =
        Stage::with(ServerOptions::new().user("app", "pw", &["~distlock:* &distlock:* +@all -info"])).await?;
    let error = refusal(connect(&with_options(&stage.server.url(), "restart_delay=1h")).await)?;
    ensure!(error.kind() == ErrorKind::Denied && error.to_string().contains("restart_delay"), "{error}");
    Ok(())
}

/// Connecting succeeds, and the connection breaks as soon as it is used.
async fn without_info_a_replica_is_not_connected_to_without_pause() -> Outcome {
    let options = ServerOptions::new().user("app", "pw", &["~distlock:* &distlock:* +@all -info"]);
    let stage = Stage::with(options).await?;
    let ((ours, our_time), (theirs, their_time)) = (stage.frozen(FROZEN).await?, stage.frozen(FROZEN).await?);
    let held = ours.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&theirs)?;
    stage.queued(1).await?;
    // Those of the queries are left out.
    let queries = Cell::new(0);
    let made = async || -> Outcome<u64> {
        queries.set(queries.get() + 1);
        Ok(stage.info("stats", "total_connections_received:").await? - queries.get())
    };
    stage.server.command(&["REPLICAOF", "127.0.0.1", "1"]).await?;
    let before = made().await?;
    our_time.advance(INTERVAL);
    their_time.advance(INTERVAL);
    until("both connect again", || async { Ok(made().await? >= before + 2) }).await?;
    // Pauses do not end now. Without one, each client would have connected many times before all these answers.
    for _ in 0..200 {
        made().await?;
    }
    let made = made().await? - before;
    ensure!(made <= 4, "{made} connections without a pause");
    stage.server.command(&["REPLICAOF", "NO", "ONE"]).await?;
    as_time_passes(&our_time, "the release", held.release()).await??;
    let (guard, _) = as_time_passes(&their_time, "the grant", waiter.granted()).await??;
    Ok(guard.release().await?)
}

async fn without_scripts_the_permission_is_named() -> Outcome {
    let stage =
        Stage::with(ServerOptions::new().user("app", "pw", &["~distlock:* &distlock:* +@all -@scripting"]))
            .await?;
    let error = refusal(connect(&stage.server.url()).await)?;
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    ensure!(error.to_string().contains("redis.md"), "{error}");
    Ok(())
}

async fn a_permission_that_is_taken_away_meanwhile() -> Outcome {
    let stage =
        Stage::with(ServerOptions::new().user("app", "pw", &["~distlock:* &distlock:* +@all"])).await?;
    let client = stage.client("lease=3s").await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    stage.server.command(&["ACL", "SETUSER", "app", "resetkeys"]).await?;
    let answer = client.mutex("another room")?.try_acquire_for(Duration::from_secs(20)).await;
    let error = answer.err().ok_or_else(|| Failure::new("no client may do that"))?;
    ensure!(error.kind() == ErrorKind::Denied && !error.is_retryable(), "{error:?}");
    recorder.abort().await?;
    drop(guard);
    stage.server.command(&["ACL", "SETUSER", "app", "~distlock:*"]).await?;
    stage.works(&client).await?;
    ensure!(recorder.aborts() == 1, "{:?}", recorder.events());
    Ok(())
}
