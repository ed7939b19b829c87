//! Workloads that the Java process runs and times itself, so that the times include no message between it and the
//! test.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::CuratorPeer;
use crate::failure::Outcome;

/// One client acquires and releases a lock that no other client wants.
#[derive(Debug, Clone, Copy)]
pub struct CuratorCycleTurn {
    /// The number of unmeasured cycles before the turn.
    pub warm_up: usize,
    /// The turn ends after this time.
    pub length: Duration,
    /// The turn ends after this many cycles.
    pub most: usize,
}

/// The measurements of a turn of cycles.
#[derive(Debug, Clone, Deserialize)]
pub struct CuratorCycles {
    /// How long each acquisition took.
    #[serde(deserialize_with = "durations")]
    pub acquire: Vec<Duration>,
    /// How long each release took, in the same order.
    #[serde(deserialize_with = "durations")]
    pub release: Vec<Duration>,
    /// The processor time of the Java process.
    #[serde(deserialize_with = "duration")]
    pub processor: Duration,
}

/// Many clients, each with a session of its own, contend for one lock.
#[derive(Debug, Clone, Copy)]
pub struct CuratorHandOffTurn {
    /// The number of clients.
    pub clients: usize,
    /// The turn begins when every client has had the lock twice, or after this time.
    pub warm_up: Duration,
    /// How long the turn is.
    pub length: Duration,
    /// How long a client holds the lock.
    pub hold: Duration,
    /// How long a client pauses before it contends for the lock again.
    pub think: Duration,
}

/// The measurements of a turn of hand-offs.
#[derive(Debug, Clone, Deserialize)]
pub struct CuratorHandOffs {
    /// The times from the call of release until the next acquisition, by another client, has returned.
    #[serde(deserialize_with = "durations")]
    pub times: Vec<Duration>,
    /// How often each client had the lock.
    pub grants: Vec<u64>,
    /// How often the lock was acquired since the clients began, including before and after the turn.
    pub all_sections: u64,
    /// How often the lock went to the client that had just released it.
    pub same_again: u64,
    /// The longest wait, including waits that were not over at the end.
    #[serde(deserialize_with = "duration")]
    pub longest_wait: Duration,
    /// How long the turn really took.
    #[serde(deserialize_with = "duration")]
    pub length: Duration,
    /// The processor time of the Java process.
    #[serde(deserialize_with = "duration")]
    pub processor: Duration,
}

/// Many clients, each with a session of its own, that read and write, or take permits.
#[derive(Debug, Clone, Copy)]
pub struct CuratorShareTurn<'a> {
    /// The number of clients.
    pub clients: usize,
    /// What they want: `mutex`, `read`, `write`, or how many permits the semaphore has of which each wants one.
    pub kinds: &'a [&'a str],
    /// How many turns of a hundred want the second of the kinds.
    pub writes: usize,
    /// The turn begins when there have been twice as many sections as clients, or after this time.
    pub warm_up: Duration,
    /// How long the turn is.
    pub length: Duration,
    /// How long a client holds what it has got.
    pub hold: Duration,
}

/// The measurements of a turn of clients that share.
#[derive(Debug, Clone, Deserialize)]
pub struct CuratorShares {
    /// The times from the call of acquire until it has returned.
    #[serde(deserialize_with = "durations")]
    pub waits: Vec<Duration>,
    /// How often each client had what it wants.
    pub grants: Vec<u64>,
    /// How long the turn really took.
    #[serde(deserialize_with = "duration")]
    pub length: Duration,
}

impl CuratorPeer {
    /// Makes its client acquire and release the lock at `path`.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the turn.
    pub async fn cycles(&self, path: &str, turn: &CuratorCycleTurn) -> Outcome<CuratorCycles> {
        let numbers = [turn.warm_up.to_string(), turn.length.as_millis().to_string(), turn.most.to_string()];
        let [warm_up, length, most] = numbers.each_ref().map(String::as_str);
        self.ask(&["cycle", path, warm_up, length, most]).await
    }

    /// Makes new clients hand the lock at `path` to each other, and closes their sessions afterwards.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the turn.
    pub async fn hand_offs(&self, path: &str, turn: &CuratorHandOffTurn) -> Outcome<CuratorHandOffs> {
        let numbers = [
            turn.clients.to_string(),
            turn.warm_up.as_millis().to_string(),
            turn.length.as_millis().to_string(),
            turn.hold.as_nanos().to_string(),
            turn.think.as_nanos().to_string(),
        ];
        let [clients, warm_up, length, hold, think] = numbers.each_ref().map(String::as_str);
        self.ask(&["hand-off", path, clients, warm_up, length, hold, think]).await
    }

    /// Makes new clients share the locks at `path`, and closes their sessions afterwards.
    ///
    /// # Errors
    /// What Curator throws; or the process has ended.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the turn.
    pub async fn shares(&self, path: &str, turn: &CuratorShareTurn<'_>) -> Outcome<CuratorShares> {
        let numbers = [
            turn.clients.to_string(),
            turn.writes.to_string(),
            turn.warm_up.as_millis().to_string(),
            turn.length.as_millis().to_string(),
            turn.hold.as_nanos().to_string(),
        ];
        let [clients, writes, warm_up, length, hold] = numbers.each_ref().map(String::as_str);
        self.ask(&["share", path, clients, &turn.kinds.join(","), writes, warm_up, length, hold]).await
    }
}

/// The Java program reports all times in nanoseconds.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    u64::deserialize(deserializer).map(Duration::from_nanos)
}

fn durations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Duration>, D::Error> {
    Ok(Vec::<u64>::deserialize(deserializer)?.into_iter().map(Duration::from_nanos).collect())
}
