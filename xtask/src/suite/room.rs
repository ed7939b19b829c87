//! Decides whether the machine has room for one more program.
//!
//! Most programs mostly wait: for leases to end, for servers to start. So more of them run at once than there are
//! processors, as long as the processors have time left.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::order::processors;

/// For how long the processors are watched, and how soon a new program shows its weight.
const LOOK: Duration = Duration::from_secs(1);

/// The share of the processors' time that has to be left, in percent.
const LEFT: u64 = 30;

/// So many programs for each processor, and their servers, fit into the memory of a small machine.
const MOST: usize = 5;

/// Returns how many programs run at once at most.
pub(super) fn most() -> usize {
    MOST * processors()
}

/// Counts the programs that run.
#[derive(Debug, Default)]
pub(super) struct Room {
    running: AtomicUsize,
}

impl Room {
    /// Waits until there is room for one more program. One caller at a time.
    pub(super) fn enter(&self) {
        while self.running.load(Ordering::Relaxed) >= processors() && !is_idle() {}
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives back the place of a program that has ended.
    pub(super) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns whether the processors had time left while this watched. Without numbers it is assumed.
fn is_idle() -> bool {
    let before = times();
    thread::sleep(LOOK);
    match (before, times()) {
        (Some(before), Some(after)) => left(before, after) >= LEFT,
        _ => true,
    }
}

/// Returns the share of the time that was left, in percent.
fn left(before: (u64, u64), after: (u64, u64)) -> u64 {
    let (idle, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    idle * 100 / all.max(1)
}

/// Returns the idle time and the whole time of all processors so far, where the system says that.
fn times() -> Option<(u64, u64)> {
    of_line(fs::read_to_string("/proc/stat").ok()?.lines().next()?)
}

/// Parses `cpu  user nice system idle iowait irq softirq steal …`.
fn of_line(line: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|n| n.parse().ok()).collect();
    Some((numbers.get(3)? + numbers.get(4)?, numbers.iter().sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_is_left_is_read() {
        let before = of_line("cpu  100 0 100 300 0 0 0 0 0 0").unwrap();
        let after = of_line("cpu  150 0 110 340 0 0 0 0 0 0").unwrap();
        assert_eq!(left(before, after), 40);
        assert_eq!(left(after, after), 0);
        assert_eq!(of_line("intr 3"), None);
    }

    #[test]
    fn there_is_room_for_a_program_on_each_processor_without_a_look() {
        let room = Room::default();
        for _ in 0..processors() {
            room.enter();
        }
        assert_eq!(room.running.load(Ordering::Relaxed), processors());
        room.leave();
        room.enter();
        assert_eq!(room.running.load(Ordering::Relaxed), processors());
    }
}
