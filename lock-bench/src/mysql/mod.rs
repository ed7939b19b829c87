//! MySQL and MariaDB: their contenders and aims.

mod aims;
mod connection;
mod monitor;
mod peer_distributed_lock;
mod raw;
mod server;

use std::time::Duration;

use test_servers::MySqlFlavour;

use crate::contender::{Connect, Contender, Driving, Family, Renewal, Turns, Waits, distlock};
use crate::plan::Workload;
use crate::subject::{Sizes, Subject};

/// A server that is started for a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum Flavour {
    /// The `mariadbd` that is installed
    MariaDb,
    /// MySQL 5.7, from an npm package
    MySql57,
}

impl Flavour {
    fn subject(self) -> &'static Subject {
        match self {
            Self::MariaDb => &MARIADB,
            Self::MySql57 => &MYSQL57,
        }
    }

    fn is_left_out(self) -> bool {
        let flavour = match self {
            Self::MariaDb => MySqlFlavour::MariaDb,
            Self::MySql57 => MySqlFlavour::MySql57,
        };
        flavour.left_out().is_some()
    }
}

/// Returns those of `servers` that are not left out, or the server of the URL.
pub(crate) fn subjects(servers: &[Flavour], url: Option<&str>) -> Vec<&'static Subject> {
    if url.is_some() {
        return vec![&GIVEN];
    }
    servers.iter().filter(|server| !server.is_left_out()).map(|server| server.subject()).collect()
}

pub(crate) static MARIADB: Subject =
    Subject { id: "mariadb", title: "MariaDB", start: server::mariadb, ..COMMON };

pub(crate) static MYSQL57: Subject =
    Subject { id: "mysql57", title: "MySQL 5.7", start: server::mysql57, ..COMMON };

pub(crate) static GIVEN: Subject = COMMON;

const COMMON: Subject = Subject {
    id: "mysql",
    title: "MySQL or MariaDB",
    contenders: CONTENDERS,
    tasks: &[],
    workloads: Workload::AT_A_SERVER,
    echoes: raw::ECHOES,
    aims: aims::AIMS,
    full: Sizes {
        rounds: 3,
        lease: Duration::from_secs(20),
        hand_off_clients: &[2, 16, 64],
        turn_for_a_client: Duration::from_millis(7),
        holds: 10_000,
        waiters: 1000,
        renewals_until_settled: 3,
        renewals_observed: 2,
    },
    quick: Sizes {
        rounds: 2,
        lease: Duration::from_secs(12),
        hand_off_clients: &[2, 16],
        turn_for_a_client: Duration::ZERO,
        holds: 600,
        waiters: 50,
        renewals_until_settled: 0,
        renewals_observed: 1,
    },
    renewals_in_a_lease: 4,
    start: server::none,
    monitor: monitor::connect,
    request_counter: None,
};

/// The name of the lease option in a URL of distlock.
const LEASE_OPTION: &str = "lease";

const DISTLOCK: Contender = Contender {
    id: "distlock-caller",
    title: "distlock, engine=caller",
    family: Family::Distlock,
    driving: Driving::Caller,
    waiting: raw::WAITING,
    waits: Waits::ByItself,
    own_commands: &[],
    renewal: Renewal::Automatic,
    connect: Connect::Here(|target| distlock::caller(target, LEASE_OPTION)),
};

const RAW: Contender = Contender {
    id: "raw-caller",
    title: "GET_LOCK and RELEASE_LOCK, a task on the caller's runtime",
    family: Family::Raw,
    driving: Driving::Caller,
    waiting: raw::WAITING,
    waits: Waits::ByItself,
    own_commands: &[],
    renewal: Renewal::LeftToTheUser,
    connect: Connect::Here(raw::caller),
};

const CONTENDERS: &[Contender] = &[
    DISTLOCK,
    Contender {
        id: "distlock-own",
        title: "distlock, engine=own (default)",
        driving: Driving::OtherThread,
        connect: Connect::Here(|target| distlock::own(target, LEASE_OPTION)),
        ..DISTLOCK
    },
    RAW,
    Contender {
        id: "raw-thread",
        title: "GET_LOCK and RELEASE_LOCK, a task on another thread",
        driving: Driving::OtherThread,
        connect: Connect::Here(raw::other_thread),
        ..RAW
    },
    Contender {
        id: RAW_TOKEN_CALLER,
        title: "the same with UUID_SHORT, a task on the caller's runtime",
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::caller_minting),
        ..RAW
    },
    Contender {
        id: RAW_TOKEN_THREAD,
        title: "the same with UUID_SHORT, a task on another thread",
        driving: Driving::OtherThread,
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::other_thread_minting),
        ..RAW
    },
    Contender {
        id: RAW_DIRECT,
        title: "GET_LOCK and RELEASE_LOCK, by the caller itself",
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::direct),
        ..RAW
    },
    Contender {
        id: DISTRIBUTED_LOCK,
        title: "crate distributed-lock, by its part for MySQL",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_distributed_lock::WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::InAnotherProgram(peer_distributed_lock::start, Turns::Exclusive),
    },
];

const DISTRIBUTED_LOCK: &str = "distributed-lock";
const RAW_TOKEN_CALLER: &str = "raw-token-caller";
const RAW_TOKEN_THREAD: &str = "raw-token-thread";
const RAW_DIRECT: &str = "raw-direct";
