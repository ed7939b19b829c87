//! The messages on standard input and output. Times are in nanoseconds.

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Cycles(CycleTurn),
    HandOffs(HandOffTurn),
}

/// One client without competition. The turn ends at the first of its limits.
#[derive(Debug, Deserialize)]
pub(crate) struct CycleTurn {
    pub(crate) name: String,
    pub(crate) warm_up: usize,
    pub(crate) most: usize,
    pub(crate) length: u64,
}

/// Many clients that contend for one lock.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct HandOffTurn {
    pub(crate) name: String,
    pub(crate) clients: usize,
    pub(crate) warm_up: u64,
    pub(crate) length: u64,
    pub(crate) hold: u64,
    pub(crate) think: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer<T> {
    Done(T),
    Failed(String),
}

impl<T: Serialize> Answer<T> {
    pub(crate) fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{{\"failed\":\"{error}\"}}"))
    }
}

impl Answer<()> {
    pub(crate) fn failed(failure: String) -> String {
        Self::Failed(failure).to_line()
    }
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Cycles {
    pub(crate) acquire: Vec<u64>,
    pub(crate) release: Vec<u64>,
    pub(crate) processor: u64,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct HandOffs {
    pub(crate) times: Vec<u64>,
    /// Of each client.
    pub(crate) grants: Vec<u64>,
    pub(crate) all_sections: u64,
    pub(crate) same_again: u64,
    pub(crate) longest_wait: u64,
    pub(crate) length: u64,
    pub(crate) processor: u64,
}
