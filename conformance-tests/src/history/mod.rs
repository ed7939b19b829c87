//! Checkers of a history: the clients record what they did, and the checkers find errors that no single client can
//! see.
//!
//! Times are nanoseconds of one clock that all recorders share, such as [`lock_core::Moment::as_nanoseconds`] of the
//! system clock. They are recorded so that doubtful cases count in favour of the backend: the interval in which a
//! client believed to hold the lock ends before the event that ends it, and begins after the event that begins it.

mod exclusion;
mod fencing;
mod liveness;
mod weights;

pub use exclusion::{HoldInterval, Overlap, overlaps};
pub use fencing::{Acquisition, Disorder, disorders};
pub use liveness::{Idling, Wait, idlings};
pub use weights::{Excess, Share, excess};
