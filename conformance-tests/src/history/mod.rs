//! Checkers of what happened: they take the history of a run, written down by the clients themselves, and find what no
//! single client could see.
//!
//! Times are nanoseconds of one clock that all recorders share, such as [`lock_core::Moment::as_nanoseconds`] of the
//! machine's clock. They are taken so that doubt speaks for the backend: the end of an interval in which a client believed
//! to hold the lock is taken before what ends it, the beginning after what begins it.

mod belief;
mod fencing;
mod liveness;

pub use belief::{Belief, Overlap, overlaps};
pub use fencing::{Acquisition, Disorder, disorders};
pub use liveness::{Idling, Wait, idlings};
