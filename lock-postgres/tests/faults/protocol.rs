//! What the lease depends on: how the server counts a session's silence, and what the client sends.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use conformance_tests::{Failure, Outcome};
use test_servers::ServerOptions;

use crate::stage::{LONG, ROOM, Stage, WATCHFUL, Waiter, cases, ensure, until};

cases!("protocol":
    half_a_message_leaves_the_lease_as_it_is,
    the_client_sends_whole_messages_only,
    the_lease_survives_what_an_administrator_sets,
    what_is_taken_again_is_prepared,
);

const LEASE: Duration = Duration::from_secs(6);

/// A message that a partition cuts off does not keep the lock.
async fn half_a_message_leaves_the_lease_as_it_is() -> Outcome {
    let stage = Stage::new().await?;
    let with_length = |content: &str| {
        let length = u32::try_from(content.len() + 4).unwrap_or_default().to_be_bytes();
        [&length, content.as_bytes()].concat()
    };
    // By hand, because a client sends whole messages.
    let mut holder = UnixStream::connect(stage.server.unix_socket())?;
    let login = format!("\0\x03\0\0user\0postgres\0database\0{}\0\0", stage.database);
    let key = lock_postgres::key(ROOM);
    let lock = format!("SET idle_session_timeout='6s'; SELECT pg_advisory_lock({key})\0");
    let began = Instant::now();
    holder.write_all(&[&with_length(&login), &b"Q"[..], &with_length(&lock)].concat())?;
    until("the lock is held", || async { Ok(stage.holder_of(ROOM).await?.is_some()) }).await?;
    tokio::time::sleep(LEASE / 2).await;
    holder.write_all(b"Q\0\0\0")?;
    until("the lock is free", || async { Ok(stage.holder_of(ROOM).await?.is_none()) }).await?;
    let after = began.elapsed();
    ensure!(after >= LEASE && after < LEASE * 2, "freed after {after:?} of {LEASE:?}");
    Ok(())
}

/// The server's log says which messages of the extended protocol it got: those could be cut off without their end.
async fn the_client_sends_whole_messages_only() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &[]).setting("log_statement", "all");
    let stage = Stage::with(options.setting("log_line_prefix", "%u ")).await?;
    let (holder, client) = (stage.client(WATCHFUL).await?, stage.client(WATCHFUL).await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    client.status(ROOM).await?;
    client.ping().await?;
    let logged = |part: &'static str| {
        let text = std::fs::read_to_string(stage.server.log()).map_err(Failure::from);
        text.map(|text| text.lines().filter(|line| line.starts_with("locks ") && line.contains(part)).count())
    };
    until("a check is logged", || async { Ok(logged("/*distlock renew*/")? > 0) }).await?;
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    guard.release().await?;
    until("the release is logged", || async { Ok(logged("/*distlock release*/")? >= 2) }).await?;
    for operation in ["connect", "acquire", "renew", "inspect", "ping"] {
        let text = format!("LOG:  statement: /*distlock {operation}");
        ensure!(logged(text.leak())? > 0, "nothing was logged for {operation}");
    }
    ensure!(logged("LOG:  execute")? == 0, "the client uses the extended protocol");
    Ok(())
}

async fn the_lease_survives_what_an_administrator_sets() -> Outcome {
    let stage = Stage::alone().await?;
    for setting in
        ["idle_session_timeout='1s'", "statement_timeout='1s'", "lock_timeout='1s'", "tcp_user_timeout='1s'"]
    {
        stage.query(&format!("ALTER ROLE locks SET {setting}")).await?;
    }
    let (holder, client) = (stage.client("lease=30s").await?, stage.client("lease=30s").await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let waiter = Waiter::of(&client)?;
    stage.queued(1).await?;
    let (holding, waiting) = (stage.holder().await?, stage.waiters().await?);
    stage.query("ALTER SYSTEM SET idle_session_timeout='1s'").await?;
    stage.query("SELECT pg_reload_conf()").await?;
    // One that sets nothing itself, and came later.
    let mut idle = stage.session().await?;
    let process = idle.query("SELECT pg_backend_pid()").await?.concat().pop().flatten().unwrap_or_default();
    let is_open = format!("SELECT count(*) FROM pg_stat_activity WHERE pid={process}");
    until("the server ends a session", || async { Ok(stage.number(&is_open).await? == 0) }).await?;
    ensure!(stage.holder().await? == holding && stage.waiters().await? == waiting, "a session has ended");
    ensure!(held.hold().is_valid(), "the lock was lost");
    held.release().await?;
    let (guard, _) = waiter.granted().await?;
    Ok(guard.release().await?)
}

/// To plan a statement costs the server more than a lock. A prepared one is refused with the holder's name, too.
async fn what_is_taken_again_is_prepared() -> Outcome {
    let stage = Stage::new().await?;
    let (client, other) = (stage.client(LONG).await?, stage.client(LONG).await?);
    let sessions = async |now: &str| {
        let query = format!("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '/*distlock {now}(%'");
        stage.number(&query).await
    };
    let room = other.mutex(ROOM)?;
    // The client waits now on one of its sessions, now on another.
    let mut waited_prepared = false;
    for _ in 0..10 {
        let tried = room.try_acquire().await?.ok_or_else(|| Failure::new("the lock is not free"))?;
        let waiting = Waiter::of(&client)?;
        stage.queued(1).await?;
        waited_prepared |= sessions("acquire %*/SET statement_timeout=0;EXECUTE distlock_wait").await? == 1
            || sessions("acquire %*/EXECUTE distlock_wait").await? == 1;
        tried.release().await?;
        let (granted, _) = waiting.granted().await?;
        granted.release().await?;
    }
    ensure!(waited_prepared, "no session has waited by a prepared statement");
    let released = sessions("release*/EXECUTE distlock_release").await?;
    ensure!(released >= 1, "no session has released by a prepared statement");
    let held = client.mutex(ROOM)?.acquire().await?;
    let refused = room.acquire_for(Duration::ZERO).await.err();
    let holder = refused.as_ref().and_then(|error| error.holder()?.pid);
    ensure!(holder == Some(std::process::id()), "{refused:?}");
    let tried = sessions("acquire*/EXECUTE distlock_take").await?;
    ensure!(tried == 1, "no session has tried by a prepared statement");
    Ok(held.release().await?)
}
