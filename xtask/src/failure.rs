//! The failure of a step.

use std::fmt;
use std::path::Path;

/// What went wrong and the command that failed, if one did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    problem: String,
    repeat: Option<String>,
}

impl Failure {
    pub(crate) fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), repeat: None }
    }

    /// Sets the command line that reproduces the problem without the rest of the step.
    #[must_use]
    pub(crate) fn repeated_by(mut self, command_line: impl Into<String>) -> Self {
        self.repeat = Some(command_line.into());
        self
    }

    pub(crate) fn repeat(&self) -> Option<&str> {
        self.repeat.as_deref()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem)
    }
}

/// Reads a file, and names it in the failure.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("{} cannot be read: {error}", path.display())))
}
