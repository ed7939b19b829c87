//! Runs turns of `lock-bench` with the locks of the crate `distributed-lock-postgres`.
#![forbid(unsafe_code)]

#[path = "../../distributed-lock-mysql/src/cycles.rs"]
mod cycles;
#[path = "../../distributed-lock-mysql/src/hand_offs.rs"]
mod hand_offs;
#[path = "../../distributed-lock-mysql/src/serving.rs"]
mod serving;
#[path = "../../distributed-lock-mysql/src/words.rs"]
mod words;

use distributed_lock_core::traits::{DistributedLock as _, LockProvider as _};
pub(crate) use distributed_lock_postgres::PostgresLockProvider as Provider;
use distributed_lock_postgres::handle::PostgresLockHandle;
use distributed_lock_postgres::lock::PostgresDistributedLock;

use serving::Outcome;

fn main() -> Outcome<()> {
    serving::run()
}

/// Creates a client with connections of its own.
pub(crate) async fn connect(url: &str) -> Outcome<Provider> {
    Provider::new(url).await.map_err(|error| error.to_string())
}

pub(crate) fn lock(provider: &Provider, name: &str) -> PostgresDistributedLock {
    provider.create_lock(name)
}

pub(crate) async fn acquire(lock: &PostgresDistributedLock) -> Outcome<PostgresLockHandle> {
    lock.acquire(None).await.map_err(|error| error.to_string())
}
