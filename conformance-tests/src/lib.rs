//! The suite that every backend of distlock passes.
//!
//! A backend's author writes a [`Harness`]: how to make clients of an empty place, how to do harm, how to look for what was
//! left behind. One line makes a test program of it that runs [`all`] cases:
//!
//! ```no_run
//! use async_trait::async_trait;
//! use conformance_tests::{Ability, Harness, Outcome, Removal, conformance_suite};
//! use lock_core::memory::{MemoryOptions, MemoryServer};
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
//! The test target needs `harness = false` in `Cargo.toml`. A case that a backend cannot support shows as ignored, with the
//! reason; one that is on the list and has not run fails the program. `docs/backends/writing-one.md` goes through it all.
//!
//! A [`Contest`] is for tests that do harm to the servers while processes contend for a lock.
//!
//! [`history`] has the checkers by themselves, for tests that record what happened in some other way. With the feature
//! `servers` there is a module of that name: real servers for tests, and a proxy that does to connections what networks do; and
//! the module `faults`: what programs share that use them to see what becomes of a backend's locks.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod contest;
mod failure;
#[cfg(all(unix, feature = "servers"))]
pub mod faults;
mod harness;
pub mod history;
#[cfg_attr(
    not(all(unix, feature = "servers")),
    expect(unreachable_pub, reason = "`faults` exports what is public")
)]
mod probe;
#[cfg(all(unix, feature = "servers"))]
pub mod servers;
#[cfg(unix)]
mod signals;
mod stage;
mod stall;
mod suite;
mod worker;

pub use case::{Case, Need};
pub use cases::all;
pub use contest::{Contest, Contested, contend_if_told};
pub use failure::{During, Failure, Outcome};
pub use harness::{Ability, Harness, Removal, Routes};
pub use suite::{Verdict, main, run_case};

/// Makes the main function of a test program that runs all cases against the backend of a [`Harness`].
#[macro_export]
macro_rules! conformance_suite {
    ($harness:ty) => {
        fn main() -> ::std::process::ExitCode {
            $crate::main::<$harness>()
        }
    };
}

/// The example of a harness in the documentation, compiled.
#[cfg(doctest)]
#[doc = include_str!("../../docs/backends/writing-one.md")]
pub struct WritingOne;
