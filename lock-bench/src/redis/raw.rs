//! The common commands for a lock on Redis: SET NX PX, and a script that compares and deletes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use redis::Script;
use redis::aio::MultiplexedConnection;

use super::connection::{self, Connection};
use crate::contender::{Client, Driving, Echo, Held, Lock, Ping, Target};
use crate::failure::{Context, Failure, Outcome};
use crate::pause;

const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";

/// The longest of the random pauses between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

pub(super) async fn ping(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    Ok(Echo::of(connection::open(&target.url, driving).await?))
}

#[async_trait]
impl Ping for Connection {
    async fn ping(&self) -> Outcome<()> {
        let mut connection = self.connection.clone();
        redis::cmd("PING").query_async::<()>(&mut connection).await.context("PING")
    }
}

static CLIENTS: AtomicU64 = AtomicU64::new(0);

pub(super) async fn connect(target: Target, driving: Driving) -> Outcome<Box<dyn Client>> {
    let mut connection = connection::open(&target.url, driving).await?;
    let script = Script::new(COMPARE_AND_DELETE);
    script.load_async(&mut connection.connection).await.context("loading the script")?;
    let number = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let parts = Parts {
        script,
        milliseconds: u64::try_from(target.lease.as_millis()).unwrap_or(u64::MAX),
        owner: format!("{}-{number}", std::process::id()),
        attempts: AtomicU64::new(0),
    };
    Ok(Box::new(Raw { connection, parts: Arc::new(parts) }))
}

struct Raw {
    connection: Connection,
    parts: Arc<Parts>,
}

struct Parts {
    script: Script,
    milliseconds: u64,
    owner: String,
    attempts: AtomicU64,
}

#[async_trait]
impl Client for Raw {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Key {
            name: Arc::from(name),
            commands: self.connection.connection.clone(),
            parts: Arc::clone(&self.parts),
        }))
    }
}

struct Key {
    name: Arc<str>,
    commands: MultiplexedConnection,
    parts: Arc<Parts>,
}

#[async_trait]
impl Lock for Key {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let attempt = self.parts.attempts.fetch_add(1, Ordering::Relaxed);
        let value = format!("{}-{attempt}", self.parts.owner);
        let mut commands = self.commands.clone();
        loop {
            let mut set = redis::cmd("SET");
            set.arg(&*self.name).arg(&value).arg("NX").arg("PX").arg(self.parts.milliseconds);
            if set.query_async::<Option<String>>(&mut commands).await.context("SET")?.is_some() {
                return Ok(Box::new(Value {
                    name: Arc::clone(&self.name),
                    text: value,
                    commands,
                    parts: Arc::clone(&self.parts),
                }));
            }
            tokio::time::sleep(pause::random(LONGEST_PAUSE)).await;
        }
    }
}

struct Value {
    name: Arc<str>,
    text: String,
    commands: MultiplexedConnection,
    parts: Arc<Parts>,
}

#[async_trait]
impl Held for Value {
    async fn release(mut self: Box<Self>) -> Outcome<()> {
        let mut call = self.parts.script.key(&*self.name);
        let deleted: i64 =
            call.arg(&self.text).invoke_async(&mut self.commands).await.context("the script")?;
        if deleted == 1 { Ok(()) } else { Err(Failure::new("the lock had been lost")) }
    }
}
