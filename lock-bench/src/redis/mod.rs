//! Redis: its contenders and aims.

mod connection;
mod raw;
mod rslock;

use std::time::Duration;

use test_servers::RedisServer;

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Contender, Driving, Family, Waits};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    title: "Redis",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks],
    aims: AIMS,
    lease_option: Some("lease"),
    sizes: Sizes { rounds: 5, lease: Duration::from_secs(30), ..Sizes::USUAL },
    start,
    command: None,
};

/// Starts a server that stores nothing, and waits until it answers.
fn start() -> Outcome<Box<dyn Server>> {
    let starting = async { RedisServer::start().await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for RedisServer {
    fn url(&self) -> String {
        self.url()
    }
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "SET NX PX and a script that compares and deletes, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "SET NX PX and a script that compares and deletes, on another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::OtherThread)),
    },
    Contender {
        id: "ping-caller",
        title: "PING, on the caller's runtime",
        family: Family::Echo,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::Caller)),
    },
    Contender {
        id: "ping-thread",
        title: "PING, on another thread",
        family: Family::Echo,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::OtherThread)),
    },
    Contender {
        id: "rslock",
        title: "the crate rslock",
        family: Family::Peer,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: rslock::connect,
    },
];

const AIMS: &[Aim] = &[
    Aim::new("cycle beside raw commands", Measure::Beside("cycle", Other::Raw), Some(1.25))
        .of(Driving::Caller),
    Aim::new("cycle beside raw commands", Measure::Beside("cycle", Other::Raw), Some(1.15))
        .of(Driving::OtherThread),
    Aim::new("cycle beside the crate rslock", Measure::Beside("cycle", Other::Named("rslock")), None),
    Aim::new("hand-off at 16 beside PING", Measure::Beside("handoff-16", Other::Echo), Some(2.0)),
    Aim::new("hand-off at 64 beside PING", Measure::Beside("handoff-64", Other::Echo), Some(2.0)),
    Aim::new("hand-off at 16 beside that at 2", Measure::Growth("handoff-16", "handoff-2"), Some(1.5)),
    Aim::new("hand-off at 64 beside that at 16", Measure::Growth("handoff-64", "handoff-16"), Some(1.1)),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new("most grants beside fewest, 64 clients", Measure::Fairness("handoff-64"), Some(1.05)),
    Aim::new("hand-off, 64 tasks of one client", Measure::Time("tasks-64"), Some(5.0)).handing_over(),
    Aim::new(
        "sections without local_handoff for one with it",
        Measure::WithoutIt("tasks-64"),
        Some(1.0 / 30.0),
    )
    .handing_over(),
];
