//! A program without async: plain threads, no runtime.
//!
//! ```sh
//! cargo run -p distlock --example blocking -- memory:
//! cargo run -p distlock --all-features --example blocking -- URL
//! ```
//!
//! `docs/without-async.md` shows this program.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use distlock::{LockError, blocking};

const WORKERS: u32 = 4;
const INVOICES: u32 = 5;

fn main() -> Result<(), LockError> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    println!("{} invoices are numbered", number_invoices(&url)?);
    Ok(())
}

fn number_invoices(url: &str) -> Result<u32, LockError> {
    let locks = blocking::connect(url)?;
    let lock = locks.mutex("invoices")?;
    let last = AtomicU32::new(0);

    thread::scope(|threads| {
        let workers: Vec<_> = (0..WORKERS).map(|_| threads.spawn(|| work(&lock, &last))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })?;

    locks.close(Duration::from_secs(5))?;
    Ok(last.into_inner())
}

fn work(lock: &blocking::DistributedLock, last: &AtomicU32) -> Result<(), LockError> {
    for _ in 0..INVOICES {
        lock.with_lock(|hold| {
            let number = last.load(Ordering::Relaxed) + 1;
            thread::sleep(Duration::from_millis(2)); // invoices that others number meanwhile would be lost
            last.store(number, Ordering::Relaxed);
            println!("invoice {number}, with token {:?}", hold.token());
            Ok::<_, LockError>(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// The servers are started with a runtime; the program runs beside it.
    #[cfg(all(unix, any(feature = "redis", feature = "zookeeper", feature = "mysql")))]
    async fn numbers_all_at(url: String) {
        let numbered = tokio::task::spawn_blocking(move || number_invoices(&url)).await.unwrap();
        assert_eq!(numbered.unwrap(), WORKERS * INVOICES);
    }

    #[cfg(feature = "memory")]
    #[test]
    fn numbers_all_in_memory() {
        assert_eq!(number_invoices("memory:blocking-example").unwrap(), WORKERS * INVOICES);
    }

    #[cfg(all(feature = "file", unix))]
    #[test]
    fn numbers_all_in_a_folder() {
        let folder = std::env::temp_dir().join(format!("distlock-blocking-{}", std::process::id()));
        let numbered = number_invoices(&format!("file:{}", folder.display())).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(numbered, WORKERS * INVOICES);
    }

    #[cfg(all(feature = "redis", unix))]
    #[tokio::test]
    async fn numbers_all_at_redis() {
        use test_servers::{RedisServer, left_out};
        if let Some(reason) = left_out("redis") {
            return eprintln!("redis: {reason}");
        }
        let server = RedisServer::start().await.unwrap();
        numbers_all_at(server.url()).await;
    }

    #[cfg(all(feature = "zookeeper", unix))]
    #[tokio::test]
    async fn numbers_all_at_zookeeper() {
        use test_servers::{ZooKeeperServer, left_out};
        if let Some(reason) = left_out("zookeeper") {
            return eprintln!("zookeeper: {reason}");
        }
        let server = ZooKeeperServer::start().await.unwrap();
        numbers_all_at(server.url()).await;
    }

    #[cfg(all(feature = "mysql", unix))]
    #[tokio::test]
    async fn numbers_all_at_mariadb() {
        use test_servers::{MySqlFlavour, MySqlServer, ServerOptions};
        if let Some(reason) = MySqlFlavour::MariaDb.left_out() {
            return eprintln!("mariadb: {reason}");
        }
        let options = ServerOptions::new().flavour(MySqlFlavour::MariaDb).database("locks");
        let options = options.user("app", "password", &["ALL ON locks.*"]);
        let server = MySqlServer::start_with(options).await.unwrap();
        numbers_all_at(server.url()).await;
    }

    #[test]
    fn the_page_shows_this_program() {
        let (source, page) = (include_str!("blocking.rs"), include_str!("../../docs/without-async.md"));
        let (program, _) = source.split_once("#[cfg(test)]").unwrap();
        let (_, program) = program.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust\n{}\n```", program.trim())));
    }
}
