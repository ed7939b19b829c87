//! Locks inside the user's own transaction.

use std::time::Duration;

use conformance_tests::{Failure, Outcome};
use lock_core::ErrorKind;
use lock_postgres::in_transaction;
use sqlx::postgres::{PgConnection, PgPool};

use crate::stage::{LONG, ROOM, Stage, cases, ensure, soon};

cases!("transactions":
    exclude_clients_and_each_other,
    go_on_after_a_wait_that_was_too_long,
    wait_for_the_lock,
    have_the_key_that_one_line_of_sql_computes,
    have_raw_keys_of_other_programs,
);

const SHORT: Duration = Duration::from_millis(200);

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

async fn pool(stage: &Stage) -> Outcome<PgPool> {
    let url = stage.url();
    PgPool::connect(url.split('?').next().unwrap_or_default()).await.map_err(failed)
}

async fn exclude_clients_and_each_other() -> Outcome {
    let stage = Stage::new().await?;
    let (client, pool) = (stage.client(LONG).await?, pool(&stage).await?);
    let mut first = pool.begin().await.map_err(failed)?;
    ensure!(in_transaction(&mut first, ROOM).try_acquire().await?, "a free lock was refused");
    let mut second = pool.begin().await.map_err(failed)?;
    ensure!(!in_transaction(&mut second, ROOM).try_acquire().await?, "two have the lock");
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    first.commit().await.map_err(failed)?;
    let guard = client.mutex(ROOM)?.acquire().await?;
    ensure!(!in_transaction(&mut second, ROOM).try_acquire().await?, "two have the lock");
    ensure!(
        in_transaction(&mut second, ROOM).prefix("mine").try_acquire().await?,
        "another lock was refused"
    );
    guard.release().await?;
    in_transaction(&mut second, ROOM).acquire().await?;
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    second.rollback().await.map_err(failed)?;
    stage.works(&client).await
}

async fn limit_of(connection: &mut PgConnection) -> Outcome<String> {
    sqlx::query_scalar("SHOW lock_timeout").fetch_one(connection).await.map_err(failed)
}

async fn go_on_after_a_wait_that_was_too_long() -> Outcome {
    let stage = Stage::new().await?;
    let (client, pool) = (stage.client(LONG).await?, pool(&stage).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let mut transaction = pool.begin().await.map_err(failed)?;
    sqlx::raw_sql("SET LOCAL lock_timeout='7s';CREATE TEMP TABLE kept (number int)")
        .execute(&mut *transaction)
        .await
        .map_err(failed)?;
    let is_ours = in_transaction(&mut transaction, ROOM).acquire_within(SHORT).await?;
    ensure!(!is_ours, "two have the lock");
    ensure!(limit_of(&mut transaction).await? == "7s", "the limit is another");
    guard.release().await?;
    ensure!(in_transaction(&mut transaction, ROOM).acquire_within(SHORT).await?, "a free lock was refused");
    ensure!(limit_of(&mut transaction).await? == "7s", "the limit is another");
    ensure!(client.mutex(ROOM)?.try_acquire().await?.is_none(), "a client has the lock, too");
    sqlx::raw_sql("INSERT INTO kept VALUES (1)").execute(&mut *transaction).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)?;
    stage.works(&client).await
}

async fn wait_for_the_lock() -> Outcome {
    let stage = Stage::new().await?;
    let (client, pool) = (stage.client(LONG).await?, pool(&stage).await?);
    let guard = client.mutex(ROOM)?.acquire().await?;
    let waiting = tokio::spawn(async move {
        let mut transaction = pool.begin().await.map_err(failed)?;
        let is_ours = in_transaction(&mut transaction, ROOM).acquire_within(Duration::from_mins(1)).await?;
        transaction.commit().await.map_err(failed)?;
        Outcome::Ok(is_ours)
    });
    stage.queued(1).await?;
    guard.release().await?;
    ensure!(soon("the lock", waiting).await???, "the lock was refused");
    stage.works(&client).await
}

async fn have_the_key_that_one_line_of_sql_computes() -> Outcome {
    let stage = Stage::new().await?;
    for name in ["orders/42", "", "it's a \"name\" with \u{1F512}", "shop:orders/42"] {
        let text = name.replace('\'', "''");
        let line = format!(
            "SELECT ('x' || left(encode(sha256(convert_to('{text}', 'UTF8')), 'hex'), 16))::bit(64)::bigint"
        );
        let keys = stage.values(&line).await?;
        ensure!(keys == [lock_postgres::key(name).to_string()], "{name:?} has {keys:?}");
    }
    Ok(())
}

async fn have_raw_keys_of_other_programs() -> Outcome {
    const KEY: i64 = -4711;
    let stage = Stage::new().await?;
    let (client, pool) = (stage.client("lease=10m&keys=raw").await?, pool(&stage).await?);
    let lock = client.mutex(KEY.to_string())?;
    let guard = lock.acquire().await?;
    let mut other = stage.session().await?;
    let rows = other.query(&format!("SELECT pg_try_advisory_lock({KEY})")).await?;
    ensure!(rows == [[Some("f".to_owned())]], "another program has the lock, too");
    let mut transaction = pool.begin().await.map_err(failed)?;
    ensure!(!in_transaction(&mut transaction, ROOM).key(KEY).try_acquire().await?, "two have the lock");
    guard.release().await?;
    ensure!(in_transaction(&mut transaction, ROOM).key(KEY).try_acquire().await?, "a free lock was refused");
    ensure!(lock.try_acquire().await?.is_none(), "two have the lock");
    ensure!(client.status(&KEY.to_string()).await?.holders.len() == 1, "the status shows no holder");
    let kind = client.mutex(ROOM)?.try_acquire().await.map(drop).map_err(|error| error.kind());
    ensure!(kind == Err(ErrorKind::InvalidName), "a name that is no number was answered {kind:?}");
    Ok(())
}
