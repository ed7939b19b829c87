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
    let closed = locks.close_on(async move { terminate.recv().await }, Duration::from_secs(5));

    tokio::select! {
        biased;
        () = locks.closing() => println!("SIGTERM: stopping"),
        result = serve(&locks) => result?,
    }
    // `serve` has been dropped, and its guard with it. The client closes when the server has confirmed the release.
    Ok(closed.await?)
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
    use std::process::{Child, Command};
    use std::time::Duration;

    use distlock::LockClient;

    /// Tells the test below to be the service.
    const URL: &str = "SERVICE_URL";

    #[tokio::test(flavor = "multi_thread")]
    async fn serves_if_told_to() {
        if let Ok(url) = std::env::var(URL) {
            super::run(&url).await.unwrap();
        }
    }

    fn service(url: &str) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "tests::serves_if_told_to", "--nocapture"]).env(URL, url).spawn().unwrap()
    }

    fn terminate(process: u32) {
        assert!(Command::new("kill").args(["-TERM", &process.to_string()]).status().unwrap().success());
    }

    async fn until_held(locks: &LockClient) -> Option<u32> {
        loop {
            let status = locks.status("scheduler").await.unwrap();
            if let Some(holder) = status.holders.first() {
                return holder.pid;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[cfg(feature = "file")]
    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_releases_the_lock_and_ends_the_process_in_order() {
        let folder = std::env::temp_dir().join(format!("distlock-service-{}", std::process::id()));
        let url = format!("file:{}", folder.display());
        let other = distlock::connect(&url).await.unwrap();
        let mut service = service(&url);
        assert_eq!(until_held(&other).await, Some(service.id()));
        terminate(service.id());
        let ended = tokio::task::spawn_blocking(move || service.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "{ended}");
        assert!(other.mutex("scheduler").unwrap().try_acquire().await.unwrap().is_some());
        other.close(Duration::from_secs(60)).await.unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(feature = "memory")]
    #[tokio::test(flavor = "multi_thread")]
    async fn sigterm_releases_the_lock() {
        let url = "memory:service";
        let service = tokio::spawn(super::run(url));
        let other = distlock::connect(url).await.unwrap();
        until_held(&other).await;
        terminate(std::process::id());
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
