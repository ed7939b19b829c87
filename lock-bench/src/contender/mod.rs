//! What is measured: a lock as its users see it, whatever it is made of. Each server has a table of its contenders.

pub(crate) mod distlock;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::failure::Outcome;

/// Where the locks are and how long they last.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) lease: Duration,
}

impl Target {
    /// How often a hold of distlock is renewed and a waiter of it shows that it is alive.
    pub(crate) fn renewal_interval(&self) -> Duration {
        self.lease / 4
    }
}

pub(crate) type Connecting<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// Who runs the connection: reads its socket and wakes whoever waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driving {
    /// The runtime that the lock is used on.
    Caller,
    /// A current-thread runtime on a thread of its own: two hops between threads more.
    OtherThread,
}

/// What family a row belongs to. Aims compare the first with the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Family {
    Distlock,
    Raw,
    Peer,
}

/// One row: a way to lock, and how its connection is driven.
pub(crate) struct Contender {
    /// A short name without spaces, the same in every report.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) family: Family,
    pub(crate) driving: Driving,
    /// How it waits for a lock that somebody else has, for people.
    pub(crate) waiting: &'static str,
    pub(crate) waits: Waits,
    /// Commands that it sends itself although scripts may call them too, so that they count as a client's.
    pub(crate) own_commands: &'static [&'static str],
    /// Whether it renews what it holds without being told to.
    pub(crate) renewal: Renewal,
    pub(crate) connect: fn(Target) -> Connecting<Box<dyn Client>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    ByItself,
    /// This program asks again and again on its behalf.
    ByAskingAgain,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Renewal {
    Automatic,
    LeftToTheUser,
}

impl fmt::Debug for Contender {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.id)
    }
}

/// One client of the server, with a connection of its own.
#[async_trait]
pub(crate) trait Client: Send + Sync {
    /// The lock called `name`.
    fn lock(&self, name: &str) -> Outcome<Box<dyn Lock>>;

    /// Ends the client and its connection.
    async fn close(self: Box<Self>);
}

#[async_trait]
pub(crate) trait Lock: Send + Sync {
    /// Waits for the lock for as long as it takes.
    async fn acquire(&self) -> Outcome<Box<dyn Held>>;
}

#[async_trait]
pub(crate) trait Held: Send {
    /// Gives the lock back, and waits for the server's answer.
    async fn release(self: Box<Self>) -> Outcome<()>;
}

/// A way to ask the server for nothing, which is how far away it is.
pub(crate) struct Echo {
    pub(crate) id: &'static str,
    pub(crate) driving: Driving,
    pub(crate) connect: fn(Target) -> Connecting<Box<dyn Ping>>,
}

#[async_trait]
pub(crate) trait Ping: Send {
    async fn ping(&mut self) -> Outcome<()>;
}
