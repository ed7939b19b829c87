//! Pending requests, a bounded number at a time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use lock_core::{LockError, Operation};
use redis::{Cmd, FromRedisValue, RedisResult, Value};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::coop::unconstrained;

use crate::failure::{explain, is_forgotten_script, is_refused};
use crate::link::Link;
use crate::scripts::Script;

/// The right to have a request pending. It ends with the reply, even if no caller still waits for that.
pub(crate) struct Turn {
    link: Arc<Link>,
    _permit: OwnedSemaphorePermit,
}

type Answered = (RedisResult<Value>, Turn);

impl Turn {
    pub(crate) fn new(link: Arc<Link>, permit: OwnedSemaphorePermit) -> Self {
        Self { link, _permit: permit }
    }

    /// Calls the script, and loads it first if the server has forgotten it.
    pub(crate) async fn call<T: FromRedisValue>(
        self,
        script: &'static Script,
        command: Cmd,
    ) -> Result<T, LockError> {
        let failed = |error| explain(script.operation(), error);
        let command = Arc::new(command);
        let first = Arc::clone(&command);
        let sent = self.under_way(|link| async move { link.send(&first).await });
        let (mut answer, turn) = sent.await;
        if answer.as_ref().is_err_and(is_forgotten_script) {
            let sent = turn.under_way(|link| async move {
                let answers = link.load_and_send(&[script], [&*command]).await?;
                answers.into_iter().next().unwrap_or(Ok(Value::Nil))
            });
            (answer, _) = sent.await;
        }
        redis::from_redis_value(answer.map_err(failed)?).map_err(|error| failed(error.into()))
    }

    /// Asks for a sign of life.
    pub(crate) async fn ping(self) -> Result<(), LockError> {
        let (answer, _) = self.under_way(|link| async move { link.send(&redis::cmd("PING")).await }).await;
        match answer {
            // A user may lack the permission for this alone, and the refusal is a sign of life as well.
            Err(error) if !is_refused(&error) => Err(explain(Operation::Ping, error)),
            _ => Ok(()),
        }
    }

    fn under_way<F>(self, send: impl FnOnce(Arc<Link>) -> F) -> UnderWay
    where
        F: Future<Output = RedisResult<Value>> + Send + 'static,
    {
        let link = Arc::clone(&self.link);
        let reply = send(Arc::clone(&link));
        let answered = async move { (reply.await, self) };
        UnderWay { link, answered: Some(Box::pin(unconstrained(answered))), is_sent: false }
    }
}

/// A request that the first poll sends. From then on a background task awaits its reply even if this future is dropped: the
/// request is pending at the server until then, and the reply is a sign of life.
struct UnderWay {
    link: Arc<Link>,
    /// Unconstrained, so that the first poll certainly sends the request: it must not be sent after its cancel.
    answered: Option<Pin<Box<dyn Future<Output = Answered> + Send>>>,
    is_sent: bool,
}

impl Future for UnderWay {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        self.is_sent = true;
        let Some(answered) = &mut self.answered else { return Poll::Pending };
        let answer = ready!(answered.as_mut().poll(context));
        self.answered = None;
        Poll::Ready(answer)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(answered) = self.answered.take().filter(|_| self.is_sent) {
            self.link.spawn(async move { drop(answered.await) });
        }
    }
}
