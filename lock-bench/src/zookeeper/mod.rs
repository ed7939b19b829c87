//! ZooKeeper: its contenders and aims.

mod connection;
mod monitor;
mod peer_curator;
mod peer_lock_client;
mod raw;
mod request_counter;
mod server;

use std::time::Duration;

use crate::aims::{Aim, Measure};
use crate::contender::{Connect, Contender, Driving, Family, Renewal, Turns, Waits, distlock};
use crate::plan::Workload;
use crate::subject::{Sizes, Subject};

pub(crate) static SUBJECT: Subject = Subject {
    id: "zookeeper",
    title: "ZooKeeper",
    contenders: CONTENDERS,
    tasks: &[],
    workloads: Workload::AT_A_SERVER,
    echoes: raw::ECHOES,
    aims: AIMS,
    full: Sizes {
        rounds: 5,
        lease: Duration::from_secs(10),
        hand_off_clients: &[2, 16, 64, 256],
        turn_for_a_client: Duration::from_millis(30),
        holds: 1000,
        waiters: 1000,
        renewals_until_settled: 0,
        renewals_observed: 6,
    },
    quick: Sizes {
        rounds: 2,
        lease: Duration::from_secs(10),
        hand_off_clients: &[2, 16],
        turn_for_a_client: Duration::ZERO,
        holds: 100,
        waiters: 50,
        renewals_until_settled: 0,
        renewals_observed: 1,
    },
    renewals_in_a_lease: 6,
    start: server::start,
    monitor: monitor::connect,
    request_counter: Some(request_counter::start),
};

/// The name of the lease option in a URL of distlock.
const LEASE_OPTION: &str = "session_timeout";

const WAITING: &str = "in line behind the contender before it, whose node it watches";

const CONTENDERS: &[Contender] = &[
    Contender {
        id: "distlock-caller",
        title: "distlock, engine=caller",
        family: Family::Distlock,
        driving: Driving::Caller,
        waiting: WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::Here(|target| distlock::caller(target, LEASE_OPTION)),
    },
    Contender {
        id: "distlock-own",
        title: "distlock, engine=own (default)",
        family: Family::Distlock,
        driving: Driving::OtherThread,
        waiting: WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::Here(|target| distlock::own(target, LEASE_OPTION)),
    },
    Contender {
        id: "raw-caller",
        title: "create and delete, caller's runtime",
        family: Family::Raw,
        driving: Driving::Caller,
        waiting: raw::WAITING,
        waits: Waits::NotAtAll,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::Here(raw::caller),
    },
    Contender {
        id: "raw-thread",
        title: "create and delete, another thread",
        family: Family::Raw,
        driving: Driving::OtherThread,
        waiting: raw::WAITING,
        waits: Waits::NotAtAll,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::Here(raw::other_thread),
    },
    Contender {
        id: "lock-client",
        title: "LockClient of the crate zookeeper-client",
        family: Family::Peer,
        driving: Driving::Caller,
        waiting: peer_lock_client::WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::Here(peer_lock_client::connect),
    },
    Contender {
        id: CURATOR,
        title: "Apache Curator, InterProcessMutex (Java)",
        family: Family::Peer,
        driving: Driving::OtherThread,
        waiting: peer_curator::WAITING,
        waits: Waits::ByItself,
        own_commands: &[],
        renewal: Renewal::Automatic,
        connect: Connect::InAnotherProgram(peer_curator::start, Turns::Shared),
    },
];

const CURATOR: &str = "curator";

/// The requests that list the children of a node, as the server names them.
const LISTINGS: &[&str] = &["getChildren", "getChildren2"];

const AIMS: &[Aim] = &[
    Aim {
        text: "cycle, engine=caller, beside create and delete on the caller's runtime",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::Caller },
        at_most: Some(1.10),
    },
    Aim {
        text: "cycle, default engine, beside create and delete through a thread",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::OtherThread },
        at_most: Some(1.15),
    },
    Aim {
        text: "cycle beside create and delete on the caller's runtime",
        measure: Measure::CycleBesidePlainRaw,
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside Curator",
        measure: Measure::HandOffBesidePeer { clients: 16, peer: CURATOR },
        at_most: Some(0.6),
    },
    Aim {
        text: "hand-off at 16 beside LockClient",
        measure: Measure::HandOffBesidePeer { clients: 16, peer: "lock-client" },
        at_most: Some(1.0),
    },
    Aim {
        text: "hand-off at 256 beside that at 2",
        measure: Measure::HandOffGrowth { clients: 256, beside: 2 },
        at_most: Some(1.3),
    },
    Aim {
        text: "hand-off at 16 beside a read driven in the same way",
        measure: Measure::HandOffBesideEcho { clients: 16 },
        at_most: None,
    },
    Aim {
        text: "listings for a section at 16",
        measure: Measure::RequestsPerSection { clients: 16, kinds: LISTINGS },
        at_most: Some(1.0),
    },
    Aim {
        text: "listings for a section at 256",
        measure: Measure::RequestsPerSection { clients: 256, kinds: LISTINGS },
        at_most: Some(1.0),
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
        text: "requests but pings, all holds, in an interval of renewal",
        measure: Measure::RequestsPerRenewal,
        at_most: Some(1.0),
    },
    Aim {
        text: "connections for all holds of a client",
        measure: Measure::HoldingConnections,
        at_most: Some(1.0),
    },
    Aim { text: "memory for a hold in the client", measure: Measure::BytesPerHold, at_most: None },
    Aim { text: "renewal of all holds, share of a core", measure: Measure::RenewalShare, at_most: None },
    Aim {
        text: "requests for a waiter and renewal interval",
        measure: Measure::CommandsPerWaiter,
        at_most: None,
    },
    Aim { text: "all waiters, share of a core", measure: Measure::WaitingShare, at_most: None },
];
