//! Measures cycles of acquire and release: `cargo run --release --example cycles -- FOLDER COUNT`.
use std::time::Instant;

use lock_core::{ClientBuilder, DistributedLockExt, LockError};
use lock_file::FileOptions;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let arguments: Vec<String> = std::env::args().collect();
    let folder = arguments.get(1).map_or("/dev/shm/distlock-cycles", String::as_str);
    let count: u32 = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let locks = FileOptions::in_folder(folder).client(ClientBuilder::new())?;
    let lock = locks.lock("cycles")?;
    let mut worst = std::time::Duration::ZERO;
    let start = Instant::now();
    for _ in 0..count {
        let begun = Instant::now();
        lock.acquire().await?.release().await?;
        worst = worst.max(begun.elapsed());
    }
    let each = start.elapsed() / count.max(1);
    println!("{count} cycles in {folder}: {each:?} each, the slowest {worst:?}");
    Ok(())
}
