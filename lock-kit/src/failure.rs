//! Errors that several backends have, in the same words.

use std::borrow::Cow;

use lock_core::{ErrorKind, LockError, Operation};

/// The error for options that no connection can be made with. Say in its remedy what to write instead.
pub fn invalid(cause: impl Into<Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure).because(cause)
}

/// The error if there is no contact with the server, which may come back.
pub fn unreachable(operation: Operation, cause: impl Into<Cow<'static, str>>) -> LockError {
    LockError::new(ErrorKind::Unreachable, operation)
        .because(cause)
        .remedy("check that the server runs and can be reached")
        .retryable()
}

/// The error if a connection has ended, with everything that was held on it.
pub fn gone(operation: Operation) -> LockError {
    unreachable(operation, "the connection has ended")
}

/// The error if the server did not answer within the time that a request may take.
pub fn no_answer(operation: Operation) -> LockError {
    unreachable(operation, "the server did not answer in time")
}

/// Whether so few of a server's connections or entries are left that clients warn.
pub const fn is_nearly_full(used: u64, most: u64) -> bool {
    used.saturating_mul(5) > most.saturating_mul(4)
}
