//! The same as the example `in_transaction`, with the crate tokio-postgres: a lock and the writes that it protects, in one
//! transaction.
//!
//! ```sh
//! cargo run -p lock-postgres --features tokio-postgres --example in_transaction_tokio_postgres -- \
//!     postgres://app:password@127.0.0.1:5432/app
//! ```

use std::time::Duration;

use lock_core::ClientBuilder;
use lock_kit::LockUrl;
use lock_postgres::in_transaction;
use tokio_postgres::{Client, NoTls};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const ACCOUNT: &str = "account/7";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("usage: in_transaction_tokio_postgres DATABASE")?;
    run(&url).await
}

async fn run(url: &str) -> Result<(), Failure> {
    let (mut database, connection) = tokio_postgres::connect(&without_options(url), NoTls).await?;
    tokio::spawn(connection);
    database
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS account (id bigint PRIMARY KEY, balance bigint NOT NULL);
             INSERT INTO account VALUES (7, 100) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance",
        )
        .await?;

    let locks = lock_postgres::connect(&LockUrl::parse(url)?, ClientBuilder::new()).await?;
    let closing = locks.mutex(ACCOUNT)?.acquire().await?;
    assert!(!pay(&mut database, 30).await?, "the job has the lock");
    println!("while the job runs, nothing is paid");
    closing.release().await?;

    assert!(pay(&mut database, 30).await?);
    println!("after it, 30 are paid");
    // The lock has ended with the transaction.
    locks.mutex(ACCOUNT)?.acquire().await?.release().await?;
    Ok(())
}

/// Pays out of the account, unless another program keeps the lock for too long.
async fn pay(database: &mut Client, amount: i64) -> Result<bool, Failure> {
    let mut transaction = database.transaction().await?;
    if !in_transaction(&mut transaction, ACCOUNT).acquire_within(Duration::from_millis(300)).await? {
        return Ok(false); // the transaction is rolled back
    }
    let row = transaction.query_one("SELECT balance FROM account WHERE id = 7", &[]).await?;
    let balance: i64 = row.try_get(0)?;
    transaction.execute("UPDATE account SET balance = $1 WHERE id = 7", &[&(balance - amount)]).await?;
    transaction.commit().await?;
    Ok(true)
}

/// The client crate does not know the options of distlock.
fn without_options(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use test_servers::{PostgresServer, ServerOptions};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_payment_and_a_job_exclude_each_other() {
        if let Some(reason) = test_servers::left_out("postgres") {
            return println!("{reason}");
        }
        let options = ServerOptions::new().user("app", "secret", &["CREATE ON SCHEMA public"]);
        let server = PostgresServer::start_with(options).await.unwrap();
        super::run(&server.url()).await.unwrap();
    }
}
