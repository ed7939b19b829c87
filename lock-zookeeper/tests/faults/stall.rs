//! Whether the machine stood still while a case ran.
//!
//! A lease goes on while the program that holds it does not run. A case that failed on a machine that stood still has shown
//! nothing, and is run again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use conformance_tests::Outcome;

const TICK: Duration = Duration::from_millis(20);

/// Well below the shortest time within which a lease has to be renewed.
const BEARABLE: Duration = Duration::from_millis(300);

/// How often a case is run at the most: one that fails each time does not fail for the machine alone.
const RUNS: usize = 4;

/// Runs a case, and runs it again when it failed while the machine stood still.
pub fn judge(name: &str, run: impl Fn() -> Outcome) -> Outcome {
    for _ in 1..RUNS {
        let (outcome, stall) = watched(&run);
        match outcome {
            Err(failure) if stall > BEARABLE => {
                eprintln!(
                    "{name}: run again, the machine stood still for {stall:?} when it failed: {failure}"
                );
            }
            outcome => return outcome,
        }
    }
    run()
}

/// What `run` answers, and the longest time by which a thread that only sleeps overslept meanwhile.
fn watched(run: impl Fn() -> Outcome) -> (Outcome, Duration) {
    let worst = Arc::new(AtomicU64::new(0));
    let noted = Arc::downgrade(&worst);
    let watching = thread::Builder::new().name("stall-watch".to_owned()).spawn(move || watch(&noted));
    let outcome = run();
    let stall = Duration::from_millis(worst.load(Ordering::Relaxed));
    drop(worst);
    if let Ok(watching) = watching {
        // It ends because nobody wants to know any more.
        let _ = watching.join();
    }
    (outcome, stall)
}

fn watch(worst: &Weak<AtomicU64>) {
    let mut since = Instant::now();
    while let Some(worst) = worst.upgrade() {
        thread::sleep(TICK);
        let now = Instant::now();
        let overslept = now.duration_since(since).saturating_sub(TICK);
        worst.fetch_max(u64::try_from(overslept.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        since = now;
    }
}
