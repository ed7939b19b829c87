//! Detects whether the machine hung while a case ran.
//!
//! A lease continues while the program that holds it does not run. So if a machine hangs for longer than the lease, a
//! correct backend must lose its lock. A case that failed at such a moment has proved nothing, and is run again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use test_servers::Outcome;

const TICK_MILLISECONDS: u64 = 20;
const TICK: Duration = Duration::from_millis(TICK_MILLISECONDS);

/// The maximum number of runs of a case: if it fails each time, the machine is not the only reason.
const RUNS: usize = 4;

/// What a watch has seen, in milliseconds since its start.
struct Seen {
    start: Instant,
    /// When it last looked.
    last: AtomicU64,
    worst: AtomicU64,
}

impl Seen {
    fn new(start: Instant) -> Self {
        Self { start, last: AtomicU64::new(0), worst: AtomicU64::new(0) }
    }

    /// Looks, and returns the longest time so far by which a look came too late. This one counts, too: a case may fail
    /// right after a stall, before the watch runs again.
    fn look(&self) -> u64 {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let since = now.saturating_sub(self.last.fetch_max(now, Ordering::Relaxed));
        let overslept = since.saturating_sub(TICK_MILLISECONDS);
        self.worst.fetch_max(overslept, Ordering::Relaxed).max(overslept)
    }
}

/// A thread that repeatedly sleeps for a short time, and records by how much it overslept.
struct StallWatch {
    seen: Arc<Seen>,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StallWatch {
    fn start() -> std::io::Result<Self> {
        let seen = Arc::new(Seen::new(Instant::now()));
        let (end, ended) = mpsc::channel();
        let looks = Arc::clone(&seen);
        let watch = move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                looks.look();
            }
        };
        let thread = std::thread::Builder::new().name("stall-watch".to_owned()).spawn(watch)?;
        Ok(Self { seen, end: Some(end), thread: Some(thread) })
    }

    /// Returns the longest time by which the thread has overslept so far.
    fn worst(&self) -> Duration {
        Duration::from_millis(self.seen.look())
    }
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The thread ends with the channel, and has no reason to panic.
            let _ = thread.join();
        }
    }
}

/// Runs a case, and runs it again if it failed while the machine hung for longer than is `bearable`.
pub(crate) fn judge<T>(name: &str, bearable: Duration, run: impl Fn() -> Outcome<T>) -> Outcome<T> {
    judge_watched(name, bearable, || match StallWatch::start() {
        Ok(watch) => {
            let outcome = run();
            (outcome, watch.worst())
        }
        Err(error) => (Err(error.into()), Duration::ZERO),
    })
}

/// `run` returns the result, and the longest stall in that run.
fn judge_watched<T>(
    name: &str,
    bearable: Duration,
    mut run: impl FnMut() -> (Outcome<T>, Duration),
) -> Outcome<T> {
    for _ in 1..RUNS {
        match run() {
            (Err(failure), stall) if stall > bearable => {
                eprintln!(
                    "{name}: run again, as the machine stood still for {stall:?} when it failed: {failure}"
                );
            }
            (outcome, _) => return outcome,
        }
    }
    run().0
}

#[cfg(test)]
mod tests {
    use test_servers::Failure;

    use super::*;

    const BEARABLE: Duration = Duration::from_millis(400);
    const STALL: Duration = Duration::from_secs(3);

    /// Judges runs with these results, one after the other; also returns how many there were.
    fn judged(runs: &[(bool, Duration)]) -> (bool, usize) {
        let mut done = 0;
        let outcome = judge_watched("a case", BEARABLE, || {
            let (passes, stall) = runs[done.min(runs.len() - 1)];
            done += 1;
            (if passes { Ok(()) } else { Err(Failure::new("lost")) }, stall)
        });
        (outcome.is_ok(), done)
    }

    #[test]
    fn a_failure_on_a_machine_that_ran_counts_at_once() {
        assert_eq!(judged(&[(false, BEARABLE)]), (false, 1));
    }

    #[test]
    fn a_failure_on_a_machine_that_stood_still_is_looked_at_again() {
        assert_eq!(judged(&[(false, STALL), (true, Duration::ZERO)]), (true, 2));
        assert_eq!(judged(&[(false, STALL), (false, Duration::ZERO)]), (false, 2));
    }

    #[test]
    fn a_stall_that_has_just_ended_counts() {
        let seen = Seen::new(Instant::now().checked_sub(STALL).unwrap());
        assert!(seen.look() >= 2_900, "{}", seen.look());
        assert!(seen.look() >= 2_900, "forgotten");
        assert_eq!(Seen::new(Instant::now()).look(), 0);
    }

    #[test]
    fn the_machine_is_not_an_excuse_for_ever() {
        assert_eq!(judged(&[(false, STALL)]), (false, RUNS));
    }

    #[test]
    fn what_passed_is_not_run_again() {
        assert_eq!(judged(&[(true, STALL)]), (true, 1));
    }
}
