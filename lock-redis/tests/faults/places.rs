//! Where a server can be, and how server and client prove their identity.

use std::cell::Cell;
use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::ErrorKind;
use test_servers::{
    Certificates, RedisCluster, RedisSentinels, RedisServer, ServerOptions, hash_slot, sentinel_url,
};

use crate::case::{cases, ensure};
use crate::event_recorder::EventRecorder;
use crate::stage::{LONG, ROOM, Stage, Waiter, connect, longest_belief, reach, soon, until, with_options};

cases!("places":
    behind_tls_with_an_authority_of_its_own,
    behind_tls_that_wants_a_certificate,
    behind_tls_of_a_stranger,
    behind_tls_and_sentinels,
    behind_tls_and_sentinels_with_a_stranger_as_the_primary,
    behind_tls_in_a_cluster,
    behind_unexpected_tls,
    in_plain_text_where_tls_is_expected,
    at_a_socket,
    at_a_socket_with_a_password,
    in_another_database,
    nowhere,
);

async fn works(stage: &Stage, url: &str) -> Outcome {
    let (one, other) = (connect(url).await?, connect(url).await?);
    let held = one.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&other)?;
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left("after both").await
}

async fn is_refused(url: &str, kinds: &[ErrorKind]) -> Outcome {
    let error = connect(url).await.err().ok_or_else(|| Failure::new(format!("{url} was let in")))?;
    ensure!(kinds.contains(&error.kind()), "{url}: {error:?}");
    Ok(())
}

async fn behind_tls_with_an_authority_of_its_own() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls().password("pw")).await?;
    works(&stage, &with_options(&stage.server.url(), LONG)).await
}

async fn behind_tls_that_wants_a_certificate() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls_with_client_certificates()).await?;
    works(&stage, &with_options(&stage.server.url(), LONG)).await?;
    let files = stage.server.certificates();
    let unknown = format!("rediss://{}/0?ca={}", stage.place(), files.authority.display());
    is_refused(&unknown, &[ErrorKind::Unreachable, ErrorKind::Denied]).await
}

/// The client does not trust the server at this URL. Returns the kind of the error.
async fn is_a_stranger(url: &str) -> Outcome<ErrorKind> {
    let error = connect(url).await.err().ok_or_else(|| Failure::new("a stranger was trusted"))?;
    ensure!(error.to_string().contains("certificate") && !error.is_retryable(), "{error:?}");
    Ok(error.kind())
}

async fn behind_tls_of_a_stranger() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls()).await?;
    let folder = tempfile::tempdir()?;
    let others = Certificates::make_in(folder.path())?;
    let url = format!("rediss://{}/0?ca={}", stage.place(), others.authority.display());
    let kind = is_a_stranger(&url).await?;
    ensure!(stage.connections().await?.is_empty(), "something was said to a stranger");
    is_refused(&format!("rediss://{}/0", stage.place()), &[kind]).await
}

/// A hold is renewed, and goes on after another server has taken the place of the primary; with another authority, the client trusts
/// none of them.
async fn follows(url: &str, old: &RedisServer) -> Outcome {
    old.note_primary("distlock", longest_belief(30)).await?;
    let client = reach(&with_options(url, "lease=30s")).await?;
    let lock = client.mutex(ROOM)?;
    let recorder = EventRecorder::of(&lock);
    let guard = lock.acquire().await?;
    let least = Cell::new(Duration::MAX);
    until("it is renewed", || async {
        let left = guard.hold().remaining().unwrap_or_default();
        Ok(left > least.replace(left))
    })
    .await?;
    old.kill()?;
    recorder.restored().await?;
    ensure!(guard.hold().is_valid() && recorder.aborts() == 0, "{:?}", recorder.events());
    guard.release().await?;
    let folder = tempfile::tempdir()?;
    let others = Certificates::make_in(folder.path())?;
    let (servers, _) = url.split_once('?').unwrap_or((url, ""));
    is_a_stranger(&format!("{servers}?ca={}", others.authority.display())).await.map(drop)
}

