//! What is measured: a lock as its users see it, whatever it is made of. Each server has a table of its contenders.

pub(crate) mod distlock;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::plan::{CyclePlan, HandOffTurn};
use crate::workload::{Cycles, HandOffs};

/// Where the locks are and how long they last.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) lease: Duration,
    /// How many renewals a lease has time for.
    pub(crate) renewals_in_a_lease: u32,
    /// The process of the server, when this program has started it.
    pub(crate) server_process: Option<u32>,
}

impl Target {
    /// How often a hold of distlock is renewed and a waiter of it shows that it is alive.
    pub(crate) fn renewal_interval(&self) -> Duration {
        self.lease / self.renewals_in_a_lease
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
    pub(crate) connect: Connect,
}

/// Where its clients live.
pub(crate) enum Connect {
    /// In this program, where the workloads drive them.
    Here(fn(Target) -> Connecting<Box<dyn Client>>),
    /// In another program, which goes through whole turns and tells what it saw.
    InAnotherProgram(fn(Target) -> Connecting<Arc<dyn Program>>),
}

impl Contender {
    /// Another client, in this program.
    pub(crate) fn client(&self, target: Target) -> Connecting<Box<dyn Client>> {
        match self.connect {
            Connect::Here(connect) => connect(target),
            Connect::InAnotherProgram(_) => {
                let failure = Failure::new(format!("{} has no clients in this program", self.id));
                Box::pin(async { Err(failure) })
            }
        }
    }

    pub(crate) fn lives_here(&self) -> bool {
        matches!(self.connect, Connect::Here(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    ByItself,
    /// This program asks again and again on its behalf.
    ByAskingAgain,
    /// It is no lock: it does what one takes at the least.
    NotAtAll,
    /// Just as another contender of the same server: that one is measured.
    LikeAnother,
}

impl Waits {
    /// Whether it tells anything to have such clients hand on a lock.
    pub(crate) fn hands_on(self) -> bool {
        matches!(self, Self::ByItself | Self::ByAskingAgain)
    }
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

/// Another program that does what the workloads do here, and measures it by its own clock.
#[async_trait]
pub(crate) trait Program: Send + Sync {
    /// A turn of one client that nobody disturbs.
    async fn cycles(&self, name: &str, plan: &CyclePlan) -> Outcome<Cycles>;

    /// A turn of many clients that are made for it.
    async fn hand_offs(&self, name: &str, turn: &HandOffTurn) -> Outcome<HandOffs>;
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
