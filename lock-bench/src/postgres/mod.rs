//! PostgreSQL: its contenders and aims.

mod aims;
mod connection;
mod monitor;
mod peer_distributed_lock;
mod peer_sqlx;
mod raw;
mod server;

use std::time::Duration;

use crate::contender::{Connect, Contender, Driving, Family, Renewal, Turns, Waits, distlock};
use crate::plan::Workload;
use crate::subject::{Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    id: "postgres",
    title: "PostgreSQL",
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
        // Each is a process of the server.
        waiters: 100,
        renewals_until_settled: 3,
        renewals_observed: 2,
    },
    quick: Sizes {
        rounds: 2,
        lease: Duration::from_secs(12),
        hand_off_clients: &[2, 16],
        turn_for_a_client: Duration::ZERO,
        holds: 600,
        waiters: 20,
        renewals_until_settled: 0,
        renewals_observed: 1,
    },
    renewals_in_a_lease: 4,
    start: server::start,
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
    title: "pg_advisory_lock and pg_advisory_unlock, a task on the caller's runtime",
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
        title: "pg_advisory_lock and pg_advisory_unlock, a task on another thread",
        driving: Driving::OtherThread,
        connect: Connect::Here(raw::other_thread),
        ..RAW
    },
    Contender {
        id: RAW_TOKEN_CALLER,
        title: "the same with the server's clock, a task on the caller's runtime",
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::caller_minting),
        ..RAW
    },
    Contender {
        id: RAW_TOKEN_THREAD,
        title: "the same with the server's clock, a task on another thread",
        driving: Driving::OtherThread,
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::other_thread_minting),
        ..RAW
    },
    Contender {
        id: RAW_DIRECT,
        title: "pg_advisory_lock and pg_advisory_unlock, by the caller itself",
        waits: Waits::LikeAnother,
        connect: Connect::Here(raw::direct),
        ..RAW
    },
    Contender {
        id: SQLX,
        title: "PgAdvisoryLock of the crate sqlx, by the caller itself",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_sqlx::WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::Here(peer_sqlx::connect),
    },
    Contender {
        id: DISTRIBUTED_LOCK,
        title: "crate distributed-lock, by its part for PostgreSQL",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_distributed_lock::WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::InAnotherProgram(peer_distributed_lock::start, Turns::Exclusive),
    },
];

const RAW_TOKEN_CALLER: &str = "raw-token-caller";
const RAW_TOKEN_THREAD: &str = "raw-token-thread";
const RAW_DIRECT: &str = "raw-direct";
const DISTRIBUTED_LOCK: &str = "distributed-lock";
const SQLX: &str = "sqlx";
