//! Threads and time: where work runs, when it is due, and how it is waited for.

pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod dispatcher;
pub(crate) mod engine;
pub(crate) mod pending;
pub(crate) mod race;
pub(crate) mod sync;
pub(crate) mod waker;
