//! One client acquires and releases a lock that no other client wants.

use std::time::{Duration, Instant};

use distributed_lock_core::traits::LockHandle as _;

use crate::serving::{Outcome, nanoseconds, processor_time};
use crate::words::{CycleTurn, Cycles};
use crate::{acquire, connect, lock};

pub(crate) async fn run(url: &str, turn: &CycleTurn) -> Outcome<Cycles> {
    let provider = connect(url).await?;
    let lock = lock(&provider, &turn.name);
    for _ in 0..turn.warm_up {
        acquire(&lock).await?.release().await.map_err(|error| error.to_string())?;
    }
    let mut seen = Cycles::default();
    let processor = processor_time();
    let end = Instant::now() + Duration::from_nanos(turn.length);
    loop {
        let begun = Instant::now();
        if seen.acquire.len() >= turn.most || (begun > end && !seen.acquire.is_empty()) {
            seen.processor = nanoseconds(processor_time().saturating_sub(processor));
            return Ok(seen);
        }
        let held = acquire(&lock).await?;
        let acquired = Instant::now();
        held.release().await.map_err(|error| error.to_string())?;
        seen.acquire.push(nanoseconds(acquired - begun));
        seen.release.push(nanoseconds(acquired.elapsed()));
    }
}
