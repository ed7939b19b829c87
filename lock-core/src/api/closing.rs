//! The end of a client: it refuses what is new, waits for what is held, and ends what is left.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime;

use crate::api::client::{Client, LockClient, closed};
use crate::policy::client_end::Stage;
use crate::runtime::{no_answer, within};
use crate::types::{ErrorKind, LockError, LossReason, Operation};

impl LockClient {
    /// Waits until the server has confirmed every release and every cancelled wait. With
    /// [`EngineChoice::Caller`](crate::EngineChoice), requests that were dropped with their runtime are not waited for;
    /// [`close`](Self::close) reports them.
    ///
    /// ```
    /// # lock_memory::example(async |locks| {
    /// drop(locks.mutex("orders/42")?.acquire().await?); // released in the background
    /// locks.idle().await;
    /// assert!(locks.status("orders/42").await?.holders.is_empty());
    /// # Ok(()) });
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn idle(&self) {
        self.client.context.unconfirmed.none_left().await;
    }

    /// Closes the client in an orderly way: refuses new acquisitions, ends waits with [`ErrorKind::Closed`], and waits
    /// at most `timeout` until all locks have been released.
    ///
    /// Locks that are still held after that are lost. Their holders are notified ([`LossReason::ClientClosed`]), and
    /// the locks are released when these have left, or after the abort margin. That wait, and up to three seconds for the
    /// backend to answer, come on top of `timeout`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// locks.close(Duration::from_secs(5)).await?;
    /// assert!(locks.mutex("orders/42").is_err());
    /// # Ok(()) });
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Unconfirmed`] when a lock was still held, or a release not confirmed, at the end of `timeout`, or when
    /// a request ended with the runtime that the client ran on.
    /// Requests that are not answered when this returns are given up, with a line in the log.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the client refuses new acquisitions; call `close` again to
    /// finish.
    pub async fn close(&self, timeout: Duration) -> Result<(), LockError> {
        let Client { context, locks, publisher, .. } = &*self.client;
        // First, so that `closing` completes before waits end with an error.
        context.end.reach(Stage::Closing);
        locks.all().iter().for_each(|lock| lock.close(&closed()));
        let (clock, leases, unconfirmed) = (&context.clock, &context.held.leases, &context.unconfirmed);
        let all_done = async {
            // The downgrade of a writer ends with the lease of a reader.
            while leases.count() + unconfirmed.count() > 0 {
                leases.none_left().await;
                unconfirmed.none_left().await;
            }
        };
        let in_time = within(clock, clock.now().plus(timeout), all_done).await;
        let left_behind = match (in_time, unconfirmed.abandoned()) {
            (Some(()), 0) => None,
            (Some(()), count) => Some(self.abandoned(count)),
            (None, _) => Some(self.end_holds().await),
        };
        // It goes on after this if the machine is busy, so that no connection stays.
        let closed = Arc::clone(context);
        let closing = context.engine.spawn(async move {
            let at_last = closed.clock.now().plus(CLOSE_BACKEND_AT_LAST);
            let _ = within(&closed.clock, at_last, closed.backend.close()).await;
        });
        let _ = within(clock, clock.now().plus(CLOSE_BACKEND_WITHIN), closing).await;
        context.end.reach(Stage::Closed);
        // What is given up ends now, and its events come before the end.
        let _ = within(clock, clock.now().plus(CLOSE_BACKEND_WITHIN), unconfirmed.none_left()).await;
        publisher.close();
        left_behind.map_or(Ok(()), Err)
    }

    /// Waits until [`close`](Self::close) begins, here or in another clone. Then the client refuses new acquisitions, ends
    /// waits, and gives its holders time to release what they hold.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// let guard = locks.mutex("orders/42")?.acquire().await?;
    /// let worker = async {
    ///     locks.closing().await; // in a `select!` with the work
    ///     guard.release().await
    /// };
    /// let (closed, released) = tokio::join!(locks.close(Duration::from_secs(5)), worker);
    /// closed.and(released)
    /// # });
    /// ```
    ///
    /// # Cancel safety
    /// The future may be dropped at any time; it changes nothing.
    pub async fn closing(&self) {
        self.client.context.end.beginning().await;
    }

    /// [Closes](Self::close) the client when `signal` completes: the orderly end of a service, in one line.
    ///
    /// `signal` runs on the caller's tokio runtime, or on the client's engine where there is none. It does not keep the
    /// client alive. The returned future has the outcome of the close, and may be dropped: the client is closed all the same.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # lock_memory::example(async |locks| {
    /// # let sigterm = async {};
    /// let closed = locks.close_on(sigterm, Duration::from_secs(5));
    /// let guard = locks.mutex("orders/42")?.try_acquire().await;
    /// locks.closing().await; // in a `select!` with the service
    /// drop(guard);
    /// closed.await
    /// # });
    /// ```
    /// # Errors
    /// Same as [`close`](Self::close); [`ErrorKind::Internal`] when the signal's future panicked; [`ErrorKind::Closed`] when
    /// the runtime that it ran on has ended.
    #[must_use = "without it the program may end before the client has closed"]
    pub fn close_on<S>(
        &self,
        signal: S,
        timeout: Duration,
    ) -> impl Future<Output = Result<(), LockError>> + Send + use<S>
    where
        S: Future + Send + 'static,
    {
        let client = Arc::downgrade(&self.client);
        let closing = async move {
            let _ = signal.await;
            match client.upgrade() {
                Some(client) => Self { client, prefix: Arc::from("") }.close(timeout).await,
                None => Ok(()),
            }
        };
        let runtime = runtime::Handle::try_current().unwrap_or_else(|_| self.engine().handle.clone());
        let closed = runtime.spawn(closing);
        async move { closed.await.unwrap_or_else(|error| Err(no_answer(Operation::Close, error))) }
    }

    fn abandoned(&self, count: usize) -> LockError {
        LockError::new(ErrorKind::Unconfirmed, Operation::Close)
            .at(self.server())
            .because(format!(
                "the runtime that the client ran on has ended, and {count} requests were not answered"
            ))
            .remedy("close the client before its runtime ends, or use engine=own")
    }

    /// Revokes the remaining holds, notifies their holders, and releases the locks.
    async fn end_holds(&self) -> LockError {
        let context = &self.client.context;
        let holds = context.held.all();
        let releases = context.unconfirmed.count();
        for held in &holds {
            held.lock.lose(held.number, LossReason::ClientClosed);
        }
        let stopped_by = context.stopped_by().max(context.clock.now());
        let answered_by = stopped_by.plus(CLOSE_BACKEND_WITHIN);
        let _ = within(&context.clock, answered_by, context.unconfirmed.none_left()).await;
        LockError::new(ErrorKind::Unconfirmed, Operation::Close)
            .at(&context.server)
            .because(format!("{} locks were still held and {releases} releases not answered", holds.len()))
            .remedy("release every lock before close, or give close more time")
    }
}

/// How long the backend may take to close its connections, and the server to answer the releases that `close` began.
const CLOSE_BACKEND_WITHIN: Duration = Duration::from_secs(1);

/// After this time a backend that does not finish is left alone.
const CLOSE_BACKEND_AT_LAST: Duration = Duration::from_secs(10);
