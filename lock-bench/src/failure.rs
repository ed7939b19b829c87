//! What goes wrong in a measurement: a text for a person, with its cause inside.

use std::fmt;

/// Why something could not be measured.
#[derive(Debug, Clone)]
pub(crate) struct Failure(String);

pub(crate) type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Says what was being done when an error came.
pub(crate) trait Context<T> {
    fn context(self, doing: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, doing: impl fmt::Display) -> Outcome<T> {
        self.map_err(|error| Failure(format!("{doing}: {error}")))
    }
}

impl<T> Context<T> for Option<T> {
    fn context(self, doing: impl fmt::Display) -> Outcome<T> {
        self.ok_or_else(|| Failure(doing.to_string()))
    }
}
