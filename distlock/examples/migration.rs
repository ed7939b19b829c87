//! A migration when a service starts: one replica migrates the database, and all others wait for it.
//!
//! ```sh
//! cargo run -p distlock --example migration -- file:
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// The version of the database that this program needs.
const VERSION: u32 = 3;

/// How long a start may take because of a migration.
const PATIENCE: Duration = Duration::from_secs(300);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let steps = start(&url, &Database::default()).await?;
    println!("ready after {steps} steps of the migration");
    Ok(())
}

/// Starts a replica. Returns how many steps of the migration it has made.
async fn start(url: &str, database: &Database) -> Result<u32, Failure> {
    let locks = distlock::connect(url).await?;
    let steps = locks.mutex("migration")?.with_lock_for(PATIENCE, |_| migrate(database)).await?;
    assert_eq!(database.version(), VERSION); // from here on it serves requests
    locks.close(Duration::from_secs(5)).await?;
    Ok(steps)
}

/// Makes the steps that are missing: all, none, or the rest after a replica that failed in the middle.
async fn migrate(database: &Database) -> Result<u32, Failure> {
    let from = database.version();
    for version in from..VERSION {
        database.step_from(version).await?;
    }
    Ok(VERSION.saturating_sub(from))
}

/// Stands for a database that records its version with each step, in one transaction:
/// `UPDATE schema SET version = ? WHERE version = ?`.
#[derive(Default)]
struct Database {
    version: AtomicU32,
}

impl Database {
    fn version(&self) -> u32 {
        self.version.load(Ordering::SeqCst)
    }

    /// Refuses a step that has been made already.
    async fn step_from(&self, version: u32) -> Result<(), Failure> {
        sleep(Duration::from_millis(20)).await;
        let stepped = self.version.compare_exchange(version, version + 1, Ordering::SeqCst, Ordering::SeqCst);
        stepped.map(drop).map_err(|found| format!("the database has version {found}").into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::task::JoinSet;

    use super::*;

    const REPLICAS: usize = 8;

    /// Starts all replicas at the same time. Returns how many steps each has made, in order.
    async fn start_all(url: &str, database: Database) -> Vec<u32> {
        let (url, database) = (url.to_owned(), Arc::new(database));
        let mut replicas = JoinSet::new();
        for _ in 0..REPLICAS {
            let (url, database) = (url.clone(), Arc::clone(&database));
            replicas.spawn(async move { start(&url, &database).await.unwrap() });
        }
        let mut steps = replicas.join_all().await;
        steps.sort_unstable();
        steps
    }

    const ONE_MIGRATES: [u32; REPLICAS] = [0, 0, 0, 0, 0, 0, 0, VERSION];

    #[cfg(feature = "memory")]
    #[tokio::test(flavor = "multi_thread")]
    async fn one_of_eight_replicas_migrates() {
        assert_eq!(start_all("memory:migration", Database::default()).await, ONE_MIGRATES);
    }

    #[cfg(feature = "memory")]
    #[tokio::test(flavor = "multi_thread")]
    async fn the_rest_of_a_migration_is_made_once() {
        let database = Database { version: AtomicU32::new(2) };
        let steps = start_all("memory:migration-rest", database).await;
        assert_eq!(steps, [0, 0, 0, 0, 0, 0, 0, 1]);
    }

    #[cfg(all(feature = "file", unix))]
    #[tokio::test(flavor = "multi_thread")]
    async fn one_of_eight_replicas_migrates_with_locks_in_a_folder() {
        let folder = std::env::temp_dir().join(format!("distlock-migration-{}", std::process::id()));
        let steps = start_all(&format!("file:{}", folder.display()), Database::default()).await;
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(steps, ONE_MIGRATES);
    }
}
