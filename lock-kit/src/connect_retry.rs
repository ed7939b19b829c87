//! Connects again for a while: a server that starts, elects a leader or cannot be reached gets another try.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Backoff, Clock, ErrorKind, LockError, Operation};
use tracing::field::display;

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long a client tries to connect.
#[derive(Debug, Clone)]
pub(crate) struct ConnectRetry {
    pub(crate) clock: Clock,
    /// No attempt goes on for longer; zero for a single attempt, which the backend limits.
    pub(crate) limit: Duration,
    /// For the log.
    pub(crate) server: Option<Arc<str>>,
}

impl ConnectRetry {
    /// Repeats `connect` while its errors are [retryable](LockError::is_retryable). After the limit the error says how
    /// long that was, and what the last attempt has met with.
    pub(crate) async fn connect<T, F: Future<Output = Result<T, LockError>>>(
        &self,
        mut connect: impl FnMut() -> F,
    ) -> Result<T, LockError> {
        if self.limit.is_zero() {
            return connect().await;
        }
        let Self { clock, limit, server } = self;
        let mut last: Option<LockError> = None;
        let trying = async {
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            loop {
                let error = match connect().await {
                    Err(error) if error.is_retryable() => error,
                    connected => return connected,
                };
                let is_news = last.as_ref().is_none_or(|last| last.to_string() != error.to_string());
                if is_news {
                    let server = server.as_deref().map(display);
                    tracing::warn!(target: "distlock", %error, server, "not connected yet");
                }
                last = Some(error);
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
        };
        let connected = within(clock, clock.now().plus(*limit), trying).await;
        connected.unwrap_or_else(|| Err(last.unwrap_or_else(no_answer).after_trying_for(*limit)))
    }
}

fn no_answer() -> LockError {
    LockError::new(ErrorKind::Unreachable, Operation::Connect)
        .because("the server did not answer")
        .remedy("check that the server runs and can be reached, or raise connect_timeout")
        .retryable()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(seconds: u64) -> (ConnectRetry, lock_core::ManualClock) {
        let (clock, time) = Clock::manual();
        (ConnectRetry { clock, limit: Duration::from_secs(seconds), server: None }, time)
    }

    fn refused() -> LockError {
        LockError::new(ErrorKind::Unreachable, Operation::Connect).because("refused").remedy("start it")
    }

    #[tokio::test]
    async fn what_passes_by_itself_is_tried_again_and_the_rest_is_not() {
        let (retry, time) = retry(10);
        let mut answers = vec![Err(refused()), Ok(7), Err(refused().retryable()), Err(refused().retryable())];
        let connecting = tokio::spawn(async move {
            let first = retry.connect(|| std::future::ready(answers.pop().unwrap())).await;
            (first, retry.connect(|| std::future::ready(answers.pop().unwrap())).await)
        });
        while !connecting.is_finished() {
            time.advance(Duration::from_millis(10));
            tokio::task::yield_now().await;
        }
        let (first, second) = connecting.await.unwrap();
        assert_eq!(first.unwrap(), 7);
        assert_eq!(second.unwrap_err().to_string(), refused().to_string());
    }

    #[tokio::test]
    async fn the_error_after_the_limit_says_how_long_and_why() {
        for (is_silent, cause) in [(false, "tried for 10s: refused"), (true, "tried for 10s: the server did")]
        {
            let (retry, time) = retry(10);
            let connecting = tokio::spawn(async move {
                let attempt = || async move {
                    if is_silent {
                        std::future::pending::<()>().await;
                    }
                    Err::<(), _>(refused().retryable())
                };
                retry.connect(attempt).await
            });
            while !connecting.is_finished() {
                time.advance(Duration::from_millis(100));
                tokio::task::yield_now().await;
            }
            let error = connecting.await.unwrap().unwrap_err();
            assert!(error.to_string().contains(cause), "{error}");
            assert!(error.kind() == ErrorKind::Unreachable && error.is_retryable(), "{error:?}");
        }
    }

    #[tokio::test]
    async fn without_a_limit_there_is_one_attempt() {
        let (retry, _) = retry(0);
        let mut attempts = 0;
        let attempt = || {
            attempts += 1;
            std::future::ready(Err::<(), _>(refused().retryable()))
        };
        let error = retry.connect(attempt).await.unwrap_err();
        assert_eq!((attempts, error.to_string()), (1, refused().to_string()));
    }
}
