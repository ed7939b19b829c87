//! Limits of a client and of the server.

use conformance_tests::{Failure, Outcome, Tier};
use lock_core::ErrorKind;
use test_servers::ServerOptions;

use crate::stage::{LONG, PATIENCE, ROOM, Stage, Waiter, cases, connect, ensure, soon, until, with_options};

cases!("limits":
    waits_beyond_the_bound_wait_in_the_client,
    many_holds_share_connections,
    a_server_without_room_is_asked_again,
    a_nearly_full_table_of_locks_is_refused_and_others_can_connect,
    what_others_take_of_the_table_of_locks_counts,
    the_locks_of_serializable_transactions_do_not_count,
    readers_beyond_the_bound_all_come_in,
    thousands_of_holds_need_few_connections,
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
    // None is released before all are granted.
    let mut guards = Vec::new();
    for waiter in waiters {
        guards.push(waiter.granted().await?.0);
    }
    for guard in guards {
        guard.release().await?;
    }
    stage.nothing_is_left(&client, "at the end").await
}

/// Each has a session, and none of those that have come in makes room for the next.
async fn readers_beyond_the_bound_all_come_in() -> Outcome {
    let stage = Stage::new().await?;
    let (holder, client) = (stage.client(LONG).await?, stage.client("lease=10m&max_waiting=2").await?);
    let held = holder.mutex(ROOM)?.acquire().await?;
    let lock = client.rw_lock(ROOM)?.read();
    let readers: Vec<_> = (0..9).map(|_| Waiter::start(std::sync::Arc::clone(&lock))).collect();
    stage.queued(2).await?;
    held.release().await?;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.granted().await?.0);
    }
    for guard in guards {
        guard.release().await?;
    }
    stage.nothing_is_left(&client, "at the end").await
}

async fn many_holds_share_connections() -> Outcome {
    let stage = Stage::new().await?;
    let client = stage.client(LONG).await?;
    let (mut guards, holds) = (Vec::new(), if Tier::of_this_run() == Tier::All { 600 } else { 300 });
    for number in 0..holds {
        guards.push(client.mutex(format!("room {number}"))?.acquire().await?);
    }
    let connections = stage.connections().await?;
    ensure!(connections <= holds as u64 / 150, "{holds} holds need {connections} connections");
    ensure!(stage.held().await? == holds, "{} are held", stage.held().await?);
    for guard in guards {
        guard.release().await?;
    }
    ensure!(stage.held().await? == 0, "{} are held", stage.held().await?);
    Ok(())
}

async fn a_server_without_room_is_asked_again() -> Outcome {
    let options = ServerOptions::new().user("locks", "secret", &[]);
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
        soon("the close", other.close(PATIENCE)).await??;
    }
    until("there is room again", || async { Ok(connect(&stage.url()).await.is_ok()) }).await
}

/// A table with 240 entries.
fn small() -> ServerOptions {
    let options = ServerOptions::new().user("locks", "secret", &[]);
    options.setting("max_connections", "24").setting("max_locks_per_transaction", "10")
}

const PLACES: u64 = 240;

const TAKEN: &str = "SELECT count(*) FROM pg_locks";

fn is_about_the_table(error: &lock_core::LockError) -> Outcome {
    ensure!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
    ensure!(error.to_string().contains("max_locks_per_transaction"), "{error}");
    Ok(())
}

async fn a_nearly_full_table_of_locks_is_refused_and_others_can_connect() -> Outcome {
    let stage = Stage::with(small()).await?;
    let clients = [stage.client(LONG).await?, stage.client(LONG).await?];
    let mut guards = Vec::new();
    let error = loop {
        let number = guards.len();
        ensure!(number < 300, "{number} locks are held");
        match clients[number % 2].mutex(format!("room {number}"))?.try_acquire().await {
            Ok(Some(guard)) => guards.push(guard),
            Ok(None) => ensure!(false, "a free lock was refused"),
            Err(error) => break error,
        }
    };
    is_about_the_table(&error)?;
    let taken = stage.number(TAKEN).await?;
    ensure!(
        taken > PLACES - 20 && taken <= PLACES + 5,
        "{taken} entries are taken with {} locks",
        guards.len()
    );
    ensure!(guards.iter().all(|guard| guard.hold().is_valid()), "a lock was lost");
    // Others are not hurt, and a wait goes on.
    stage.client(LONG).await?.close(PATIENCE).await?;
    let waiter = Waiter::of(&clients[0])?;
    for guard in guards.drain(..30) {
        guard.release().await?;
    }
    let (guard, _) = waiter.granted().await?;
    guards.push(guard);
    for guard in guards {
        guard.release().await?;
    }
    stage.nothing_is_left(&clients[0], "at the end").await
}

