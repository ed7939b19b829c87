//! A job that runs once a minute, on one of several replicas.
//!
//! ```sh
//! cargo run -p distlock --all-features --example periodic_job -- URL
//! ```

use std::convert::Infallible;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use distlock::{LockClient, LockError};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How often the job runs, in seconds.
const PERIOD: u64 = 60;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let mut terminate = signal(SignalKind::terminate())?;
    let locks = distlock::connect(url).await?;
    let closed = locks.close_on(async move { terminate.recv().await }, Duration::from_secs(5));
    tokio::select! {
        biased;
        () = locks.closing() => {}
        failed = every_minute(&locks) => match failed? {},
    }
    Ok(closed.await?)
}

async fn every_minute(locks: &LockClient) -> Result<Infallible, Failure> {
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let minute = now / PERIOD;
        match once_a_minute(locks, minute, poll_the_mailbox).await {
            Ok(Some(messages)) => println!("{messages} messages"),
            Ok(None) => println!("another replica has polled"),
            Err(error) => eprintln!("minute {minute}: {error}"), // there is another minute
        }
        sleep(Duration::from_secs(PERIOD - now % PERIOD)).await;
    }
}

/// Runs the job, unless a replica has run it for this minute: also one whose clock differs.
async fn once_a_minute(
    locks: &LockClient,
    minute: u64,
    job: impl AsyncFnOnce() -> Result<u32, LockError>,
) -> Result<Option<u32>, LockError> {
    let once = locks.once("poll the mailbox", minute.to_string())?.keep(Duration::from_secs(3600));
    once.run_within(Duration::from_secs(PERIOD), async |_| job().await).await
}

async fn poll_the_mailbox() -> Result<u32, LockError> {
    Ok(3)
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Three replicas, whose clocks differ by more than the job takes, with a client each.
    #[tokio::test]
    async fn each_minute_runs_once() {
        let polls = AtomicU32::new(0);
        let job = async || Ok(polls.fetch_add(1, Ordering::Relaxed));
        for minute in 0..3 {
            for replica in 0..3 {
                let locks = distlock::connect("memory:periodic-job").await.unwrap();
                let polled = once_a_minute(&locks, minute, &job).await.unwrap();
                assert_eq!(polled.is_some(), replica == 0, "minute {minute}, replica {replica}");
            }
        }
        assert_eq!(polls.into_inner(), 3);
    }

    /// The slot is taken before the job begins: how far a failed job has come is not known.
    #[tokio::test]
    async fn a_minute_that_failed_is_not_repeated() {
        let locks = distlock::connect("memory:periodic-job-failure").await.unwrap();
        let fails = async || locks.mutex("").map(|_| 0); // an invalid name
        assert!(once_a_minute(&locks, 1, fails).await.is_err());
        assert_eq!(once_a_minute(&locks, 1, poll_the_mailbox).await.unwrap(), None);
        assert_eq!(once_a_minute(&locks, 2, poll_the_mailbox).await.unwrap(), Some(3));
    }
}
