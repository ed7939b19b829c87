//! One connection to the server, from start to end.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, LockError, Moment, Operation};
use lock_kit::gone;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisError, RedisResult};
use tokio::sync::Notify;

use crate::earlier::Identity;
use crate::failure::{breaks_connection, is_no_primary};
use crate::line::{Line, Lines};
use crate::scripts::Script;
use crate::turn::Turn;

/// A connection, usable until it is [broken](Link::broken). It is never repaired: its replacement is another link.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// The channel for messages to this connection; `None` if the server sends no messages and waiters poll.
    pub(crate) channel: Option<String>,
    /// The client acquires nothing on this connection before this moment.
    pub(crate) usable_from: Moment,
    pub(crate) identity: Identity,
    breakage: Arc<Breakage>,
    /// How long the server may stay silent while it owes a reply.
    patience: Duration,
    context: BackendContext,
    /// When the server last answered, in nanoseconds of the clock.
    heard: AtomicU64,
}

/// Whether a connection has broken, and the tasks that need to know.
#[derive(Default)]
pub(crate) struct Breakage {
    is_broken: AtomicBool,
    noticed: Notify,
    lines: Lines,
}

impl Breakage {
    pub(crate) fn notice(&self) {
        self.is_broken.store(true, Ordering::Release);
        self.noticed.notify_one();
        self.lines.close();
    }

    async fn happens(&self) {
        while !self.is_broken.load(Ordering::Acquire) {
            self.noticed.notified().await;
        }
    }
}

impl Link {
    pub(crate) fn new(
        connection: MultiplexedConnection,
        breakage: Arc<Breakage>,
        patience: Duration,
        context: BackendContext,
    ) -> Self {
        let heard = AtomicU64::new(context.clock().now().as_nanoseconds());
        Self {
            connection,
            patience,
            context,
            heard,
            channel: None,
            usable_from: Moment::from_nanoseconds(0),
            identity: Identity::default(),
            breakage,
        }
    }

    /// Waits until the connection is no longer usable. For the one task that replaces it.
    pub(crate) async fn broken(&self) {
        self.breakage.happens().await;
    }

    /// Waits until a request may be sent.
    pub(crate) async fn turn(self: &Arc<Self>, line: Line, operation: Operation) -> Result<Turn, LockError> {
        match Arc::clone(self.breakage.lines.get(line)).acquire_owned().await {
            Ok(permit) => Ok(Turn::new(Arc::clone(self), permit)),
            Err(_) => Err(gone(operation)),
        }
    }

    /// Calls the script in its turn, and loads it first if the server has forgotten it.
    pub(crate) async fn call<T: FromRedisValue>(
        self: &Arc<Self>,
        script: &'static Script,
        command: Cmd,
    ) -> Result<T, LockError> {
        let operation = script.operation();
        self.turn(Line::of(operation), operation).await?.call(script, command).await
    }

    /// Runs the rest of a request in the background if its callers are gone.
    pub(crate) fn spawn(&self, rest: impl Future<Output = ()> + Send + 'static) {
        self.context.spawn(rest);
    }

    /// Sends requests again whose scripts the server has forgotten. The same write sends the scripts before them, so that the
    /// server does not forget them again in between.
    pub(crate) async fn load_and_send<'a>(
        &self,
        scripts: &[&Script],
        requests: impl IntoIterator<Item = &'a Cmd>,
    ) -> RedisResult<Vec<RedisResult<redis::Value>>> {
        let mut all = redis::pipe();
        for script in scripts {
            all.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        for request in requests {
            all.add_command(request.clone());
        }
        let mut answers = self.send_all(&mut all).await?;
        let loaded: RedisResult<Vec<_>> = answers.drain(..scripts.len().min(answers.len())).collect();
        loaded?;
        Ok(answers)
    }

    pub(crate) async fn send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let answer = self.in_time(command.query_async(&mut self.connection.clone())).await;
        match &answer {
            Ok(_) => self.hear(),
            Err(error) => self.judge(error),
        }
        answer
    }

    /// Waits for the reply to the request that is sent now. The server replies in the order of the requests: while other replies
    /// arrive, this one is on its way. Only a silent server is too late.
    async fn in_time<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        let clock = self.context.clock();
        let mut answer = pin!(answer);
        let mut since = clock.now();
        loop {
            if let Some(answer) = within(clock, since.plus(self.patience), answer.as_mut()).await {
                return answer;
            }
            // A reply that arrived while this process was suspended can be read only now.
            let read_by = clock.now().plus(self.patience / 8);
            if let Some(answer) = within(clock, read_by, answer.as_mut()).await {
                return answer;
            }
            if self.last_heard() <= since {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            since = self.last_heard();
        }
    }

    /// When the server last answered.
    pub(crate) fn last_heard(&self) -> Moment {
        Moment::from_nanoseconds(self.heard.load(Ordering::Relaxed))
    }

    fn hear(&self) {
        self.heard.store(self.context.clock().now().as_nanoseconds(), Ordering::Relaxed);
    }

    /// Sends all requests before the first reply arrives; each has a reply of its own.
    pub(crate) async fn send_all(
        &self,
        pipeline: &mut Pipeline,
    ) -> RedisResult<Vec<RedisResult<redis::Value>>> {
        let answers: RedisResult<Vec<RedisResult<redis::Value>>> =
            self.in_time(pipeline.ignore_errors().query_async(&mut self.connection.clone())).await;
        match &answers {
            Ok(answers) => {
                self.hear();
                answers.iter().filter_map(|answer| answer.as_ref().err()).for_each(|error| self.judge(error));
            }
            Err(error) => self.judge(error),
        }
        answers
    }

    /// Whether the server replies at all, even with an error.
    pub(crate) async fn is_alive(&self) -> bool {
        let answer: RedisResult<redis::Value> = self.send(&redis::cmd("PING")).await;
        !answer.is_err_and(|error| breaks_connection(&error))
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.in_time(self.connection.clone().subscribe(channel)).await
    }

    fn judge(&self, error: &RedisError) {
        if breaks_connection(error) || is_no_primary(error) {
            self.breakage.notice();
        } else {
            self.hear();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("channel", &self.channel)
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}
