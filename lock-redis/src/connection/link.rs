//! One connection to the server, from start to end.

use std::io;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{ErrorKind, LockError, Moment, Operation};
use lock_kit::{Endpoint, gone};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult, Value};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::contact::Connection;
use super::earlier::Identity;
use super::nodes::Client;
use super::reign::Reign;
use super::replicas::Replication;
use super::server::Facts;
use super::under_way::UnderWay;
use super::witnesses::{Slots, those};
use crate::failure::{breaks_connection, elsewhere, explain, is_forgotten_script, is_no_primary};
use crate::groups::Groups;
use crate::options::Durability;
use crate::scripts::Script;

/// How many requests that begin something may be pending: any other waits for at most that many replies.
const UNDER_WAY: usize = 256;

/// A connection, usable until it is [broken](Link::broken). It is never repaired: its replacement is another link.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    /// Where the server listens.
    pub(crate) address: Endpoint,
    /// Its time as the primary, if another server may become that.
    pub(crate) reign: Option<Arc<Reign>>,
    /// Until when it is certain that no later primary grants what this one has granted, in nanoseconds of the clock: what the client
    /// sends from then on counts for nothing.
    trusted_until: AtomicU64,
    /// The channel for messages to this connection; `None` if the server sends no messages and waiters poll.
    pub(crate) channel: Option<String>,
    /// The hash slots that the server has, and from when the client acquires locks there.
    slots: Mutex<Vec<(RangeInclusive<u16>, Moment)>>,
    /// The client acquires nothing on this connection before this moment.
    pub(super) usable_from: Moment,
    /// `None` if the server does not report it.
    pub(crate) identity: Option<Identity>,
    /// The groups in which the holds of this connection are renewed.
    pub(crate) groups: Arc<Groups>,
    breakage: Arc<Breakage>,
    pub(super) client: Arc<Client>,
    pub(super) replication: Replication,
    /// When the server last answered, in nanoseconds of the clock.
    heard: AtomicU64,
}

/// Whether a connection has broken, which those learn who wait for it, or for a turn.
pub(crate) struct Breakage {
    turns: Arc<Semaphore>,
    /// Has no permits: who waits for one waits until it is closed.
    end: Semaphore,
}

impl Breakage {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { turns: Arc::new(Semaphore::new(UNDER_WAY)), end: Semaphore::new(0) })
    }

    pub(crate) fn notice(&self) {
        self.turns.close();
        self.end.close();
    }
}

/// The right to have a request pending. It ends with the reply, even if no caller still waits for that.
///
/// Only requests that begin something wait for one. Renewals, heartbeats, and requests that end a hold or a wait go past them: other
/// clients may be waiting for the lock, and there are never more of them than the client has holds and waits.
pub(crate) type Turn = Option<OwnedSemaphorePermit>;

impl Link {
    pub(crate) fn new(
        of: &Connection,
        connection: MultiplexedConnection,
        address: Endpoint,
        breakage: Arc<Breakage>,
    ) -> Self {
        Self {
            connection,
            address,
            reign: None,
            trusted_until: AtomicU64::new(Moment::FOREVER.as_nanoseconds()),
            channel: None,
            slots: Mutex::default(),
            usable_from: Moment::from_nanoseconds(0),
            identity: None,
            groups: Arc::clone(&of.groups),
            breakage,
            heard: AtomicU64::new(of.client.now().as_nanoseconds()),
            client: Arc::clone(&of.client),
            replication: Replication { most: Arc::clone(&of.replicas), ..Replication::default() },
        }
    }

    /// Whether what the client sends at this moment counts.
    pub(crate) fn is_trusted_at(&self, moment: Moment) -> bool {
        moment < Moment::from_nanoseconds(self.trusted_until.load(Ordering::Relaxed))
    }

    /// Whether the witnesses have named the server since this moment: the client relies on that for so long.
    pub(super) fn is_confirmed_after(&self, since: Moment, reliance: Duration) -> bool {
        let until = Moment::from_nanoseconds(self.trusted_until.load(Ordering::Relaxed));
        until != Moment::FOREVER && until >= since.plus(reliance)
    }

