//! Requests that the first poll sends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::task::coop::unconstrained;

use super::nodes::Client;

/// A request that the first poll sends. From then on a background task awaits its reply even if this future is dropped: the
/// request is pending at the server until then, and the reply is a sign of life.
pub(super) struct UnderWay<T: Send + 'static> {
    client: Arc<Client>,
    /// Unconstrained, so that the first poll certainly sends the request: it must not be sent after its cancel.
    answered: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl<T: Send> UnderWay<T> {
    /// The first poll must follow at once.
    pub(super) fn new(client: &Arc<Client>, answered: impl Future<Output = T> + Send + 'static) -> Self {
        Self { client: Arc::clone(client), answered: Some(Box::pin(unconstrained(answered))) }
    }
}

impl<T: Send> Future for UnderWay<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(answered) = &mut self.answered else { return Poll::Pending };
        let answer = ready!(answered.as_mut().poll(context));
        self.answered = None;
        Poll::Ready(answer)
    }
}

impl<T: Send> Drop for UnderWay<T> {
    fn drop(&mut self) {
        if let Some(answered) = self.answered.take() {
            self.client.context.spawn(async move { drop(answered.await) });
        }
    }
}
