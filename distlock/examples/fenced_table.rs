//! A table that refuses the writes of earlier holders, by the fencing token.
//!
//! ```sh
//! cargo run -p distlock --example fenced_table -- memory: mysql://app:password@127.0.0.1:3306/app
//! ```
//!
//! The locks may be on any backend; the table is in the database. `docs/guide.md` shows this program.

use distlock::FencingToken;
use sqlx::mysql::MySqlPool;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(locks), Some(database)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fenced_table LOCKS DATABASE".into());
    };
    run(&locks, &database).await
}

async fn run(locks: &str, database: &str) -> Result<(), Failure> {
    let table = MySqlPool::connect(database).await?;
    sqlx::query(
        "CREATE TABLE IF NOT EXISTS account
            (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, token BIGINT UNSIGNED NOT NULL)",
    )
    .execute(&table)
    .await?;
    sqlx::query("REPLACE INTO account VALUES (7, 0, 0)").execute(&table).await?;

    let locks = distlock::connect(locks).await?;
    let lock = locks.mutex("account/7")?;
    let paused = lock.acquire().await?;
    // The first holder is paused for longer than its lease. Breaking the lock has the same effect.
    for holder in locks.status("account/7").await?.holders {
        locks.break_holder("account/7", &holder.id).await?;
    }

    let next = lock.acquire().await?;
    let written = set_balance(&table, 7, 100, next.token().ok_or("no token")?).await?;
    println!("the next holder writes 100: {written}");
    let overwritten = set_balance(&table, 7, 50, paused.token().ok_or("no token")?).await?;
    println!("the paused holder writes 50: {overwritten}");
    assert!(written && !overwritten);
    Ok(next.release().await?)
}

/// Returns whether the balance was written: not when a later holder has already written to the row.
async fn set_balance(
    table: &MySqlPool,
    account: i64,
    balance: i64,
    token: FencingToken,
) -> Result<bool, sqlx::Error> {
    let update = sqlx::query("UPDATE account SET balance = ?, token = ? WHERE id = ? AND token <= ?")
        .bind(balance)
        .bind(token.get())
        .bind(account)
        .bind(token.get());
    Ok(update.execute(table).await?.rows_affected() == 1)
}

#[cfg(test)]
mod tests {
    #[cfg(all(feature = "memory", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn the_table_refuses_a_token_from_before() {
        use test_servers::{MySqlFlavour, MySqlServer, ServerOptions};
        if let Some(reason) = MySqlFlavour::MariaDb.left_out() {
            return eprintln!("mariadb: {reason}");
        }
        let options = ServerOptions::new().flavour(MySqlFlavour::MariaDb).database("app");
        let server =
            MySqlServer::start_with(options.user("app", "password", &["ALL ON app.*"])).await.unwrap();
        let url = server.url();
        let (database, _) = url.split_once('?').unwrap();
        super::run("memory:fenced-table", database).await.unwrap();
    }

    #[test]
    fn the_guide_shows_this_program() {
        let (source, page) = (include_str!("fenced_table.rs"), include_str!("../../docs/guide.md"));
        let (program, _) = source.split_once("#[cfg(test)]").unwrap();
        let (_, program) = program.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust,no_run\n{}\n```", program.trim())));
    }
}
