//! Runs turns of `lock-bench` with the locks of the crate `distributed-lock-mysql`.
//!
//! It reads commands from standard input, each a line of JSON, and answers each with one line of measurements by its
//! own clock. The URL of the server comes from the environment.
#![forbid(unsafe_code)]

mod cycles;
mod hand_offs;
mod words;

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use distributed_lock_core::traits::{DistributedLock as _, LockProvider as _};
use distributed_lock_mysql::lock::MySqlDistributedLock;
use distributed_lock_mysql::{MySqlLockHandle, MySqlLockProvider};
use rustix::time::{ClockId, clock_gettime};

use words::{Answer, Order};

pub(crate) type Outcome<T> = Result<T, String>;

const URL_VARIABLE: &str = "LOCK_BENCH_URL";

/// Without a limit, its `acquire` fails on MariaDB: it sends a negative number of seconds for an endless wait.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);

fn main() -> Outcome<()> {
    let url = std::env::var(URL_VARIABLE).map_err(|error| format!("{URL_VARIABLE}: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let mut output = stdout().lock();
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let url = url.clone();
        let served = async { tokio::spawn(serve(line, url)).await.map_err(|error| error.to_string())? };
        let answer = runtime.block_on(served).unwrap_or_else(Answer::failed);
        writeln!(output, "{answer}").and_then(|()| output.flush()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn serve(line: String, url: String) -> Outcome<String> {
    match serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))? {
        Order::Cycles(turn) => Ok(Answer::Done(cycles::run(&url, &turn).await?).to_line()),
        Order::HandOffs(turn) => Ok(Answer::Done(hand_offs::run(&url, turn).await?).to_line()),
    }
}

/// Creates a client with connections of its own.
pub(crate) async fn connect(url: &str) -> Outcome<MySqlLockProvider> {
    MySqlLockProvider::new(url).await.map_err(|error| error.to_string())
}

pub(crate) fn lock(provider: &MySqlLockProvider, name: &str) -> MySqlDistributedLock {
    provider.create_lock(name)
}

pub(crate) async fn acquire(lock: &MySqlDistributedLock) -> Outcome<MySqlLockHandle> {
    lock.acquire(Some(LONGEST_WAIT)).await.map_err(|error| error.to_string())
}

/// Returns the processor time of all threads of this program so far.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
