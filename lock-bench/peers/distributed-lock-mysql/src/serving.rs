//! The conversation with `lock-bench`: commands from standard input, each a line of JSON, and one line of measurements by
//! the program's own clock for each. The URL of the server comes from the environment.

use std::io::{BufRead, Write, stdin, stdout};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::words::{Answer, Order};
use crate::{cycles, hand_offs};

pub(crate) type Outcome<T> = Result<T, String>;

const URL_VARIABLE: &str = "LOCK_BENCH_URL";

/// Runs until standard input ends.
pub(crate) fn run() -> Outcome<()> {
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

/// Returns the processor time of all threads of this program so far.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