async fn behind_tls_and_sentinels() -> Outcome {
    let sentinels = RedisSentinels::start_with(&ServerOptions::new().tls(), None).await?;
    follows(&sentinels.url(), sentinels.primary().await?).await
}

async fn behind_tls_in_a_cluster() -> Outcome {
    let cluster = RedisCluster::start_with(&ServerOptions::new().tls()).await?;
    follows(&cluster.url(), cluster.owner(hash_slot(ROOM)).await?).await
}

/// The sentinel is none.
async fn behind_tls_and_sentinels_with_a_stranger_as_the_primary() -> Outcome {
    let folder = tempfile::tempdir()?;
    let its = Certificates::make_in(folder.path())?.server;
    let path = |path: &std::path::Path| path.display().to_string();
    let stranger = ServerOptions::new().tls().setting("tls-cert-file", &path(&its.certificate));
    let stage = Stage::with(stranger.setting("tls-key-file", &path(&its.key))).await?;
    let monitor = format!("monitor mymaster 127.0.0.1 {} 1", stage.server.address().port());
    let sentinel = RedisServer::start_with(ServerOptions::new().tls().setting("sentinel", &monitor)).await?;
    let url = sentinel_url([sentinel.address()]).replacen("redis", "rediss", 1);
    is_a_stranger(&format!("{url}?ca={}", sentinel.certificates().authority.display())).await?;
    ensure!(stage.connections().await?.is_empty(), "something was said to a stranger");
    Ok(())
}

async fn behind_unexpected_tls() -> Outcome {
    let stage = Stage::with(ServerOptions::new().tls()).await?;
    is_refused(&format!("redis://{}/0", stage.place()), &[ErrorKind::Unreachable, ErrorKind::Server]).await
}

/// The client does not fall back to an unencrypted connection.
async fn in_plain_text_where_tls_is_expected() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("pw")).await?;
    let kinds = [ErrorKind::Unreachable, ErrorKind::Server];
    is_refused(&format!("rediss://:pw@{}/0", stage.place()), &kinds).await?;
    ensure!(stage.connections().await?.is_empty(), "something was said in plain text");
    Ok(())
}

async fn at_a_socket() -> Outcome {
    let stage = Stage::new().await?;
    works(&stage, &with_options(&stage.server.unix_url(), LONG)).await
}

async fn at_a_socket_with_a_password() -> Outcome {
    let stage = Stage::with(ServerOptions::new().password("p@w:1")).await?;
    works(&stage, &with_options(&stage.server.unix_url(), LONG)).await
}

/// A lock in another database is another lock. Databases share channels, but the locks still do not mix.
async fn in_another_database() -> Outcome {
    let stage = Stage::new().await?;
    let (here, there) = (stage.server.url(), format!("redis://{}/3", stage.place()));
    let (one, other) =
        (connect(&with_options(&here, LONG)).await?, connect(&with_options(&there, LONG)).await?);
    let held = one.mutex(ROOM)?.acquire().await?;
    let guard = soon("the lock of the other database", other.mutex(ROOM)?.acquire()).await??;
    ensure!(stage.info("keyspace", "db3:keys=").await? > 0, "nothing is kept in the database");
    let third = connect(&with_options(&there, LONG)).await?;
    let waiter = Waiter::of(&third)?;
    until("it waits", || async { Ok(other.status(ROOM).await?.waiters.len() == 1) }).await?;
    guard.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    ensure!(held.hold().is_valid(), "a hold of another database has ended");
    Ok(held.release().await?)
}

async fn nowhere() -> Outcome {
    let port = test_servers::free_port()?;
    let error = connect(&format!("redis://127.0.0.1:{port}/0")).await;
    let error = error.err().ok_or_else(|| Failure::new("no place let us in"))?;
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    Ok(())
}
