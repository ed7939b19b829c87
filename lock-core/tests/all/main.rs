//! The tests of the core that share a process: one program, because each links the core and all that it needs.
//!
//! Those beside it change or watch something that belongs to the whole process, or compile modules of the core in another way.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "also in shared functions of the tests"
)]

mod attempts;
mod backend_reports;
mod bodies;
mod branches;
mod cancellation;
mod closing;
mod edges;
mod election;
mod errors;
mod events;
mod listener;
mod local_handoff;
mod loss;
mod lost_unseen;
mod once;
mod options;
mod pipelining;
mod races;
mod reentry;
mod scopes;
mod several;
mod sharing;
#[path = "../support/mod.rs"]
mod support;
mod waiting;
mod wakers;
mod walks;
mod watching;
