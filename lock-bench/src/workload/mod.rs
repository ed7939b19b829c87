//! The workloads, and their results.

pub(crate) mod cycle;
pub(crate) mod exec;
pub(crate) mod hand_off;
pub(crate) mod many;
pub(crate) mod requests;
pub(crate) mod sharing;
pub(crate) mod tasks;
pub(crate) mod waiting;
pub(crate) mod worker;

mod child;
mod clients;
mod counted;
mod echo;
mod turns;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::Workload;
use crate::runtimes::RuntimeKind;
use crate::samples::Summary;

pub(crate) use sharing::Scenario;
pub(crate) use turns::{Cycles, HandOffs, Shares};

/// The distance to the server, measured in the rounds of a workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EchoRow {
    pub(crate) echo: String,
    pub(crate) workload: Workload,
    pub(crate) runtime: RuntimeKind,
    pub(crate) times: Option<Summary>,
    /// The median of each turn, in microseconds.
    pub(crate) rounds: Vec<f64>,
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CycleRow {
    pub(crate) contender: String,
    pub(crate) runtime: RuntimeKind,
    pub(crate) cycle: Option<Summary>,
    pub(crate) acquire: Option<Summary>,
    pub(crate) release: Option<Summary>,
    /// The median cycle of each turn, in microseconds.
    pub(crate) rounds: Vec<f64>,
    pub(crate) client_commands_per_cycle: Option<f64>,
    /// The time that the server needed for the commands of one cycle.
    pub(crate) server_microseconds_per_cycle: Option<f64>,
    /// The processor time of the client and of the server for one cycle, in microseconds.
    pub(crate) client_processor_microseconds: Option<f64>,
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct HandOffRow {
    pub(crate) contender: String,
    pub(crate) runtime: RuntimeKind,
    pub(crate) clients: usize,
    /// The times from the call of release until the next acquisition, by another client, has returned.
    pub(crate) times: Option<Summary>,
    /// The median of each round, in microseconds.
    pub(crate) rounds: Vec<f64>,
    /// The median of each echo after each of the rounds.
    pub(crate) echo_rounds: BTreeMap<String, Vec<f64>>,
    pub(crate) sections: u64,
    pub(crate) sections_per_second: f64,
    /// The share of the sections in which the lock went to the client that had just released it.
    pub(crate) same_client_again: f64,
    pub(crate) longest_wait_ms: f64,
    pub(crate) client_commands_per_section: Option<f64>,
    pub(crate) server_microseconds_per_section: Option<f64>,
    pub(crate) client_processor_microseconds: Option<f64>,
    pub(crate) fairness: Vec<Grants>,
    pub(crate) trouble: Option<String>,
}

/// How often each client had the lock in one round, fewest first.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Grants(pub(crate) Vec<u64>);

impl Grants {
    /// Returns the ratio of the most to the fewest; infinite if one client had none.
    pub(crate) fn spread(&self) -> Option<f64> {
        let (fewest, most) = (*self.0.first()?, *self.0.last()?);
        #[expect(clippy::cast_precision_loss, reason = "a count of seconds of work")]
        let spread = most as f64 / fewest as f64;
        Some(if fewest == 0 { f64::INFINITY } else { spread })
    }
}

/// The requests of a contender, counted in separate turns that are not timed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RequestsRow {
    pub(crate) contender: String,
    pub(crate) workload: Workload,
    pub(crate) clients: usize,
    pub(crate) sections: u64,
    /// The number of requests of each kind, per section.
    pub(crate) per_section: BTreeMap<String, f64>,
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ManyRow {
    pub(crate) contender: String,
    pub(crate) holds: usize,
    pub(crate) acquire_seconds: f64,
    pub(crate) bytes_per_hold: Option<f64>,
    /// The number of requests for all holds per renewal interval, without the pings that a connection sends anyway.
    pub(crate) commands_per_interval: f64,
    pub(crate) connections: u64,
    pub(crate) load: Load,
    pub(crate) trouble: Option<String>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WaitingRow {
    pub(crate) contender: String,
    pub(crate) waiters: usize,
    pub(crate) connections: u64,
    pub(crate) commands_per_waiter_and_interval: f64,
    /// The growth of the server's memory since before the first contender; `None` if it is not known.
    pub(crate) server_bytes_per_waiter: Option<f64>,
    pub(crate) load: Load,
    pub(crate) trouble: Option<String>,
}

/// Clients that read and write, or take permits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SharingRow {
    pub(crate) contender: String,
    pub(crate) runtime: RuntimeKind,
    /// What they want.
    pub(crate) scenario: String,
    pub(crate) clients: usize,
    /// The times from the call of acquire until it has returned.
    pub(crate) waits: Option<Summary>,
    /// The sections per second of each round.
    pub(crate) rounds: Vec<f64>,
    pub(crate) sections: u64,
    pub(crate) fairness: Vec<Grants>,
    pub(crate) trouble: Option<String>,
}

/// A command that runs to its end, again and again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExecRow {
    pub(crate) command: String,
    pub(crate) times: Option<Summary>,
    /// The median of each round, in microseconds.
    pub(crate) rounds: Vec<f64>,
    pub(crate) trouble: Option<String>,
}

/// The load while nothing changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) seconds: f64,
    pub(crate) client_commands_per_second: f64,
    /// Each command of clients and scripts, most frequent first.
    pub(crate) commands_per_second: Vec<(String, f64)>,
    /// In percent of one core.
    pub(crate) client_processor_percent: f64,
    pub(crate) server_processor_percent: f64,
}
