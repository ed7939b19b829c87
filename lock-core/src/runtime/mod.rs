//! Threads and time: where work runs, when it is due, and how code waits for it. And what is counted of it.

pub(crate) mod clock;
#[cfg(test)]
pub(crate) mod counts;
pub(crate) mod deadline_thread;
pub(crate) mod engine;
pub(crate) mod few;
pub(crate) mod log;
#[cfg(feature = "testing")]
pub(crate) mod manual_clock;
pub(crate) mod metrics;
pub(crate) mod number_map;
pub(crate) mod on_drop;
pub(crate) mod outstanding;
pub(crate) mod race;
pub(crate) mod sync;
pub(crate) mod waker;