    /// Refuses an acquisition that is sent at this moment, if it does not count, or the server may lack locks.
    pub(crate) fn grants_at(&self, slot: u16, sent: Moment) -> Result<(), LockError> {
        if !self.is_trusted_at(sent) {
            return Err(gone(Operation::Acquire));
        }
        let from = self.from(slot).ok_or_else(|| elsewhere(Operation::Acquire))?;
        if sent >= from {
            return Ok(());
        }
        Err(LockError::new(ErrorKind::Unreachable, Operation::Acquire)
            .because("the server was started or promoted recently, and may lack locks that are still held")
            .remedy("wait for the restart_delay, or with Sentinel or Cluster for the longest lease, to pass")
            .retryable())
    }

    /// From when the client acquires what has this hash slot, if the server has the slot.
    pub(crate) fn from(&self, slot: u16) -> Option<Moment> {
        let slots = self.slots.lock();
        slots.iter().find(|(range, _)| range.contains(&slot)).map(|(_, from)| *from)
    }

    /// The hash slots that the server has.
    pub(super) fn slots(&self) -> Slots {
        let slots = self.slots.lock();
        those(slots.iter().map(|(range, _)| range), |slot| {
            slots.iter().any(|(range, _)| range.contains(&slot))
        })
    }

    /// Whether a grant that comes by a message counts without a request: not if another server may have become the primary, or
    /// replicas must have the grant.
    pub(crate) fn believes_messages(&self) -> bool {
        self.reign.is_none() && self.client.options.durable.is_none()
    }

    pub(super) fn settle_in(&self, slots: Vec<(RangeInclusive<u16>, Moment)>) {
        *self.slots.lock() = slots;
    }

    /// Makes it count as broken, because the server is no longer the primary that it was.
    pub(super) fn leave(&self) {
        self.trusted_until.store(0, Ordering::Relaxed);
        self.breakage.notice();
    }

    /// Whether another connection, to the server that is the primary now, takes its place.
    pub(super) fn is_left(&self) -> bool {
        !self.is_trusted_at(Moment::from_nanoseconds(0))
    }

