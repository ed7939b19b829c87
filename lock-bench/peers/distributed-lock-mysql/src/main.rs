//! Runs turns of `lock-bench` with the locks of the crate `distributed-lock-mysql`.
#![forbid(unsafe_code)]

mod cycles;
mod hand_offs;
mod serving;
mod words;

use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockProvider as _};
use distributed_lock_mysql::MySqlLockHandle;
pub(crate) use distributed_lock_mysql::MySqlLockProvider as Provider;
use distributed_lock_mysql::lock::MySqlDistributedLock;

use serving::Outcome;

/// Without a limit, its `acquire` fails on MariaDB: it sends a negative number of seconds for an endless wait.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> Outcome<()> {
    serving::run()
}

/// Creates a client with connections of its own.
pub(crate) async fn connect(url: &str) -> Outcome<Provider> {
    Provider::new(url).await.map_err(|error| error.to_string())
}

pub(crate) fn lock(provider: &Provider, name: &str) -> MySqlDistributedLock {
    provider.create_lock(name)
}

pub(crate) async fn acquire(lock: &MySqlDistributedLock) -> Outcome<MySqlLockHandle> {
    lock.acquire(Some(LONGEST_WAIT)).await.map_err(|error| error.to_string())
}
