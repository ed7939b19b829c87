//! A test program made of cases.

use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

use super::case::Case;

/// Most cases mostly wait, usually for leases to end, and hardly any of them needs a processor.
const AT_ONCE: usize = 12;

/// No case takes this long unless something hangs.
const LONGEST: Duration = Duration::from_secs(150);

/// A program of cases. It understands the arguments of an ordinary test program.
#[derive(Debug)]
pub struct Program {
    at_once: usize,
    longest: Duration,
    trials: Vec<Trial>,
}

impl Default for Program {
    /// Creates a program without cases. It runs 12 at once, and gives each of them 150 seconds.
    fn default() -> Self {
        Self { at_once: AT_ONCE, longest: LONGEST, trials: Vec::new() }
    }
}

impl Program {
    /// Sets how many cases run at once, unless the user specifies another number.
    #[must_use]
    pub fn at_once(self, at_once: usize) -> Self {
        Self { at_once, ..self }
    }

    /// Sets how long cases that are added from now on may take before they are considered to hang.
    #[must_use]
    pub fn longest(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Adds cases that need `server`. They are left out if `left_out` has a reason, which the user sees.
    pub fn add(&mut self, server: &str, left_out: Option<&str>, cases: impl IntoIterator<Item = Case>) {
        if let Some(reason) = left_out {
            eprintln!("{server}: {reason}");
        }
        let trials = cases.into_iter().map(|case| case.into_trial(self.longest));
        self.trials.extend(trials.map(|trial| trial.with_ignored_flag(left_out.is_some())));
    }

    /// Runs the cases, in the order in which they were added.
    #[must_use]
    pub fn run(self) -> ExitCode {
        let mut arguments = Arguments::from_args();
        arguments.test_threads.get_or_insert(self.at_once);
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}
