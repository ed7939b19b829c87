//! The password of a new connection.

use std::time::Duration;

use lock_core::spi::{contained, within};
use lock_core::{BackendContext, ErrorKind, LockError, Operation, Password, Secret};

/// Returns the password for a new connection, if there is one. Each connection asks again.
///
/// # Errors
/// The errors of [`Password::read`]; [`ErrorKind::Denied`], retryable, when it takes longer than `limit`.
///
/// # Cancel safety
/// Dropping the future ends the reading.
pub async fn read_password(
    context: &BackendContext,
    source: Option<&Password>,
    limit: Duration,
) -> Result<Option<Secret>, LockError> {
    let Some(source) = source else { return Ok(None) };
    let denied = |cause: &'static str| {
        let error = LockError::new(ErrorKind::Denied, Operation::Connect).because(cause);
        error.remedy("look at the function that the program gets the password from").retryable()
    };
    let (clock, reading) = (context.clock(), contained(Operation::Connect, source.read()));
    match within(clock, clock.now().plus(limit), reading).await {
        Some(Err(error)) if error.kind() == ErrorKind::Internal => {
            Err(denied("getting the password panicked"))
        }
        Some(read) => read.map(Some).map_err(|error| error.during(Operation::Connect)),
        None => Err(denied("there was no password in time")),
    }
}
