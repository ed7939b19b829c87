//! The performance aims for MySQL and MariaDB.

use super::{DISTRIBUTED_LOCK, RAW_DIRECT, RAW_TOKEN_CALLER, RAW_TOKEN_THREAD};
use crate::aims::{Aim, Measure};
use crate::contender::Driving;

pub(super) const AIMS: &[Aim] = &[
    Aim {
        text: "cycle, engine=caller, beside raw statements on the caller's runtime",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::Caller },
        at_most: Some(1.25),
    },
    Aim {
        text: "cycle, default engine, beside raw statements through a thread",
        measure: Measure::CycleOfEngineBesideRaw { engine: Driving::OtherThread },
        at_most: Some(1.15),
    },
    Aim {
        text: "cycle beside raw statements that mint a number, driven in the same way",
        measure: Measure::CycleBesideNamed { caller: RAW_TOKEN_CALLER, other_thread: RAW_TOKEN_THREAD },
        at_most: None,
    },
    Aim {
        text: "cycle beside raw statements by the caller itself",
        measure: Measure::CycleBesideNamed { caller: RAW_DIRECT, other_thread: RAW_DIRECT },
        at_most: None,
    },
    Aim {
        text: "hand-off at 2 beside raw statements driven in the same way",
        measure: Measure::HandOffBesideRaw { clients: 2 },
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside raw statements driven in the same way",
        measure: Measure::HandOffBesideRaw { clients: 16 },
        at_most: Some(1.15),
    },
    Aim {
        text: "hand-off at 64 beside raw statements driven in the same way",
        measure: Measure::HandOffBesideRaw { clients: 64 },
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside the crate distributed-lock",
        measure: Measure::HandOffBesidePeer { clients: 16, peer: DISTRIBUTED_LOCK },
        at_most: None,
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
        text: "connections for all holds of a client",
        measure: Measure::HoldingConnections,
        at_most: Some(40.0),
    },
    Aim {
        text: "statements for a connection and renewal interval",
        measure: Measure::RequestsPerConnectionAndRenewal,
        at_most: Some(1.0),
    },
    Aim { text: "memory for a hold in the client", measure: Measure::BytesPerHold, at_most: None },
    Aim { text: "renewal of all holds, share of a core", measure: Measure::RenewalShare, at_most: None },
    Aim { text: "connections for a waiter", measure: Measure::ConnectionsPerWaiter, at_most: None },
    Aim {
        text: "statements for a waiter and renewal interval",
        measure: Measure::CommandsPerWaiter,
        at_most: None,
    },
    Aim { text: "memory for a waiter in the server", measure: Measure::ServerBytesPerWaiter, at_most: None },
    Aim { text: "all waiters, share of a core", measure: Measure::WaitingShare, at_most: None },
];
