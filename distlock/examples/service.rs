//! A service that releases its lock when SIGTERM ends it.
//!
//! ```sh
//! cargo run -p distlock --example service -- file:
//! ```
//!
//! `docs/guide.md` shows this program.

use std::time::Duration;

use distlock::{LockClient, LockError};
use tokio::signal::unix::{SignalKind, signal};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    run(&url).await
}

async fn run(url: &str) -> Result<(), Failure> {
    let mut terminate = signal(SignalKind::terminate())?; // before the lock is acquired
    let locks = distlock::connect(url).await?;

    tokio::select! {
        result = serve(&locks) => result?,
        _ = terminate.recv() => println!("SIGTERM: stopping"),
    }
    // `serve` has been dropped, and its guard with it. `close` waits until the server has confirmed the release.
    Ok(locks.close(Duration::from_secs(5)).await?)
}

async fn serve(locks: &LockClient) -> Result<(), LockError> {
    let guard = locks.mutex("scheduler")?.acquire().await?;
    loop {
        tokio::select! {
            Some(_) = guard.lost() => return guard.release().await, // which returns the loss as an error
            () = tokio::time::sleep(Duration::from_secs(1)) => println!("one round of work"),
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "memory")]
    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_releases_the_lock() {
        use std::time::Duration;

        let url = "memory:service";
        let service = tokio::spawn(super::run(url));
        let other = distlock::connect(url).await.unwrap();
        while !other.status("scheduler").await.unwrap().is_held() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let this_process = std::process::id().to_string();
        assert!(
            std::process::Command::new("kill").args(["-TERM", &this_process]).status().unwrap().success()
        );
        service.await.unwrap().unwrap();
        assert!(other.mutex("scheduler").unwrap().try_acquire().await.unwrap().is_some());
    }

    #[test]
    fn the_guide_shows_this_program() {
        let (source, page) = (include_str!("service.rs"), include_str!("../../docs/guide.md"));
        let (program, _) = source.split_once("#[cfg(test)]").unwrap();
        let (_, program) = program.split_once("\n\n").unwrap();
        assert!(page.contains(&format!("```rust,no_run\n{}\n```", program.trim())));
    }
}
