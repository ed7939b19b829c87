//! Waits hold snapshots, which must not keep others waiting.

use std::time::{Duration, Instant};

use conformance_tests::Outcome;
use conformance_tests::faults::logs;

use crate::stage::{LONG, ROOM, Stage, Waiter, cases, connect, ensure, soon, until, with_options};

cases!("concurrently":
    an_index_is_built_beside_waiters,
    an_index_is_built_beside_quiet_waiters_that_keep_their_places,
    a_quiet_wait_that_has_a_snapshot_begins_anew,
    quiet_waits_that_cannot_be_prepared_are_an_error_that_says_what_to_do,
);

/// Many times what building the index takes.
const BOUND: Duration = Duration::from_secs(20);

async fn build_an_index(stage: &Stage) -> Outcome<Duration> {
    stage.query("CREATE TABLE big AS SELECT generate_series(1, 1000) AS number").await?;
    let began = Instant::now();
    soon("the index", stage.query("CREATE INDEX CONCURRENTLY ON big (number)")).await??;
    Ok(began.elapsed())
}

async fn an_index_is_built_beside_waiters() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(LONG).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let client = stage.client(LONG).await?;
    let first = Waiter::of(&client)?;
    stage.queued(1).await?;
    // Waits for several locks are of one client, too.
    let other = holder.mutex("another room")?.acquire().await?;
    let beside = Waiter::start(client.mutex("another room")?);
    stage.queued(2).await?;
    let later = stage.client(LONG).await?;
    let waiters = [first, Waiter::of(&later)?];
    stage.queued(3).await?;
    let took = build_an_index(&stage).await?;
    ensure!(took < BOUND, "the index took {took:?}");
    ensure!(held.hold().is_valid(), "the lock was lost");
    stage.queued(3).await?;
    held.release().await?;
    // Those of one client may have overtaken those of the other.
    let [first, second] = waiters.map(|waiter| {
        tokio::spawn(async move {
            let (guard, _) = waiter.granted().await?;
            Outcome::Ok(guard.release().await?)
        })
    });
    first.await??;
    second.await??;
    other.release().await?;
    let (guard, _) = beside.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

const QUIET: &str = "lease=10m&wait=quiet";

/// The domains are in the database, so that a client finds them there that may not create them.
async fn an_index_is_built_beside_quiet_waiters_that_keep_their_places() -> Outcome {
    let stage = Stage::new().await?;
    let holder = stage.client(QUIET).await?;
    let held = holder.mutex(ROOM)?.acquire().await?;
    let permits = holder.semaphore(ROOM, 1)?.acquire(1).await?;
    let mut clients = Vec::new();
    let mut waiters = Vec::new();
    for number in 0..4 {
        let client = stage.client(QUIET).await?;
        let lock = client.rw_lock(ROOM)?;
        waiters.push(Waiter::start(if number % 2 == 0 { lock.write() } else { lock.read() }));
        stage.queued(number + 1).await?;
        clients.push(client);
    }
    let sessions = stage.waiters().await?;
    let semaphores = [
        Waiter::start(clients[0].semaphore(ROOM, 1)?.permits(1)?),
        Waiter::start(clients[1].semaphore(ROOM, 1)?.permits(1)?),
    ];
    stage.queued(5).await?;
    let snapshots = "SELECT count(*) FROM pg_stat_activity WHERE wait_event='advisory' AND backend_xmin IS NOT NULL AND datname=current_database()";
    ensure!(stage.number(snapshots).await? == 0, "a quiet wait has a snapshot");
    let took = build_an_index(&stage).await?;
    ensure!(took < BOUND, "the index took {took:?}");
    let now = stage.waiters().await?;
    ensure!(sessions.iter().all(|session| now.contains(session)), "{sessions:?} wait, and now {now:?}");
    held.release().await?;
    for waiter in waiters {
        let (guard, _) = waiter.granted().await?;
        ensure!(guard.hold().is_valid(), "granted, and over");
        guard.release().await?;
    }
    permits.release().await?;
    // In whatever order: they began to wait at the same time.
    let [first, second] = semaphores.map(|waiter| {
        tokio::spawn(async move {
            let (guard, _) = waiter.granted().await?;
            Outcome::Ok(guard.release().await?)
        })
    });
    first.await??;
    second.await??;
    for client in &clients {
        stage.nothing_is_left(client, "at the end").await?;
    }
    Ok(())
}

/// As on a server that behaves in another way: these domains wait with a snapshot of their own.
async fn a_quiet_wait_that_has_a_snapshot_begins_anew() -> Outcome {
    let stage = Stage::alone().await?;
    let mut administrator = stage.session().await?;
    administrator.query("CREATE SCHEMA distlock").await?;
    for (function, name) in [("pg_advisory_lock", "wait"), ("pg_advisory_lock_shared", "wait_to_share")] {
        administrator
            .query(&format!(
                "CREATE FUNCTION distlock.{name}_now() RETURNS boolean LANGUAGE plpgsql AS \
                 $$BEGIN PERFORM {function}(current_setting('distlock.key')::bigint);RETURN true;END$$"
            ))
            .await?;
        administrator
            .query(&format!(
                "CREATE DOMAIN distlock.{name} AS bigint CHECK (value IS NULL OR distlock.{name}_now())"
            ))
            .await?;
    }
    administrator.query("GRANT USAGE ON SCHEMA distlock TO locks").await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client(QUIET).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let server = stage.server.address().to_string();
    until("the log says so", || async { Ok(!logs::lines_with(&["wait=quiet", &server]).is_empty()) }).await?;
    let took = build_an_index(&stage).await?;
    ensure!(took < BOUND, "the index took {took:?}");
    stage.queued(1).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    stage.nothing_is_left(&client, "at the end").await
}

async fn quiet_waits_that_cannot_be_prepared_are_an_error_that_says_what_to_do() -> Outcome {
    let stage = Stage::new().await?;
    stage.query("CREATE SCHEMA distlock").await?;
    let error = connect(&with_options(&stage.url(), QUIET)).await.err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("wait=server"), "answered {text:?}");
    Ok(())
}
