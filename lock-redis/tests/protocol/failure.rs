//! The error of a scenario, in words.
use std::fmt::{self, Debug};

/// The error of a scenario: the server did not do what the protocol says, or could not be asked.
pub(crate) struct Failure(String);

impl Debug for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

pub(crate) fn failure(text: impl Into<String>) -> Failure {
    Failure(text.into())
}

pub(crate) type Outcome = Result<(), Failure>;

/// Fails unless the server's `actual` is what the protocol says.
pub(crate) fn same<T: PartialEq + Debug + ?Sized>(what: &str, actual: &T, expected: &T) -> Outcome {
    if actual == expected {
        Ok(())
    } else {
        Err(failure(format!("{what}: {actual:?}, and not {expected:?}")))
    }
}

pub(crate) fn holds(what: &str, condition: bool) -> Outcome {
    if condition { Ok(()) } else { Err(failure(format!("not so: {what}"))) }
}