    pub(super) fn trust_until(&self, moment: Moment) {
        let unless_left = |until| (until != 0).then_some(moment.as_nanoseconds());
        let _ = self.trusted_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, unless_left);
    }

    /// Waits until the connection is no longer usable.
    pub(crate) async fn broken(&self) {
        let _ = self.breakage.end.acquire().await;
    }

    /// Waits until a request may be sent.
    pub(crate) async fn turn(&self, operation: Operation) -> Result<Turn, LockError> {
        if matches!(operation, Operation::Release | Operation::Cancel | Operation::Break) {
            return Ok(None);
        }
        let turns = Arc::clone(&self.breakage.turns);
        turns.acquire_owned().await.map(Some).map_err(|_| gone(operation))
    }

    /// Calls the script, and loads it first if the server has forgotten it.
    pub(crate) async fn call<T: FromRedisValue>(
        self: &Arc<Self>,
        turn: Turn,
        script: &'static Script,
        command: &Arc<Cmd>,
    ) -> Result<T, LockError> {
        let operation = script.operation();
        let (link, first) = (Arc::clone(self), Arc::clone(command));
        let counts = matches!(operation, Operation::Acquire | Operation::Downgrade);
        // A heartbeat, which has no turn, seldom grants anything.
        let changes_hands = counts && turn.is_some() || operation == Operation::Release;
        let is_durable = changes_hands && self.client.options.durable.is_some();
        let sent = UnderWay::new(&self.client, async move {
            // The only question to the replicas, which stops the connection.
            let alone = if is_durable { link.replication.answered.try_lock().ok() } else { None };
            if alone.is_none() && !(counts && link.reign.is_some()) {
                return (link.send(&first).await, None, turn);
            }
            let mut requests = redis::pipe();
            requests.add_command((*first).clone());
            if alone.is_some() {
                requests.add_command(link.wait());
            }
            let mut answers = link.send_in_reign(requests).await;
            let replicas = alone.and_then(|_alone| answers.as_mut().ok()?.pop());
            (answers.and_then(last), replicas, turn)
        });
        let (mut answer, mut replicas, turn) = sent.await;
        if answer.as_ref().is_err_and(is_forgotten_script) {
            let (link, again) = (Arc::clone(self), Arc::clone(command));
            let sent = UnderWay::new(&self.client, async move {
                let _turn = turn;
                link.load_and_send(script, [&*again]).await.and_then(last)
            });
            (answer, replicas) = (sent.await, None);
        }
        let answer = answer.map_err(|error| explain(operation, error))?;
        self.make_durable(operation, &answer, replicas).await?;
        redis::from_redis_value(answer).map_err(|error| explain(operation, error.into()))
    }

    /// Sends requests again whose script the server has forgotten. The same write sends the script before them, so that the
    /// server does not forget it again in between.
    pub(crate) async fn load_and_send<'a>(
        &self,
        script: &Script,
        requests: impl IntoIterator<Item = &'a Cmd>,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut all = redis::pipe();
        all.cmd("SCRIPT").arg("LOAD").arg(script.text());
        for request in requests {
            all.add_command(request.clone());
        }
        let mut answers = self.send_in_reign(all).await?.into_iter();
        answers.next().transpose()?;
        Ok(answers.collect())
    }

    pub(crate) async fn send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let answer = self.in_time(command.query_async(&mut self.connection.clone())).await;
        self.judge(&answer);
        answer
    }

    /// Waits for the reply to the request that is sent now. The server replies in the order of the requests: while other replies
    /// arrive, this one is on its way. Only a silent server is too late.
    async fn in_time<T>(&self, answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
        // How long the server may stay silent while it owes a reply.
        let patience = self.client.request_timeout;
        let clock = self.client.context.clock();
        let mut answer = pin!(answer);
        let mut since = clock.now();
        loop {
            if let Some(answer) = within(clock, since.plus(patience), answer.as_mut()).await {
                return answer;
            }
            // A reply that arrived while this process was suspended can be read only now.
            let read_by = clock.now().plus(patience / 8);
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

    /// Sends all requests before the first reply arrives; each has a reply of its own.
    pub(crate) async fn send_all(&self, pipeline: &mut Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        let answers: RedisResult<Vec<RedisResult<Value>>> =
            self.in_time(pipeline.ignore_errors().query_async(&mut self.connection.clone())).await;
        self.judge(&answers);
        answers.iter().flatten().filter(|answer| answer.is_err()).for_each(|answer| self.judge(answer));
        answers
    }

    /// Sends requests whose answers count only if the server has been the primary since the connection was opened, and while the client
    /// relies on it. The answer to one more request says so, because a node of a cluster keeps its connections when another one takes
    /// its place, and may get it back before the client asks the next time.
    pub(crate) async fn send_in_reign(&self, mut requests: Pipeline) -> RedisResult<Vec<RedisResult<Value>>> {
        if self.reign.is_none() && self.client.options.durable != Some(Durability::All) {
            return self.send_all(&mut requests).await;
        }
        requests.cmd("INFO").arg("replication");
        let mut answers = self.send_all(&mut requests).await?;
        let (info, none) = (answers.pop().unwrap_or(Ok(Value::Nil)), Value::BulkString(Vec::new()));
        // Where it is refused by now and only counts the replicas, holds go on.
        let info = info.or_else(|error| if self.reign.is_none() { Ok(none) } else { Err(error) })?;
        let facts = Facts(redis::from_redis_value(info)?);
        self.note_replicas(&facts);
        if self.reign.as_ref().is_some_and(|reign| facts.replication() != Some(&reign.replication)) {
            self.leave();
        } else if self.is_trusted_at(self.client.now()) {
            return Ok(answers);
        }
        Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
    }

    /// Whether the server replies at all, even with an error.
    pub(crate) async fn is_alive(&self) -> bool {
        let answer: RedisResult<Value> = self.send(&redis::cmd("PING")).await;
        !answer.is_err_and(|error| breaks_connection(&error))
    }

    pub(crate) async fn subscribe(&self, channel: &str) -> RedisResult<()> {
        self.in_time(self.connection.clone().subscribe(channel)).await
    }

    /// Takes any answer as a sign of life, unless it says that the connection is of no more use.
    fn judge<T>(&self, answer: &RedisResult<T>) {
        if answer.as_ref().is_err_and(|error| breaks_connection(error) || is_no_primary(error)) {
            self.breakage.notice();
        } else {
            self.heard.store(self.client.now().as_nanoseconds(), Ordering::Relaxed);
        }
    }
}

/// The answer to the last one of some requests.
pub(super) fn last(mut answers: Vec<RedisResult<Value>>) -> RedisResult<Value> {
    answers.pop().unwrap_or(Ok(Value::Nil))
}
