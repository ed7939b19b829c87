//! The failure of a case, or of something that it uses.

use std::fmt;

use lock_core::LockError;

/// Why a case failed, in words for the developer who has to find the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// Creates a failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<tokio::task::JoinError> for Failure {
    fn from(error: tokio::task::JoinError) -> Self {
        Self(format!("a task of the case ended badly: {error}"))
    }
}

/// Adds what the case was doing when something failed.
pub trait During<T> {
    /// Puts `what` in front of the failure's text.
    ///
    /// # Errors
    /// The failure, with that text.
    fn during(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: Into<Failure>> During<T> for Result<T, E> {
    fn during(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {}", error.into())))
    }
}

/// The result of a case.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Ends the case, a function that returns an [`Outcome`], with a failure unless the condition is true.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return ::core::result::Result::Err($crate::Failure::new(::std::format!($($text)+)));
        }
    };
}
