//! Contenders: the locks that are measured, as their users see them, whatever their implementation is.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::distlock::status::Mode;
use async_trait::async_trait;
use serde::Serialize;

use crate::failure::Outcome;

/// The location of the locks and the length of their leases.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) lease: Duration,
    /// The name of the lease option in a URL of distlock; `None` on a backend without leases.
    pub(crate) lease_option: Option<&'static str>,
}

pub(crate) type Connecting<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// The runtime that drives the connection: it reads the socket and wakes the tasks that wait for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driving {
    /// The runtime that the lock is used on.
    Caller,
    /// A current-thread runtime on a thread of its own: two more hops between threads.
    OtherThread,
}

/// What aims compare with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Family {
    Distlock,
    /// The minimum of requests that a lock needs.
    Raw,
    Peer,
    /// A request that does nothing: the distance to the server.
    Echo,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    ForTheLock,
    /// It is not a lock, so that it is measured without competition alone.
    NotAtAll,
    /// Between tasks of one client, by passing the lock on without the server.
    WithinTheClient,
}

/// One row: a kind of lock, and how its connection is driven.
#[derive(Clone)]
pub(crate) struct Contender {
    /// A short name without spaces, the same in every report.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) family: Family,
    pub(crate) driving: Driving,
    pub(crate) waits: Waits,
    pub(crate) connect: fn(Target) -> Connecting<Box<dyn Client>>,
}

impl fmt::Debug for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id)
    }
}

/// One client of the server, with a connection of its own.
#[async_trait]
pub(crate) trait Client: Send + Sync {
    /// Returns the lock called `name`.
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>>;

    /// Returns the lock or the semaphore called `name` in this mode, if there is such a thing.
    fn share(&self, name: &str, mode: Mode) -> Outcome<Option<Box<dyn Lock>>> {
        match mode {
            Mode::Exclusive => self.lock(name).map(Some),
            _ => Ok(None),
        }
    }

    /// Ends the client and its connection.
    async fn close(self: Box<Self>) {}
}

#[async_trait]
pub(crate) trait Lock: Send + Sync {
    /// Waits for the lock as long as it takes.
    async fn acquire(&self) -> Outcome<Box<dyn Held>>;
}

#[async_trait]
pub(crate) trait Held: Send {
    /// Releases the lock, and waits for the server's answer.
    async fn release(self: Box<Self>) -> Outcome<()>;
}

/// A connection that can send a request that does nothing.
#[async_trait]
pub(crate) trait Ping: Send + Sync {
    async fn ping(&self) -> Outcome<()>;
}

/// Measures the distance to the server like a lock: to acquire is to ping, to release is nothing.
pub(crate) struct Echo(Arc<dyn Ping>);

impl Echo {
    pub(crate) fn of(connection: impl Ping + 'static) -> Box<dyn Client> {
        Box::new(Self(Arc::new(connection)))
    }
}

#[async_trait]
impl Client for Echo {
    fn lock(&self, _name: &str) -> Outcome<Box<dyn Lock>> {
        Ok(Box::new(Self(Arc::clone(&self.0))))
    }
}

#[async_trait]
impl Lock for Echo {
    async fn acquire(&self) -> Outcome<Box<dyn Held>> {
        self.0.ping().await?;
        Ok(Box::new(Answered))
    }
}

struct Answered;

#[async_trait]
impl Held for Answered {
    async fn release(self: Box<Self>) -> Outcome<()> {
        Ok(())
    }
}
