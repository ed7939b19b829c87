//! Futures that race each other, or the clock.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use super::clock::{Clock, Moment};

/// Returns the output of `future`, if it completes before `deadline` on this clock.
///
/// # Cancel safety
/// When the deadline passes, or when the returned future is dropped, `future` is dropped. To keep it, pass a `&mut` or a
/// `Pin<&mut _>` to it.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::Clock;
/// use lock_core::spi::within;
///
/// # async fn run() {
/// let clock = Clock::system();
/// let deadline = clock.now().plus(Duration::from_millis(5));
/// assert_eq!(within(&clock, deadline, async { 7 }).await, Some(7));
/// assert_eq!(within(&clock, deadline, std::future::pending::<u32>()).await, None);
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(run());
/// ```
pub async fn within<T>(clock: &Clock, deadline: Moment, future: impl Future<Output = T>) -> Option<T> {
    unless(clock.sleep_until(deadline), future).await
}

/// Returns the output of `future`, unless `end` completes before.
pub(crate) async fn unless<T>(end: impl Future, future: impl Future<Output = T>) -> Option<T> {
    let (mut end, mut future) = (pin!(end), pin!(future));
    std::future::poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => end.as_mut().poll(context).map(|_| None),
    })
    .await
}

/// Waits until one of them completes.
pub(crate) async fn first_of(one: impl Future, other: impl Future) {
    unless(other, one).await;
}
