//! The same program on every backend: only the URL differs.
//!
//! ```sh
//! cargo run -p distlock --example same_program -- memory:
//! cargo run -p distlock --example same_program -- file:/tmp/my-locks
//! cargo run -p distlock --all-features --example same_program -- URL
//! ```
//!
//! Several tasks increment a number in a way that loses counts without a lock, and print the fencing tokens that they
//! got. If the lock reaches other processes, start the program twice to see one wait for the other.
//! `docs/same-program.md` says more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use distlock::{DistributedLock, FencingToken, Hold, LossReason};

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
    lock.add_listener(Arc::new(|hold: &Hold, why: &LossReason| {
        eprintln!("the lock {:?} was lost: {why}", hold.name().as_str());
    }))
    .detach();

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
mod tests;
