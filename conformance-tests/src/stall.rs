//! Detects whether the machine hung while a case ran.
//!
//! A lease continues while the program that holds it does not run. So if a machine hangs for longer than the lease, a
//! correct backend must lose its lock. A case that failed at such a moment has proved nothing, and is run again: in the
//! tier of all once, so that a defect that shows seldom is not hidden. The suite prints each repetition at its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Outcome;

use crate::tier::Tier;

const TICK_MILLISECONDS: u64 = 20;
const TICK: Duration = Duration::from_millis(TICK_MILLISECONDS);

/// The maximum number of runs of a case: if it fails each time, the machine is not the only reason.
fn runs() -> usize {
    match Tier::of_this_run() {
        Tier::Default => 4,
        // A defect that shows seldom must not hide behind a busy machine: a second failure is one.
        Tier::All => 2,
    }
}

/// For how long the pressure on the machine is measured at a time.
const WINDOW: Duration = Duration::from_secs(3);

/// The time that programs of this machine have waited for a processor and for its disks so far, if the system says it.
///
/// A server that gets no time is no stall of this process.
fn pressure() -> Option<[Duration; 2]> {
    let total = |resource: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{resource}")).ok()?;
        waited(&text)
    };
    Some([total("cpu")?, total("io")?])
}

/// Parses the line `some avg10=… total=MICROSECONDS`.
fn waited(text: &str) -> Option<Duration> {
    let total = text.lines().find(|line| line.starts_with("some "))?.rsplit("total=").next()?;
    Some(Duration::from_micros(total.trim().parse().ok()?))
}

/// Notes the windows in which there was always a program that waited.
struct PressureWatch {
    since: Instant,
    before: Option<[Duration; 2]>,
}

impl PressureWatch {
    fn start() -> Self {
        Self { since: Instant::now(), before: pressure() }
    }

    /// Returns the length of the window that has just ended, if something waited in nearly all of it.
    fn look(&mut self) -> Option<Duration> {
        let window = self.since.elapsed();
        if window < WINDOW {
            return None;
        }
        let before = std::mem::replace(self, Self::start()).before?;
        let waited = before.into_iter().zip(self.before?).map(|(before, now)| now.saturating_sub(before));
        waited.into_iter().any(|waited| waited > window * 9 / 10).then_some(window)
    }
}

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

    fn at_least(&self, stall: Duration) {
        self.worst.fetch_max(u64::try_from(stall.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
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
            let mut pressure = PressureWatch::start();
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(TICK) {
                looks.look();
                if let Some(window) = pressure.look() {
                    looks.at_least(window);
                }
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
    judge_watched(name, bearable, runs(), || match StallWatch::start() {
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
    runs: usize,
    mut run: impl FnMut() -> (Outcome<T>, Duration),
) -> Outcome<T> {
    for _ in 1..runs {
        match run() {
            (Err(failure), stall) if stall > bearable => {
                eprintln!(
                    "{name}: run again, as the machine stood still or was full for {stall:?} when it failed: {failure}"
                );
            }
            (outcome, _) => return outcome,
        }
    }
    run().0
}

#[cfg(test)]
mod tests {
    use crate::Failure;

    use super::*;

    const BEARABLE: Duration = Duration::from_millis(400);
    const STALL: Duration = Duration::from_secs(3);

    /// Judges runs with these results, one after the other; also returns how many there were.
    fn judged(runs: &[(bool, Duration)]) -> (bool, usize) {
        let mut done = 0;
        let outcome = judge_watched("a case", BEARABLE, 4, || {
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
        assert!(Seen::new(Instant::now()).look() < 1_000);
    }

    #[test]
    fn the_time_that_programs_waited_is_read() {
        let text = "some avg10=0.00 avg60=0.00 avg300=0.09 total=72945487\nfull avg10=0.00 total=1\n";
        assert_eq!(waited(text), Some(Duration::from_micros(72_945_487)));
        assert_eq!(waited("full total=1"), None);
    }

    #[test]
    fn a_window_in_which_programs_always_waited_is_a_stall() {
        let long_ago = |before| PressureWatch { since: Instant::now().checked_sub(WINDOW).unwrap(), before };
        if let Some(now) = pressure() {
            let earlier = now.map(|waited| waited.saturating_sub(WINDOW));
            assert!(now[0] < WINDOW || long_ago(Some(earlier)).look().is_some());
        }
        assert_eq!(long_ago(None).look(), None);
    }

    #[test]
    fn the_machine_is_not_an_excuse_for_ever() {
        assert_eq!(judged(&[(false, STALL)]), (false, 4));
    }

    #[test]
    fn what_passed_is_not_run_again() {
        assert_eq!(judged(&[(true, STALL)]), (true, 1));
    }
}
