//! Measures what a lock costs on one machine: reentry, an uncontended cycle, the memory of a held lock.
//!
//! `cargo run --release -p distlock --example cost`
//!
//! Each figure is the median of several rounds. The figures show orders of magnitude on the current machine; compare
//! them only within one run.

#![allow(clippy::cast_precision_loss, reason = "counts and nanoseconds, far below 2^52")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use distlock::testing::{MemoryOptions, MemoryServer};
use distlock::{ClientBuilder, DistributedLock, LockError};

const ROUNDS: usize = 9;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let memory = distlock::connect("memory:cost").await?;
    let lock = memory.mutex("orders/42")?;
    lock.lock().await?;
    report("reentry: lock + unlock by the owner", per_cycle(200_000, &lock).await?);
    lock.unlock().await?;
    report("memory: lock + unlock", per_cycle(50_000, &lock).await?);
    report("memory: acquire + release of a guard", per_guard(50_000, &lock).await?);
    let leased = distlock::connect("memory:cost?lease=30s").await?.mutex("orders/42")?;
    report("memory with a lease: lock + unlock", per_cycle(50_000, &leased).await?);
    file().await?;
    memory_of_a_hold().await
}

#[cfg(all(feature = "file", unix))]
async fn file() -> Result<(), LockError> {
    use std::os::unix::fs::DirBuilderExt;
    for (what, parent) in
        [("file, temporary folder", std::env::temp_dir()), ("file, /dev/shm", "/dev/shm".into())]
    {
        let folder = parent.join(format!("distlock-cost-{}", std::process::id()));
        if std::fs::DirBuilder::new().mode(0o700).create(&folder).is_err() {
            continue;
        }
        let lock = distlock::connect(format!("file:{}", folder.display())).await?.mutex("orders/42")?;
        report(&format!("{what}: lock + unlock"), per_cycle(500, &lock).await?);
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(())
}

#[cfg(not(all(feature = "file", unix)))]
async fn file() -> Result<(), LockError> {
    Ok(())
}

async fn per_cycle(count: u32, lock: &Arc<dyn DistributedLock>) -> Result<Duration, LockError> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            lock.lock().await?;
            lock.unlock().await?;
        }
        rounds.push(start.elapsed() / count);
    }
    rounds.sort_unstable();
    Ok(rounds[ROUNDS / 2])
}

async fn per_guard(count: u32, lock: &Arc<dyn DistributedLock>) -> Result<Duration, LockError> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            lock.acquire().await?.release().await?;
        }
        rounds.push(start.elapsed() / count);
    }
    rounds.sort_unstable();
    Ok(rounds[ROUNDS / 2])
}

/// Holds 10,000 locks with a lease at once. The figure includes the server, which also runs in this process.
async fn memory_of_a_hold() -> Result<(), LockError> {
    const COUNT: usize = 10_000;
    let server = MemoryServer::new();
    let options = MemoryOptions::new().lease(Duration::from_secs(30));
    let client = server.client_with(options, ClientBuilder::new())?;
    let before = resident();
    let mut guards = Vec::with_capacity(COUNT);
    for number in 0..COUNT {
        guards.push(client.mutex(format!("orders/{number}"))?.acquire().await?);
    }
    if let (Some(before), Some(after)) = (before, resident()) {
        println!(
            "{:<45} {:>10} bytes",
            "memory of a held lock, its server's side in it",
            (after - before) / COUNT
        );
    }
    drop(guards);
    Ok(())
}

/// Returns the resident memory of this process in bytes, if the system provides it.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches(" kB").parse::<usize>().ok().map(|kibibytes| kibibytes * 1024)
}

fn report(what: &str, time: Duration) {
    println!("{what:<45} {:>10.3} µs", time.as_nanos() as f64 / 1000.0);
}
