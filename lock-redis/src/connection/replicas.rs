//! Grants and releases that count when enough replicas have them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lock_core::{LockError, Operation};
use redis::{Cmd, RedisResult, Value};
use tokio::sync::Mutex;

use super::link::{Link, last};
use super::server::Facts;
use super::under_way::UnderWay;
use crate::backend::milliseconds;
use crate::failure::{explain, too_few};
use crate::options::Durability;

/// What a connection knows of the server's replicas.
#[derive(Default)]
pub(super) struct Replication {
    /// The most that were in sync, also on earlier connections: one that vanishes is missed.
    pub(super) most: Arc<AtomicU64>,
    /// How many `WAIT` were sent that several may share.
    pub(super) begun: AtomicU64,
    /// The number of the last of these that was answered, and its answer. Locked while any `WAIT` is pending: it stops the connection,
    /// renewals included, so a second one would stop it for longer.
    pub(super) answered: Mutex<(u64, u64)>,
}

impl Link {
    pub(super) fn note_replicas(&self, facts: &Facts) {
        self.replication.most.fetch_max(facts.replicas(), Ordering::Relaxed);
    }

    /// How many replicas must have what is written.
    fn needed(&self) -> u64 {
        match self.client.options.durable {
            None => 0,
            Some(Durability::Replicas(number)) => u64::from(number.get()),
            Some(Durability::All) => self.replication.most.load(Ordering::Relaxed).max(1),
        }
    }

    /// Asks how many replicas have what was written on this connection. It is answered when enough have it, or after half of the time
    /// after which a silent server ends the connection.
    pub(super) fn wait(&self) -> Cmd {
        let limit = milliseconds(self.client.request_timeout / 2).max(1);
        redis::cmd("WAIT").arg(self.needed()).arg(limit).take()
    }

    /// Waits until enough replicas have a grant or a release, which this answer confirms. `replicas`: the answer to a `WAIT` in the
    /// same write.
    pub(super) async fn make_durable(
        self: &Arc<Self>,
        operation: Operation,
        answer: &Value,
        replicas: Option<RedisResult<Value>>,
    ) -> Result<(), LockError> {
        let counts = match (operation, answer) {
            (Operation::Acquire, Value::BulkString(_)) | (Operation::Release, Value::Int(1)) => true,
            (Operation::Release, Value::Array(parts)) => parts.first() == Some(&Value::Int(1)),
            _ => false,
        };
        if !counts || self.needed() == 0 {
            return Ok(());
        }
        let count = match replicas {
            Some(count) => count.and_then(|count| Ok(redis::from_redis_value(count)?)),
            None => self.replicate().await,
        };
        let (count, needed) = (count.map_err(|error| explain(operation, error))?, self.needed());
        if count < needed { Err(too_few(operation, count, needed)) } else { Ok(()) }
    }

    /// How many replicas have what was answered before this call. Calls share a `WAIT`, and a shortage too.
    async fn replicate(self: &Arc<Self>) -> RedisResult<u64> {
        let (link, before) = (Arc::clone(self), self.replication.begun.load(Ordering::Relaxed));
        UnderWay::new(&self.client, async move {
            let mut answered = link.replication.answered.lock().await;
            // One that began before that answer may know nothing of the write.
            if answered.0 <= before {
                let number = link.replication.begun.fetch_add(1, Ordering::Relaxed) + 1;
                let request = redis::pipe().add_command(link.wait()).clone();
                let count = link.send_in_reign(request).await.and_then(last)?;
                *answered = (number, redis::from_redis_value(count)?);
            }
            Ok(answered.1)
        })
        .await
    }
}
