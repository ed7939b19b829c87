//! A scheduler that runs on one replica of a service: on the leader.
//!
//! ```sh
//! cargo run -p distlock --example leader -- file: 10.0.0.7:8080 # and in another terminal: 10.0.0.8:8080
//! ```

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use distlock::FencingToken;
use distlock::election::Leading;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How often the scheduler looks for work.
const INTERVAL: Duration = Duration::from_millis(100);

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory:".to_owned());
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    run(&url, &address, &Journal::default()).await
}

async fn run(url: &str, address: &str, journal: &Journal) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?;
    let locks = distlock::connect(url).await?;
    let closed = locks.close_on(async move { terminate.recv().await }, Duration::from_secs(5));
    let election = locks.election("scheduler")?.with_value(address);

    tokio::select! {
        biased;
        () = locks.closing() => println!("{address} stops"),
        failed = election.run(|leading| schedule(leading, journal)) => match failed?? {},
    }
    // The scheduler has been dropped, and has resigned. The client closes when the server has confirmed that.
    Ok(closed.await?)
}

/// Runs until it is dropped: when the leadership is lost, or the service stops.
async fn schedule(leading: Leading, journal: &Journal) -> Result<Infallible, Failure> {
    let term = leading.hold().require_token()?;
    println!("leads in term {term}");
    loop {
        journal.write(term)?;
        sleep(INTERVAL).await;
    }
}

/// Stands for the table that the scheduler writes to, each time with its term.
#[derive(Default)]
struct Journal(Mutex<Vec<FencingToken>>);

impl Journal {
    /// Refuses a leader of an earlier term.
    fn write(&self, term: FencingToken) -> Result<(), Failure> {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.last().is_some_and(|last| term < *last) {
            return Err("another leader has written since".into());
        }
        entries.push(term);
        Ok(())
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::process::Command;
    use std::sync::Arc;

    use super::*;

    async fn until_written_after(term: Option<FencingToken>, journal: &Journal) -> FencingToken {
        loop {
            let last = journal.0.lock().unwrap().last().copied();
            match last {
                Some(last) if Some(last) > term => return last,
                _ => sleep(Duration::from_millis(1)).await,
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_replica_schedules_and_another_after_a_loss_until_sigterm() {
        let (url, journal) = ("memory:leader-example", Arc::new(Journal::default()));
        let replicas = ["10.0.0.7:8080", "10.0.0.8:8080"].map(|address| {
            let journal = Arc::clone(&journal);
            tokio::spawn(async move { run(url, address, &journal).await })
        });
        let first = until_written_after(None, &journal).await;

        let locks = distlock::connect(url).await.unwrap();
        while locks.status("scheduler").await.unwrap().waiters.is_empty() {
            sleep(Duration::from_millis(1)).await; // until the other is a candidate
        }
        let leader = locks.election("scheduler").unwrap().observe().await.unwrap().leader().unwrap();
        assert_eq!(leader.token, Some(first));
        assert!(leader.value.is_some_and(|value| value.starts_with("10.0.0.")));
        locks.break_holder("scheduler", &leader.id).await.unwrap();
        until_written_after(Some(first), &journal).await;

        let ourselves = std::process::id().to_string();
        assert!(Command::new("kill").args(["-TERM", &ourselves]).status().unwrap().success());
        for replica in replicas {
            replica.await.unwrap().unwrap();
        }
        assert!(!locks.status("scheduler").await.unwrap().is_held());
        assert!(journal.0.lock().unwrap().is_sorted());
    }
}
