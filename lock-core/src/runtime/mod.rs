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

pub use clock::{Clock, Moment, Sleep};
pub use engine::EngineChoice;
pub use race::within;
pub use sync::Mutex;
pub use waker::with_waker;

pub(crate) use clock::{AlarmHandle, AlarmKey, Schedule};
pub(crate) use engine::{AbortOnDrop, BackendTasks, Engine, Parked, can_begin_here, no_answer};
pub(crate) use few::{Few, FewByKey};
pub(crate) use metrics::{Headroom, LockMetrics, Metrics, WaitOutcome};
pub(crate) use number_map::{NumberHashes, NumberMap};
pub(crate) use on_drop::OnDrop;
pub(crate) use outstanding::{Outstanding, Pending};
pub(crate) use race::race;
pub(crate) use waker::wake_contained;
