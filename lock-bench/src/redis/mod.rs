//! Redis: its contenders and aims.

mod connection;
mod monitor;
mod peer_distributed_lock;
mod peer_rslock;
mod raw;
mod scripts;
mod server;

use std::time::Duration;

use crate::aims::{Aim, Measure};
use crate::contender::{Connect, Contender, Driving, Family, Renewal, Waits, distlock};
use crate::plan::Workload;
use crate::subject::{Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    id: "redis",
    title: "Redis",
    contenders: CONTENDERS,
    tasks: TASKS,
    workloads: Workload::AT_A_SERVER,
    echoes: raw::ECHOES,
    aims: AIMS,
    full: Sizes {
        rounds: 5,
        lease: Duration::from_secs(30),
        hand_off_clients: &[2, 16, 64],
        turn_for_a_client: Duration::from_millis(7),
        holds: 10_000,
        waiters: 1000,
        renewals_until_settled: 0,
        renewals_observed: 2,
    },
    quick: Sizes {
        rounds: 2,
        lease: Duration::from_secs(12),
        hand_off_clients: &[2, 16],
        turn_for_a_client: Duration::ZERO,
        holds: 500,
        waiters: 50,
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

const CALLER: Contender = Contender {
    id: "distlock-caller",
    title: "distlock, engine=caller",
    family: Family::Distlock,
    driving: Driving::Caller,
    waiting: "in a queue at the server, notified by a push",
    waits: Waits::ByItself,
    own_commands: &[],
    renewal: Renewal::Automatic,
    connect: Connect::Here(|target| distlock::caller(target, LEASE_OPTION)),
};

const OWN: Contender = Contender {
    id: "distlock-own",
    title: "distlock, engine=own (default)",
    driving: Driving::OtherThread,
    connect: Connect::Here(|target| distlock::own(target, LEASE_OPTION)),
    ..CALLER
};

/// A backend that cannot hand over refuses the option, and the report says so.
const TASKS: &[Contender] = &[
    CALLER,
    OWN,
    Contender {
        id: "distlock-caller-local",
        title: "distlock, engine=caller, local_handoff",
        connect: Connect::Here(|target| distlock::handing_over(target, Driving::Caller, Some(LEASE_OPTION))),
        ..CALLER
    },
    Contender {
        id: "distlock-own-local",
        title: "distlock, engine=own, local_handoff",
        connect: Connect::Here(|target| {
            distlock::handing_over(target, Driving::OtherThread, Some(LEASE_OPTION))
        }),
        ..OWN
    },
];

const CONTENDERS: &[Contender] = &[
    CALLER,
    OWN,
    Contender {
        id: "raw-caller",
        title: "raw commands, caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waiting: raw::WAITING,
        waits: Waits::ByAskingAgain,
        own_commands: &["set"],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::Here(raw::caller),
    },
    Contender {
        id: "raw-thread",
        title: "raw commands, another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waiting: raw::WAITING,
        waits: Waits::ByAskingAgain,
        own_commands: &["set"],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::Here(raw::other_thread),
    },
    Contender {
        id: RAW_SCRIPTS,
        title: "the scripts of distlock, through the bare client",
        family: Family::Raw,
        driving: Driving::Caller,
        waiting: "not at all, so it is in the cycle alone",
        waits: Waits::LikeAnother,
        own_commands: &[],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::Here(scripts::caller),
    },
    Contender {
        id: "rslock",
        title: "crate rslock",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_rslock::WAITING,
        waits: Waits::ByItself,
        own_commands: &["set"],
        renewal: Renewal::LeftToTheUser,
        connect: Connect::Here(peer_rslock::connect),
    },
    Contender {
        id: "distributed-lock",
        title: "crate distributed-lock",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_distributed_lock::WAITING,
        waits: Waits::ByAskingAgain,
        own_commands: &["set"],
        renewal: Renewal::Automatic,
        connect: Connect::Here(peer_distributed_lock::connect),
    },
];

const RAW_SCRIPTS: &str = "raw-scripts";

const AIMS: &[Aim] = &[
    Aim {
        text: "cycle, engine=caller, beside raw commands on the caller's runtime",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::Caller },
        at_most: Some(1.25),
    },
    Aim {
        text: "cycle, default engine, beside raw commands through a thread",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::OtherThread },
        at_most: Some(1.15),
    },
    Aim {
        text: "of which the scripts through the bare client, beside raw commands",
        measure: Measure::CycleOfNamedBesideRaw { named: RAW_SCRIPTS },
        at_most: Some(1.10),
    },
    Aim {
        text: "the server's time for a cycle beside that for raw commands",
        measure: Measure::ServerTimeBesideRaw,
        at_most: None,
    },
    Aim {
        text: "cycle beside raw commands on the caller's runtime",
        measure: Measure::CycleBesidePlainRaw,
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside PING driven in the same way",
        measure: Measure::HandOffBesideEcho { clients: 16 },
        at_most: Some(2.0),
    },
    Aim {
        text: "hand-off at 64 beside PING driven in the same way",
        measure: Measure::HandOffBesideEcho { clients: 64 },
        at_most: Some(2.0),
    },
    Aim {
        text: "hand-off at 16 beside PING on the caller's runtime",
        measure: Measure::HandOffBesidePlainEcho { clients: 16 },
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside that at 2",
        measure: Measure::HandOffGrowth { clients: 16, beside: 2 },
        at_most: Some(1.5),
    },
    Aim {
        text: "hand-off at 64 beside that at 16",
        measure: Measure::HandOffGrowth { clients: 64, beside: 16 },
        at_most: Some(1.1),
    },
    Aim {
        text: "most grants beside fewest, 2 clients",
        measure: Measure::Fairness { clients: 2 },
        at_most: Some(1.05),
    },
    Aim {
        text: "most grants beside fewest, 16 clients",
        measure: Measure::Fairness { clients: 16 },
        at_most: Some(1.05),
    },
    Aim {
        text: "most grants beside fewest, 64 clients",
        measure: Measure::Fairness { clients: 64 },
        at_most: Some(1.05),
    },
    Aim {
        text: "client commands for a section at 64",
        measure: Measure::CommandsPerSection { clients: 64 },
        at_most: Some(2.2),
    },
    Aim {
        text: "connections for all holds of a client",
        measure: Measure::HoldingConnections,
        at_most: Some(1.0),
    },
    Aim { text: "memory for a hold in the client", measure: Measure::BytesPerHold, at_most: Some(1024.0) },
    Aim { text: "renewal of all holds, share of a core", measure: Measure::RenewalShare, at_most: Some(0.3) },
    Aim {
        text: "commands for a waiter and renewal interval",
        measure: Measure::CommandsPerWaiter,
        at_most: Some(1.0),
    },
    Aim { text: "all waiters, share of a core", measure: Measure::WaitingShare, at_most: Some(1.0) },
];