async fn what_others_take_of_the_table_of_locks_counts() -> Outcome {
    let stage = Stage::with(small()).await?;
    let client = stage.client(LONG).await?;
    let mut other = stage.session().await?;
    other
        .query(&format!("SELECT pg_advisory_lock(number) FROM generate_series(1,{PLACES}) AS number"))
        .await?;
    let (lock, permits) = (client.mutex(ROOM)?, client.semaphore(ROOM, 3)?);
    for error in [lock.try_acquire().await.err(), permits.try_acquire(1).await.err()] {
        is_about_the_table(&error.ok_or_else(|| Failure::new("a lock was given"))?)?;
    }
    other.query("SELECT pg_advisory_unlock_all()").await?;
    soon("the lock", lock.acquire()).await??.release().await?;
    soon("the permit", permits.acquire(1)).await??.release().await?;
    Ok(())
}

/// They have a table of their own.
async fn the_locks_of_serializable_transactions_do_not_count() -> Outcome {
    let many = [("max_pred_locks_per_page", "1000"), ("max_pred_locks_per_relation", "1000")];
    let options = many.into_iter().fold(small(), |options, (name, value)| options.setting(name, value));
    let stage = Stage::with(options).await?;
    let client = stage.client(LONG).await?;
    let mut other = stage.session().await?;
    other.query("CREATE TABLE many (number int PRIMARY KEY)").await?;
    other.query("INSERT INTO many SELECT generate_series(1,1000)").await?;
    other.query("BEGIN ISOLATION LEVEL SERIALIZABLE").await?;
    other.query("SET LOCAL enable_seqscan=off").await?;
    for number in (1..=1000).step_by(2) {
        other.query(&format!("SELECT FROM many WHERE number={number}")).await?;
    }
    let predicates = stage.number("SELECT count(*) FROM pg_locks WHERE mode='SIReadLock'").await?;
    ensure!(predicates > PLACES, "{predicates} predicate locks");
    stage.works(&client).await
}

/// Some 250 have one connection. No queue is long by a clock that stands still: where one is, the client opens another connection.
async fn thousands_of_holds_need_few_connections() -> Outcome {
    let holds = if Tier::of_this_run() == Tier::All { 10_000 } else { 1_000 };
    let options = ServerOptions::new().user("locks", "secret", &[]);
    let stage = Stage::with(options.setting("max_locks_per_transaction", "128")).await?;
    let (client, _time) = stage.frozen_at(stage.server.address(), LONG).await?;
    let mut taking = Vec::new();
    for task in 0..20 {
        let client = client.clone();
        taking.push(tokio::spawn(async move {
            let mut guards = Vec::new();
            for number in 0..holds / 20 {
                guards.push(client.mutex(format!("room {task}/{number}"))?.acquire().await?);
            }
            Outcome::Ok(guards)
        }));
    }
    let mut taken = Vec::new();
    for task in taking {
        // All of them together take longer than one may.
        taken.push(task.await??);
    }
    let connections = stage.connections().await?;
    ensure!(stage.held().await? == holds, "{} are held", stage.held().await?);
    ensure!(connections <= holds as u64 / 250, "{holds} holds need {connections} connections");
    ensure!(taken.iter().flatten().all(|guard| guard.hold().is_valid()), "a lock was lost");
    let releasing = taken.into_iter().map(|guards| {
        tokio::spawn(async move {
            for guard in guards {
                guard.release().await?;
            }
            Outcome::Ok(())
        })
    });
    for release in releasing.collect::<Vec<_>>() {
        release.await??;
    }
    ensure!(stage.held().await? == 0, "{} are held", stage.held().await?);
    Ok(())
}
