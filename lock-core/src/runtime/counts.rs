//! What tests of costs count, on each thread for itself.

use std::cell::Cell;
use std::ptr;

use super::deadline_thread::DEADLINES;
use super::metrics::HEADROOMS;
use super::sync::Mutex;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) mutexes: u64,
    /// Those that all clients of the process share.
    pub(crate) of_process: u64,
    pub(crate) spawns: u64,
    /// How many requests of a line were looked at.
    pub(crate) requests: u64,
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { mutexes: 0, of_process: 0, spawns: 0, requests: 0 }) };
}

/// Returns what this thread has done so far.
pub(crate) fn counts() -> Counts {
    COUNTS.get()
}

/// A mutex is locked.
pub(crate) fn mutex<T>(mutex: &Mutex<T>) {
    let shared = [ptr::from_ref(&DEADLINES).addr(), ptr::from_ref(&HEADROOMS).addr()];
    let is_of_process = shared.contains(&ptr::from_ref(mutex).addr());
    let Counts { mutexes, of_process, .. } = COUNTS.get();
    let of_process = of_process + u64::from(is_of_process);
    COUNTS.set(Counts { mutexes: mutexes + 1, of_process, ..COUNTS.get() });
}

/// A task is spawned on an engine.
pub(crate) fn spawn() {
    COUNTS.set(Counts { spawns: COUNTS.get().spawns + 1, ..COUNTS.get() });
}

/// A request of a line is looked at.
pub(crate) fn request() {
    COUNTS.set(Counts { requests: COUNTS.get().requests + 1, ..COUNTS.get() });
}
