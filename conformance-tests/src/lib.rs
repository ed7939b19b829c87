//! The test suite that every backend of distlock passes.
//!
//! A backend author writes a [`Harness`]: how to make clients of an empty place, how to disturb the server, how to find
//! what was left behind. One line turns it into a test program that runs [`all`] cases:
//!
//! ```no_run
//! use async_trait::async_trait;
//! use conformance_tests::{Ability, Harness, Outcome, Removal, conformance_suite};
//! use lock_memory::{MemoryOptions, MemoryServer};
//! use lock_core::{ClientBuilder, LockClient, LockError};
//!
//! struct Memory(MemoryServer);
//!
//! #[async_trait]
//! impl Harness for Memory {
//!     async fn start() -> Outcome<Self> {
//!         Ok(Self(MemoryServer::new()))
//!     }
//!
//!     fn lacks(&self, _: Ability) -> Option<&'static str> {
//!         Some("this harness is the shortest one possible")
//!     }
//!
//!     async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
//!         self.0.client_with(MemoryOptions::new(), builder)
//!     }
//!
//!     async fn leftovers(&self) -> Outcome<Vec<String>> {
//!         Ok((0..self.0.len()).map(|number| format!("lock {number}")).collect())
//!     }
//! }
//!
//! conformance_suite!(Memory);
//! ```
//!
//! The test target needs `harness = false` in `Cargo.toml`. A case that a backend cannot support shows as ignored, with
//! the reason; if a case on the list has not run, the program fails. `docs/backends/writing-one.md` explains all of it, and
//! `docs/backends/conformance.md` says which ability runs which cases.
//!
//! A [`Contest`] is for tests that disturb the servers while processes contend for a lock.
//!
//! [`history`] contains the checkers alone, for tests that record events in another way. The module `faults` (on Unix
//! systems) has what test programs share that disturb a backend's servers, connections and processes. The repository's crate
//! `test-servers`, which is not published, has such servers, and a proxy that disturbs connections as networks do.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod contest;
mod failure;
#[cfg(unix)]
pub mod faults;
mod harness;
pub mod history;
#[cfg_attr(not(unix), expect(unreachable_pub, reason = "`faults` exports what is public"))]
mod probe;
#[cfg(unix)]
pub mod signals;
mod stage;
mod stall;
mod suite;
mod tier;
mod worker;

pub use case::{Case, Need};
pub use cases::all;
pub use contest::{Contest, Contested, contend_if_told};
pub use failure::{During, Failure, Outcome};
pub use harness::{Ability, AfterRestart, Harness, Losing, Removal, Routes, ServerChange, Silence};
pub use suite::{Verdict, main, main_with, run_case};
pub use tier::Tier;

/// Generates the main function of a test program that runs all cases against the backend of a [`Harness`].
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        fn main() -> ::std::process::ExitCode {
            $crate::main::<$harness>()
        }
    };
}
