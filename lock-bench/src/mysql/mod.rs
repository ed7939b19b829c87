//! MySQL and MariaDB: their contenders and aims.

mod connection;
mod raw;

use std::time::Duration;

use test_servers::{MySqlFlavour, MySqlServer, ServerOptions};

use crate::aims::{Aim, Measure, Other};
use crate::contender::{Contender, Driving, Family, Waits};
use crate::failure::{Context, Failure, Outcome};
use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::subject::{Server, Sizes, Subject};

pub(crate) static MARIADB: Subject =
    Subject { title: "MariaDB", start: || start(MySqlFlavour::MariaDb), ..GIVEN };

pub(crate) static MYSQL57: Subject =
    Subject { title: "MySQL 5.7", start: || start(MySqlFlavour::MySql57), ..GIVEN };

/// The server that the user names.
pub(crate) const GIVEN: Subject = Subject {
    title: "MySQL or MariaDB",
    contenders: CONTENDERS,
    workloads: &[Workload::Cycle, Workload::HandOff, Workload::Sharing, Workload::Tasks],
    aims: AIMS,
    lease_option: Some("lease"),
    sizes: Sizes { rounds: 3, lease: Duration::from_secs(20), ..Sizes::USUAL },
    start: || Err(Failure::new("a server of this kind is named with --url")),
    command: None,
};

/// A server that is started for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum Flavour {
    /// The `mariadbd` that is installed
    MariaDb,
    /// MySQL 5.7, from an npm package
    MySql57,
}

pub(crate) fn subject(flavour: Flavour, url: Option<&str>) -> &'static Subject {
    static OF_THE_USER: Subject = GIVEN;
    match (url, flavour) {
        (Some(_), _) => &OF_THE_USER,
        (None, Flavour::MariaDb) => &MARIADB,
        (None, Flavour::MySql57) => &MYSQL57,
    }
}

/// Enough for the clients of a turn and the second connections of those that wait.
const MAX_CONNECTIONS: &str = "4000";

/// Starts a server, and waits until it answers.
fn start(flavour: MySqlFlavour) -> Outcome<Box<dyn Server>> {
    let options = ServerOptions::new().flavour(flavour).setting("max_connections", MAX_CONNECTIONS);
    let starting = async {
        let server = MySqlServer::start_with(options).await;
        server.context("no server of its own (--url names another)")
    };
    Ok(Box::new(RuntimeKind::CurrentThread.run(starting)?))
}

impl Server for MySqlServer {
    fn url(&self) -> String {
        self.url()
    }
}

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "raw-caller",
        title: "GET_LOCK and RELEASE_LOCK, by a task, on the caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waits: Waits::ForTheLock,
        connect: |target| Box::pin(raw::connect(target, Driving::Caller)),
    },
    Contender {
        id: "raw-thread",
        title: "GET_LOCK and RELEASE_LOCK, by a task, on another thread",
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
];

const AIMS: &[Aim] = &[
    Aim::new("cycle beside raw statements", Measure::Beside("cycle", Other::Raw), Some(1.2))
        .of(Driving::Caller),
    Aim::new("cycle beside raw statements", Measure::Beside("cycle", Other::Raw), Some(1.15))
        .of(Driving::OtherThread),
    Aim::new("hand-off at 2 beside raw statements", Measure::Beside("handoff-2", Other::Raw), None),
    Aim::new("hand-off at 16 beside raw statements", Measure::Beside("handoff-16", Other::Raw), Some(1.15)),
    Aim::new("hand-off at 64 beside raw statements", Measure::Beside("handoff-64", Other::Raw), None),
    Aim::new("most grants beside fewest, 2 clients", Measure::Fairness("handoff-2"), Some(1.05)),
    Aim::new("most grants beside fewest, 16 clients", Measure::Fairness("handoff-16"), Some(1.05)),
    Aim::new("most grants beside fewest, 64 clients", Measure::Fairness("handoff-64"), Some(1.05)),
];
