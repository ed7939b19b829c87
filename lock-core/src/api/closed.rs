//! The outcome of a close that a signal begins.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::task::JoinHandle;

use crate::types::error::{ErrorKind, LockError, Operation};

/// The outcome of [`close_on`](crate::LockClient::close_on), as a future. Dropping it changes nothing.
///
/// # Errors
/// Same as [`LockClient::close`](crate::LockClient::close); [`ErrorKind::Internal`] when the signal's future panicked;
/// [`ErrorKind::Closed`] when the runtime that it ran on has ended.
#[must_use = "without it the program may end before the client has closed"]
pub struct Closed(pub(crate) JoinHandle<Result<(), LockError>>);

impl Future for Closed {
    type Output = Result<(), LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|ended| {
            ended.unwrap_or_else(|error| {
                let (kind, cause) = if error.is_panic() {
                    (ErrorKind::Internal, "the future of the signal panicked")
                } else {
                    (ErrorKind::Closed, "the runtime that waited for the signal has ended")
                };
                Err(LockError::new(kind, Operation::Close).because(cause).caused_by(error))
            })
        })
    }
}

impl fmt::Debug for Closed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Closed").field("is_finished", &self.0.is_finished()).finish()
    }
}
