//! The command as its users run it: the real binary, real processes, real terminals.

#![allow(clippy::unwrap_used, clippy::panic)] // a helper of tests that unwraps fails the test, as it should

mod breaking;
mod exclusion;
mod exit_codes;
mod holding;
mod killed;
mod loss;
mod queue;
#[cfg(feature = "redis")]
mod redis;
mod secrets;
mod signals;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
mod steady;
mod support;
mod terminal;
#[cfg(feature = "zookeeper")]
mod zookeeper;
