//! Contenders: the locks that are measured, as their users see them, whatever their implementation is. Each server has
//! a table of its contenders.

pub(crate) mod distlock;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ::distlock::status::Mode;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Outcome};
use crate::plan::{CyclePlan, HandOffTurn};
use crate::workload::{Cycles, HandOffs, Scenario, Shares};

/// The location of the locks and the length of their leases.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) lease: Duration,
    /// How many renewals fit into a lease.
    pub(crate) renewals_in_a_lease: u32,
    /// The process of the server, if this program has started it.
    pub(crate) server_process: Option<u32>,
}

impl Target {
    /// Returns how often distlock renews a hold, and how often a waiter of it sends a heartbeat.
    pub(crate) fn renewal_interval(&self) -> Duration {
        self.lease / self.renewals_in_a_lease
    }
}

pub(crate) type Connecting<T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send>>;

/// The runtime that drives the connection: it reads the socket and wakes the tasks that wait for answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driving {
    /// The runtime that the lock is used on.
    Caller,
    /// A current-thread runtime on a thread of its own: two more hops between threads.
    OtherThread,
}

/// The family of a row. Aims compare the first family with the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Family {
    Distlock,
    Raw,
    Peer,
}

/// One row: a kind of lock, and how its connection is driven.
pub(crate) struct Contender {
    /// A short name without spaces, the same in every report.
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) family: Family,
    pub(crate) driving: Driving,
    /// How it waits for a lock that is held, as text for the report.
    pub(crate) waiting: &'static str,
    pub(crate) waits: Waits,
    /// Commands that count as the client's, although scripts may call them too, because the client itself sends them.
    pub(crate) own_commands: &'static [&'static str],
    /// Whether it renews its holds by itself.
    pub(crate) renewal: Renewal,
    pub(crate) connect: Connect,
}

/// Where its clients run.
pub(crate) enum Connect {
    /// In this program, where the workloads drive them.
    Here(fn(Target) -> Connecting<Box<dyn Client>>),
    /// In another program, which runs whole turns and reports its measurements.
    InAnotherProgram(fn(Target) -> Connecting<Arc<dyn Program>>, Turns),
}

/// The turns that another program can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turns {
    /// Of locks that one client has at a time.
    Exclusive,
    /// Also of readers and of permits.
    Shared,
}

impl Contender {
    /// Creates another client, in this program.
    pub(crate) fn client(&self, target: Target) -> Connecting<Box<dyn Client>> {
        match self.connect {
            Connect::Here(connect) => connect(target),
            Connect::InAnotherProgram(..) => {
                let failure = Failure::new(format!("{} has no clients in this program", self.id));
                Box::pin(async { Err(failure) })
            }
        }
    }

    /// Whether it may have locks that several clients can hold.
    pub(crate) fn may_share(&self) -> bool {
        !matches!(self.connect, Connect::InAnotherProgram(_, Turns::Exclusive))
    }

    pub(crate) fn lives_here(&self) -> bool {
        matches!(self.connect, Connect::Here(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    ByItself,
    /// This program polls on its behalf.
    ByAskingAgain,
    /// It is not a lock: it is the minimum of work that a lock needs.
    NotAtAll,
    /// Like another contender of the same server, which is measured instead.
    LikeAnother,
}

impl Waits {
    /// Returns whether measuring hand-offs between such clients is meaningful.
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
    async fn close(self: Box<Self>);
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

/// Another program that runs the workloads itself, and measures by its own clock.
#[async_trait]
pub(crate) trait Program: Send + Sync {
    /// Runs a turn of one client without competition.
    async fn cycles(&self, name: &str, plan: &CyclePlan) -> Outcome<Cycles>;

    /// Runs a turn of many clients, which are created for it.
    async fn hand_offs(&self, name: &str, turn: &HandOffTurn) -> Outcome<HandOffs>;

    /// Runs a turn of clients, created for it, that want what `scenario` says; only if it runs `Turns::Shared`.
    async fn shares(&self, _name: &str, scenario: &Scenario, _turn: &HandOffTurn) -> Outcome<Shares> {
        Err(Failure::new(format!("it has no locks for {}", scenario.id)))
    }
}

/// A request that does nothing, which measures the distance to the server.
pub(crate) struct Echo {
    pub(crate) id: &'static str,
    pub(crate) driving: Driving,
    pub(crate) connect: fn(Target) -> Connecting<Box<dyn Ping>>,
}

#[async_trait]
pub(crate) trait Ping: Send {
    async fn ping(&mut self) -> Outcome<()>;
}
