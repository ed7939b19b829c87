//! PostgreSQL: its contenders and aims.

mod connection;
mod raw;
mod sqlx_lock;

use std::time::Duration;

use test_servers::{PostgresServer, ServerOptions};

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Contender, Driving, Family, Waits};
use crate::failure::{Context, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    title: "PostgreSQL",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks],
    aims: AIMS,
    lease_option: Some("lease"),
    sizes: Sizes { rounds: 3, lease: Duration::from_secs(20), ..Sizes::USUAL },
    start,
    command: None,
};

/// Enough for a client of each waiter with a second connection for requests that do not wait.
const MAX_CONNECTIONS: &str = "500";

/// Starts a server, and waits until it answers.
fn start() -> Outcome<Box<dyn Server>> {
    let options = ServerOptions::new().setting("max_connections", MAX_CONNECTIONS);
    let starting = async {
        let server = PostgresServer::start_with(options).await;
        server.context("no server of its own (--url names another)")
    };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for PostgresServer {
    fn url(&self) -> String {
        self.url()
    }
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "pg_advisory_lock and pg_advisory_unlock, by a task, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "pg_advisory_lock and pg_advisory_unlock, by a task, on another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::OtherThread)),
    },
    Contender {
        id: "ping-caller",
        title: "a ping, on the caller's runtime",
        family: Family::Echo,
        driving: Driving::Caller,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::Caller)),
    },
    Contender {
        id: "ping-thread",
        title: "a ping, on another thread",
        family: Family::Echo,
        driving: Driving::OtherThread,
        waits: Waits::NotAtAll,
        connect: |target| Box::pin(raw::ping(target, Driving::OtherThread)),
    },
    Contender {
        id: "sqlx",
        title: "PgAdvisoryLock of the crate sqlx, by the caller itself",
        family: Family::Peer,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: sqlx_lock::connect,
    },
];

const AIMS: &[Aim] = &[
    Aim::new("cycle beside raw statements", Measure::Beside("cycle", Other::Raw), Some(1.15))
        .of(Driving::Caller),
    Aim::new("cycle beside raw statements", Measure::Beside("cycle", Other::Raw), Some(1.15))
        .of(Driving::OtherThread),
    Aim::new("hand-off at 2 beside raw statements", Measure::Beside("handoff-2", Other::Raw), None),
    Aim::new("hand-off at 16 beside raw statements", Measure::Beside("handoff-16", Other::Raw), Some(1.25)),
    Aim::new("hand-off at 64 beside raw statements", Measure::Beside("handoff-64", Other::Raw), None),
    Aim::new(
        "hand-off at 16 beside the locks of the crate sqlx",
        Measure::Beside("handoff-16", Other::Named("sqlx")),
        None,
    ),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new("most grants beside fewest, 64 clients", Measure::Fairness("handoff-64"), Some(1.05)),
];
