//! Tests of leases, which run on while the machine is stalled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Repeats a test until it succeeds, or fails although the machine was not stalled meanwhile: a lease also runs on a stalled
/// machine.
pub(crate) fn on_a_machine_that_runs(succeeds: impl Fn() -> bool) {
    const TICK: Duration = Duration::from_millis(20);
    const BEARABLE: Duration = Duration::from_millis(100);
    for _ in 0..5 {
        let (over, stood_still) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let watch = thread::spawn({
            let (over, stood_still) = (Arc::clone(&over), Arc::clone(&stood_still));
            move || {
                while !over.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    thread::sleep(TICK);
                    if begun.elapsed() > TICK + BEARABLE {
                        stood_still.store(true, Ordering::Relaxed);
                    }
                }
            }
        });
        let succeeded = succeeds();
        over.store(true, Ordering::Relaxed);
        watch.join().unwrap();
        if succeeded {
            return;
        }
        assert!(stood_still.load(Ordering::Relaxed), "it fails on a machine that runs");
    }
    panic!("it fails again and again");
}
