//! The performance aims for PostgreSQL.

use super::{DISTRIBUTED_LOCK, RAW_DIRECT, RAW_TOKEN_CALLER, RAW_TOKEN_THREAD, SQLX};
use crate::aims::{Aim, Measure};

pub(super) const AIMS: &[Aim] = &[
    Aim {
        text: "cycle beside raw statements driven in the same way",
        measure: Measure::CycleBesideRaw,
        at_most: Some(1.15),
    },
    Aim {
        text: "cycle beside raw statements that read the clock, driven in the same way",
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
        at_most: Some(1.2),
    },
    Aim {
        text: "hand-off at 64 beside raw statements driven in the same way",
        measure: Measure::HandOffBesideRaw { clients: 64 },
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside the locks of the crate sqlx",
        measure: Measure::HandOffBesidePeer { clients: 16, peer: SQLX },
        at_most: None,
    },
    Aim {
        text: "hand-off at 16 beside the crate distributed-lock",
        measure: Measure::HandOffBesidePeer { clients: 16, peer: DISTRIBUTED_LOCK },
        at_most: None,
    },
    Aim {
        text: "cycle beside the crate distributed-lock",
        measure: Measure::CycleBesideNamed { caller: DISTRIBUTED_LOCK, other_thread: DISTRIBUTED_LOCK },
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
