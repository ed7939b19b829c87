//! The measurements of one turn of a contender, wherever its clients run.

use std::time::Duration;

use crate::samples::Samples;

/// Of one client without competition.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cycles {
    pub(crate) acquire: Samples,
    pub(crate) release: Samples,
    pub(crate) cycle: Samples,
    /// The processor time of the program that contains the client.
    pub(crate) processor: Duration,
}

impl Cycles {
    pub(super) fn add(&mut self, turn: Self) {
        let Self { acquire, release, cycle, processor } = turn;
        self.acquire.append(acquire);
        self.release.append(release);
        self.cycle.append(cycle);
        self.processor += processor;
    }
}

/// Of many clients that hand on one lock.
#[derive(Debug, Clone, Default)]
pub(crate) struct HandOffs {
    pub(crate) times: Samples,
    /// Of each client, fewest first.
    pub(crate) grants: Vec<u64>,
    pub(crate) sections: u64,
    /// Since the clients began, including before and after the measurement.
    pub(crate) all_sections: u64,
    pub(crate) same_again: u64,
    pub(crate) longest_wait: Duration,
    pub(crate) length: Duration,
    /// The processor time of the program that contains the clients.
    pub(crate) processor: Duration,
}

impl HandOffs {
    /// Adds everything except the grants, which are reported for each turn.
    pub(super) fn add(&mut self, turn: Self) {
        let Self { times, grants: _, sections, all_sections, same_again, longest_wait, length, processor } =
            turn;
        self.times.append(times);
        self.sections += sections;
        self.all_sections += all_sections;
        self.same_again += same_again;
        self.longest_wait = self.longest_wait.max(longest_wait);
        self.length += length;
        self.processor += processor;
    }
}

/// Of many clients that read and write, or take permits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shares {
    /// The times from the call of acquire until it has returned.
    pub(crate) waits: Samples,
    /// Of each client.
    pub(crate) grants: Vec<u64>,
    pub(crate) length: Duration,
}
