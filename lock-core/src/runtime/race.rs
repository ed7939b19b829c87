//! Futures that race each other, or the clock.

use std::future::{Future, poll_fn};
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
    race(future, clock.sleep_until(deadline)).await.ok()
}

/// Returns the output of the future that completes first, of both at once that of `first`. The other one is dropped.
pub(crate) async fn race<A, B>(
    first: impl Future<Output = A>,
    second: impl Future<Output = B>,
) -> Result<A, B> {
    let (mut first, mut second) = (pin!(first), pin!(second));
    poll_fn(|context| match first.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Ok(output)),
        Poll::Pending => second.as_mut().poll(context).map(Err),
    })
    .await
}
