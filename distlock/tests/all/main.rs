//! The tests of the facade, and those of the examples: one program, because each links every backend.

mod blocking;
mod examples;
mod locked;
mod options;
#[cfg(feature = "macros")]
mod refusals;
mod surface;
