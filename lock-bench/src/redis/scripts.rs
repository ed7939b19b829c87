//! The scripts of distlock for a free lock, through the bare client: what of a cycle is the server's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{Script, Value};

use super::connection::{self, Connection};
use crate::contender::{Client, Connecting, Driving, Held, Lock, Target};
use crate::failure::{Context, Failure, Outcome};

/// As long as what a client says of itself.
const WHO: &str = r#"distlock:c:00000000000000000000000000000000:1 {"host":"localhost","pid":12345}"#;

/// The connection on the caller's runtime.
pub(super) fn caller(target: Target) -> Connecting<Box<dyn Client>> {
    Box::pin(async move {
        let mut connection = connection::open(&target.url, Driving::Caller).await?;
        let (acquire, release) = (script("acquire")?, script("release")?);
        for script in [&acquire, &release] {
            script.load_async(&mut connection.connection).await.context("loading a script")?;
        }
        let milliseconds = u64::try_from(target.lease.as_millis()).unwrap_or(u64::MAX);
        let parts = Parts { acquire, release, milliseconds, attempts: AtomicU64::new(0) };
        Ok(Box::new(Bare { connection, parts: Arc::new(parts) }) as Box<dyn Client>)
    })
}

fn script(name: &str) -> Outcome<Script> {
    let mut scripts = distlock::redis::scripts().iter();
    let found = scripts.find(|script| script.name() == name).context("a script of distlock")?;
    Ok(Script::new(found.text()))
}

struct Bare {
    connection: Connection,
    parts: Arc<Parts>,
}

struct Parts {
    acquire: Script,
    release: Script,
    milliseconds: u64,
    attempts: AtomicU64,
}

#[async_trait]
impl Client for Bare {
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>> {
        let keys = ["l", "q", "w", "f", "b"].map(|part| format!("distlock:{{{name}}}:{part}"));
        let commands = self.connection.connection.clone();
        Ok(Box::new(Keys { names: Arc::new(keys), commands, parts: Arc::clone(&self.parts) }))
    }

    async fn close(self: Box<Self>) {}
}

#[derive(Clone)]
struct Keys {
    names: Arc<[String; 5]>,
    commands: MultiplexedConnection,
    parts: Arc<Parts>,
}

#[async_trait]
impl Lock for Keys {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        let id = format!("{:032x}", self.parts.attempts.fetch_add(1, Ordering::Relaxed));
        let mut call = self.parts.acquire.prepare_invoke();
        call.key(&self.names[..]).arg(&id).arg(self.parts.milliseconds).arg(WHO).arg(1);
        match call.invoke_async(&mut self.commands.clone()).await.context("acquire")? {
            Value::BulkString(_) => Ok(Box::new(Hold { of: self.clone(), id })),
            _ => Err(Failure::new("the lock is not free, and this does not wait")),
        }
    }
}

struct Hold {
    of: Keys,
    id: String,
}

#[async_trait]
impl Held for Hold {
    async fn release(mut self: Box<Self>) -> Outcome<()> {
        let mut call = self.of.parts.release.prepare_invoke();
        call.key(&self.of.names[..]).arg(&self.id);
        match call.invoke_async(&mut self.of.commands).await.context("release")? {
            Value::Int(1) => Ok(()),
            _ => Err(Failure::new("the lock had been lost")),
        }
    }
}
