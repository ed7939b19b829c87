//! ZooKeeper: its contenders and aims.

mod connection;
mod lock_client;
mod raw;

use std::time::Duration;

use test_servers::ZooKeeperServer;

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Contender, Driving, Family, Waits};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    title: "ZooKeeper",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks],
    aims: AIMS,
    lease_option: Some("session_timeout"),
    sizes: Sizes {
        rounds: 5,
        lease: Duration::from_secs(10),
        clients: &[2, 16, 64, 256],
        turn_for_a_client: Duration::from_millis(30),
    },
    start,
    command: None,
};

/// Starts a server that does not wait for the disk, and waits until it answers.
fn start() -> Outcome<Box<dyn Server>> {
    let starting =
        async { ZooKeeperServer::start().await.context("no server of its own (--url names another)") };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for ZooKeeperServer {
    fn url(&self) -> String {
        self.url()
    }
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "create and delete, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "create and delete, on another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::connect(target, Driving::OtherThread)),
    },
    Contender {
        id: "read-caller",
        title: "a read, on the caller's runtime",
        family: Family::Echo,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::read(target, Driving::Caller)),
    },
    Contender {
        id: "read-thread",
        title: "a read, on another thread",
        family: Family::Echo,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::read(target, Driving::OtherThread)),
    },
    Contender {
        id: "lock-client",
        title: "LockClient of the crate zookeeper-client",
        family: Family::Peer,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: lock_client::connect,
    },
];

const AIMS: &[Aim] = &[
    Aim::new("cycle beside create and delete", Measure::Beside("cycle", Other::Raw), Some(1.10))
        .of(Driving::Caller),
    Aim::new("cycle beside create and delete", Measure::Beside("cycle", Other::Raw), Some(1.15))
        .of(Driving::OtherThread),
    Aim::new(
        "hand-off at 16 beside LockClient",
        Measure::Beside("handoff-16", Other::Named("lock-client")),
        Some(1.0),
    ),
    Aim::new("hand-off at 16 beside a read", Measure::Beside("handoff-16", Other::Echo), None),
    Aim::new(
        "hand-off at 64 beside LockClient",
        Measure::Beside("handoff-64", Other::Named("lock-client")),
        Some(1.1),
    ),
    Aim::new("hand-off at 256 beside that at 2", Measure::Growth("handoff-256", "handoff-2"), Some(1.3)),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new("most grants beside fewest, 64 clients", Measure::Fairness("handoff-64"), Some(1.05)),
];
