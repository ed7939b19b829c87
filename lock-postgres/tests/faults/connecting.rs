//! Connecting, and being refused.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance_tests::faults::logs;
use conformance_tests::{Failure, Outcome};
use lock_core::{ClientBuilder, ErrorKind, Password, Secret};
use lock_kit::LockUrl;
use test_servers::ServerOptions;

use crate::stage::{LONG, ROOM, Stage, cases, connect, ensure, reach, until, with_options};

cases!("connecting":
    is_refused_with_what_to_do,
    through_a_socket,
    with_tls,
    shows_who_a_client_is,
    a_lock_belongs_to_a_database_and_a_prefix,
    a_password_of_the_program_is_asked_for_by_each_connection,
    an_idle_client_closes_its_connections,
);

async fn is_refused_with_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    let address = stage.server.address();
    for (url, kind, part) in [
        (format!("postgres://locks:wrong@{address}/locks"), ErrorKind::Denied, "password"),
        (format!("postgres://stranger:secret@{address}/locks"), ErrorKind::Denied, "password"),
        (format!("postgres://locks:secret@{address}/nowhere"), ErrorKind::InvalidOption, "nowhere"),
        (format!("postgres://{address}/locks"), ErrorKind::InvalidOption, "user"),
        (
            format!("postgres://locks:secret@{}:1/locks", Ipv4Addr::LOCALHOST),
            ErrorKind::Unreachable,
            "server runs",
        ),
    ] {
        let error = connect(&url).await.err().ok_or_else(|| Failure::new(format!("{url} was accepted")))?;
        ensure!(error.kind() == kind && error.to_string().contains(part), "{url}: {error}");
        ensure!(!error.to_string().contains("secret"), "{error}");
    }
    Ok(())
}

async fn through_a_socket() -> Outcome {
    let stage = Stage::new().await?;
    let client = reach(&stage.server.unix_url()).await?;
    let guard = client.mutex("through a socket")?.acquire().await?;
    Ok(guard.release().await?)
}

async fn with_tls() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &[]).tls_with_client_certificates();
    let stage = Stage::with(options).await?;
    let client = reach(&stage.server.url()).await?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    guard.release().await?;
    let encrypted =
        "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename='locks' AND ssl";
    ensure!(stage.number(encrypted).await? >= 1, "nothing is encrypted");
    let address = stage.server.address();
    for (options, part) in [("tls=off", "pg_hba"), ("tls=on", "TLS")] {
        let error = connect(&format!("postgres://locks:secret@{address}/locks?{options}")).await.err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains(part), "{options}: {text}");
    }
    Ok(())
}

async fn shows_who_a_client_is() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, waiter) = (
        stage.client("lease=10m&label=the%20holder").await?,
        stage.client("lease=10m&label=it's%20*/%20me").await?,
    );
    let guard = holder.mutex(ROOM)?.acquire().await?;
    let waiting = crate::stage::Waiter::of(&waiter)?;
    stage.queued(1).await?;
    let status = waiter.status(ROOM).await?;
    let own = Some(std::process::id());
    let (held, waits) = (status.holders.first(), status.waiters.first());
    ensure!(
        held.is_some_and(|holder| holder.pid == own && holder.label.as_deref() == Some("the holder")),
        "{held:?}"
    );
    ensure!(
        waits.is_some_and(|waiter| waiter.pid == own
            && waiter.label.as_deref() == Some("it's */ me")
            && waiter.since.is_some()),
        "{waits:?}"
    );
    guard.release().await?;
    let (guard, _) = waiting.granted().await?;
    Ok(guard.release().await?)
}

async fn a_lock_belongs_to_a_database_and_a_prefix() -> Outcome {
    let (stage, other) = (Stage::new().await?, Stage::new().await?);
    let _held = stage.client(LONG).await?.mutex(ROOM)?.acquire().await?;
    ensure!(other.client(LONG).await?.mutex(ROOM)?.try_acquire().await?.is_some(), "of another database");
    let prefixed = reach(&with_options(&stage.url(), "lease=10m&prefix=mine")).await?;
    ensure!(prefixed.mutex(ROOM)?.try_acquire().await?.is_some(), "of another prefix");
    let key = lock_postgres::key(ROOM);
    let sql = format!(
        "SELECT pg_try_advisory_lock({key})::text, (('x' || left(encode(sha256(convert_to('{ROOM}', 'UTF8')), 'hex'), 16))::bit(64)::bigint = {key})::text"
    );
    let answers = stage.values(&sql).await?;
    ensure!(answers == ["false", "true"], "{answers:?}");
    Ok(())
}

async fn a_password_of_the_program_is_asked_for_by_each_connection() -> Outcome {
    let stage = Stage::alone().await?;
    stage.query("ALTER USER locks PASSWORD 'token-0-c1d9'").await?;
    let number = Arc::new(AtomicU32::new(0));
    let issued = Arc::clone(&number);
    let token = Password::from_fn(move || {
        let token = format!("token-{}-c1d9", issued.load(Ordering::SeqCst));
        std::future::ready(Ok::<_, std::io::Error>(Secret::new(token)))
    });
    let builder = ClientBuilder::new().password(token).connect_timeout(Duration::from_mins(1));
    let url = with_options(&stage.url().replace("locks:secret@", "locks@"), LONG);
    let client = lock_postgres::connect(&LockUrl::parse(&url)?, builder).await?;
    stage.works(&client).await?;
    stage.query("ALTER USER locks PASSWORD 'token-1-c1d9'").await?;
    let connections = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename='locks'";
    stage.query(connections).await?;
    until("the client knows that it is refused", || async {
        Ok(client.ping().await.is_err_and(|error| error.kind() == ErrorKind::Denied))
    })
    .await?;
    number.store(1, Ordering::SeqCst);
    until("contact", || async { Ok(client.ping().await.is_ok()) }).await?;
    stage.works(&client).await?;
    let shown = format!("{client:?} {client:#?}");
    ensure!(!shown.contains("c1d9") && logs::lines_with(&["c1d9"]).is_empty(), "{shown}");
    Ok(())
}

async fn an_idle_client_closes_its_connections() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client("lease=12s").await?;
    stage.works(&client).await?;
    until("no connection is left", || async { Ok(stage.connections().await? == 0) }).await?;
    let ended_by_server = "SELECT sessions_fatal FROM pg_stat_database WHERE datname=current_database()";
    ensure!(stage.number(ended_by_server).await? == 0, "the lease of a connection has ended before");
    stage.works(&client).await
}
