//! Shared parts of the test programs that disturb a backend's processes, connections and servers, and check what
//! happens to its locks.
//!
//! Such a program is a test target with `harness = false`. Its cases are functions that a module lists with
//! [`case::cases!`], and its main function is short:
//!
//! ```no_run
//! use conformance_tests::faults::{Program, helper, logs};
//! use lock_memory::{MemoryOptions, MemoryServer};
//! use lock_core::{ClientBuilder, LockClient, LockError};
//!
//! mod silence {
//!     use std::time::Duration;
//!
//!     use conformance_tests::Outcome;
//!     use conformance_tests::faults::case::{cases, ensure};
//!     use conformance_tests::faults::soon;
//!
//!     cases!("silence":
//!         it_ends,
//!     );
//!
//!     async fn it_ends() -> Outcome {
//!         let silence = tokio::time::sleep(Duration::from_millis(1));
//!         soon("the end of the silence", silence).await?;
//!         ensure!(1 + 1 == 2, "something is wrong with {}", "the machine");
//!         Ok(())
//!     }
//! }
//!
//! async fn connect(_: &str) -> Result<LockClient, LockError> {
//!     MemoryServer::new().client_with(MemoryOptions::new(), ClientBuilder::new())
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     if let Some(ended) = helper::run_if_asked(connect) {
//!         return ended;
//!     }
//!     logs::keep();
//!     let mut program = Program::default();
//!     program.add("memory", None, silence::cases());
//!     program.run()
//! }
//! ```
//!
//! * [`event_recorder`]: a listener that records its events and their times.
//! * [`helper`]: another process that acquires a lock, and can be killed and stopped.
//! * [`logs`]: everything that the program logs.
//! * [`Waiter`]: an acquisition in a task of its own.
//! * [`frozen`], [`outlast`] and [`as_time_passes`]: a client whose clock stands still until the case advances it.
//! * [`soon`], [`until`] and [`poll_times`]: waiting for what has to happen, and futures that are dropped on the way.

pub mod case;
pub mod event_recorder;
mod frozen;
pub mod helper;
pub mod logs;
mod program;
mod wait;
mod waiter;

pub use frozen::{INTERVALS, as_time_passes, frozen, outlast};
pub use program::Program;
pub use wait::{PATIENCE, drop_after, poll_times, soon, until};
pub use waiter::{ROOM, Waiter};

/// Returns the URL with more options, which may be empty.
#[must_use]
pub fn with_options(url: &str, options: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    if options.is_empty() { url.to_owned() } else { format!("{url}{separator}{options}") }
}

#[cfg(test)]
mod tests {
    use super::with_options;

    #[test]
    fn options_stand_behind_those_that_are_there() {
        assert_eq!(with_options("server://here", "lease=1s"), "server://here?lease=1s");
        assert_eq!(with_options("server://here?prefix=a", "lease=1s"), "server://here?prefix=a&lease=1s");
        assert_eq!(with_options("server://here", ""), "server://here");
    }
}
