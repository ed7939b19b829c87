//! What the clients of a turn want.

use std::num::NonZeroU32;

use distlock::status::Mode;

use crate::plan::Workload;

#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    /// A short name without spaces, the same in every report.
    pub(crate) id: String,
    pub(crate) workload: Workload,
    /// With *tasks*, the tasks of one client.
    pub(crate) clients: usize,
    /// The modes of its locks.
    pub(crate) modes: Vec<Mode>,
    /// How many turns of a hundred want the second of the modes.
    writes: usize,
}

const PERMITS: Mode = Mode::Permits { take: NonZeroU32::MIN, of: NonZeroU32::new(4).unwrap() };

impl Scenario {
    fn of(id: impl Into<String>, workload: Workload, clients: usize) -> Self {
        Self { id: id.into(), workload, clients, modes: vec![Mode::Exclusive], writes: 0 }
    }

    /// One client, without competition.
    pub(crate) fn cycle() -> Self {
        Self::of("cycle", Workload::Cycle, 1)
    }

    /// The distance to the server, in the rounds of the hand-offs.
    pub(crate) fn echo() -> Self {
        Self::of("echo", Workload::HandOff, 1)
    }

    pub(crate) fn hand_off(clients: usize) -> Self {
        Self::of(format!("handoff-{clients}"), Workload::HandOff, clients)
    }

    pub(crate) fn tasks(most: usize) -> Vec<Self> {
        let named = [("tasks-64", 64), ("tasks-100", 100), ("tasks-most", most)];
        named.map(|(id, tasks)| Self::of(id, Workload::Tasks, tasks)).into()
    }

    pub(crate) fn sharing(most_clients: usize) -> Vec<Self> {
        let both = vec![Mode::Shared, Mode::Exclusive];
        let all = [
            ("lock-1", 1, vec![Mode::Exclusive], 0),
            ("read-1", 1, vec![Mode::Shared], 0),
            ("lock-16", 16, vec![Mode::Exclusive], 0),
            ("read-16", 16, vec![Mode::Shared], 0),
            ("read-64", 64, vec![Mode::Shared], 0),
            ("mixed-95-5", 16, both.clone(), 5),
            ("mixed-50-50", 16, both, 50),
            ("permits-16", 16, vec![PERMITS], 0),
            ("permits-64", 64, vec![PERMITS], 0),
        ];
        let within = all.into_iter().filter(|(_, clients, ..)| *clients <= most_clients);
        let scenario =
            |(id, clients, modes, writes)| Self { modes, writes, ..Self::of(id, Workload::Sharing, clients) };
        within.map(scenario).collect()
    }

    /// With which turn a client begins, so that not all of them write at the same time.
    pub(crate) fn first_turn_of(client: usize) -> usize {
        client * 37
    }

    /// Which of its locks a client wants in this turn: writes are spread evenly among its turns.
    pub(crate) fn lock_of(&self, turn: usize) -> usize {
        usize::from((turn + 1) * self.writes / 100 > turn * self.writes / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_turns_as_many_write_as_it_says() {
        for scenario in Scenario::sharing(64) {
            let first = Scenario::first_turn_of(3);
            let written: usize = (first..first + 100).map(|turn| scenario.lock_of(turn)).sum();
            assert_eq!(written, scenario.writes, "{}", scenario.id);
        }
    }
}
