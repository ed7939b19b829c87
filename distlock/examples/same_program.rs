//! The same program on every backend: only the URL differs.
//!
//! ```sh
//! cargo run -p distlock --example same_program -- memory:
//! cargo run -p distlock --example same_program -- file:/tmp/my-locks
//! cargo run -p distlock --features redis --example same_program -- redis://127.0.0.1:6379
//! cargo run -p distlock --features zookeeper --example same_program -- zookeeper://127.0.0.1:2181/locks
//! cargo run -p distlock --features mysql --example same_program -- mysql://app:password@127.0.0.1:3306
//! ```
//!
//! Several tasks increment a number in a way that loses counts without a lock, and print the fencing tokens that they
//! got. If the lock reaches other processes, start the program twice to see one wait for the other.
//! `docs/same-program.md` shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::{DistributedLock, DistributedLockExt, FencingToken, Hold, LossReason};

const TASKS: u32 = 4;
const ROUNDS: u32 = 5;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let counted = count_at(&url).await?;
    println!("counted {counted} of {}", TASKS * ROUNDS);
    Ok(())
}

async fn count_at(url: &str) -> Result<u32, Failure> {
    let locks = distlock::connect(url).await?;
    let lock = locks.mutex("orders/42")?;
    lock.set_listener(Some(Arc::new(|hold: &Hold, why: &LossReason| {
        eprintln!("the lock {:?} was lost: {why}", hold.name().as_str());
    })));

    let count = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> =
        (0..TASKS).map(|number| tokio::spawn(work(number, Arc::clone(&lock), Arc::clone(&count)))).collect();
    for task in tasks {
        task.await??;
    }

    locks.close(Duration::from_secs(5)).await?;
    Ok(count.load(Ordering::Relaxed))
}

async fn work(number: u32, lock: Arc<dyn DistributedLock>, count: Arc<AtomicU32>) -> Result<(), Failure> {
    for _ in 0..ROUNDS {
        let guard = lock.acquire().await?;
        let before = count.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(2)).await; // increments by others in between would be lost
        count.store(before + 1, Ordering::Relaxed);
        // The protected resource checks the token, so that it refuses a holder that comes too late.
        println!("task {number}: {} with token {:?}", before + 1, guard.token().map(FencingToken::get));
        guard.release().await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // tests

    use super::*;

    #[cfg(feature = "memory")]
    #[tokio::test(flavor = "multi_thread")]
    async fn counts_in_memory() {
        assert_eq!(count_at("memory:").await.unwrap(), TASKS * ROUNDS);
    }

    #[cfg(all(feature = "file", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn counts_in_a_folder() {
        let folder = std::env::temp_dir().join(format!("distlock-same-program-{}", std::process::id()));
        let counted = count_at(&format!("file:{}", folder.display())).await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(counted, TASKS * ROUNDS);
    }

    #[cfg(all(feature = "redis", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn counts_at_redis() {
        use test_servers::{RedisServer, left_out};
        if let Some(reason) = left_out("redis") {
            return eprintln!("redis: {reason}");
        }
        let server = RedisServer::start().await.unwrap();
        assert_eq!(count_at(&server.url()).await.unwrap(), TASKS * ROUNDS);
    }

    #[cfg(all(feature = "zookeeper", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn counts_at_zookeeper() {
        use test_servers::{ZooKeeperServer, left_out};
        if let Some(reason) = left_out("zookeeper") {
            return eprintln!("zookeeper: {reason}");
        }
        let server = ZooKeeperServer::start().await.unwrap();
        assert_eq!(count_at(&server.url()).await.unwrap(), TASKS * ROUNDS);
    }

    #[cfg(all(feature = "mysql", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn counts_at_mariadb_and_mysql() {
        use test_servers::{MySqlFlavour, MySqlOptions, MySqlServer};
        for (flavour, scheme) in [(MySqlFlavour::MariaDb, "mariadb:"), (MySqlFlavour::MySql57, "mysql:")] {
            if let Some(reason) = flavour.left_out() {
                eprintln!("{flavour:?}: {reason}");
                continue;
            }
            let options = MySqlOptions::new(flavour).database("locks");
            let options = options.user("app", "password", &["ALL ON locks.*"]);
            let server = MySqlServer::start_with(options).await.unwrap();
            let url = server.url().replace("mysql:", scheme);
            for tokens in ["uuid", "table"] {
                assert_eq!(count_at(&format!("{url}&fencing={tokens}")).await.unwrap(), TASKS * ROUNDS);
            }
        }
    }

    #[test]
    fn the_page_shows_this_program() {
        let (source, page) = (include_str!("same_program.rs"), include_str!("../../docs/same-program.md"));
        let (program, _) = source.split_once("#[cfg(test)]").unwrap();
        let (_, program) = program.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust\n{}\n```", program.trim())));
    }
}
