//! Futures that race each other, or the clock.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::clock::{Clock, Moment};

/// Returns the output of `future`, if it completes before `deadline`.
pub(crate) async fn within<T>(clock: &Clock, deadline: Moment, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(clock.sleep_until(deadline));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// Waits until one of them completes.
pub(crate) async fn first_of(one: impl Future, other: impl Future) {
    let mut one = pin!(one);
    let mut other = pin!(other);
    std::future::poll_fn(|context| {
        if one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
