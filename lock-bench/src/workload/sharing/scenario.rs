//! What the clients of a turn want.

use std::num::NonZeroU32;

use distlock::status::Mode;

use crate::plan::Plan;

#[derive(Debug)]
pub(crate) struct Scenario {
    /// A short name without spaces, the same in every report.
    pub(crate) id: &'static str,
    pub(crate) clients: usize,
    wants: Wants,
}

#[derive(Debug)]
enum Wants {
    Lock,
    Read,
    /// To read, and so many times in a hundred to write.
    Both {
        writes: usize,
    },
    /// One permit of so many.
    Permit {
        of: NonZeroU32,
    },
}

const PERMITS: NonZeroU32 = NonZeroU32::new(4).unwrap();

impl Scenario {
    pub(crate) const ALL: [Self; 9] = [
        Self::of("lock-1", 1, Wants::Lock),
        Self::of("read-1", 1, Wants::Read),
        Self::of("lock-16", 16, Wants::Lock),
        Self::of("read-16", 16, Wants::Read),
        Self::of("read-64", 64, Wants::Read),
        Self::of("mixed-95-5", 16, Wants::Both { writes: 5 }),
        Self::of("mixed-50-50", 16, Wants::Both { writes: 50 }),
        Self::of("permits-16", 16, Wants::Permit { of: PERMITS }),
        Self::of("permits-64", 64, Wants::Permit { of: PERMITS }),
    ];

    const fn of(id: &'static str, clients: usize, wants: Wants) -> Self {
        Self { id, clients, wants }
    }

    /// The modes of its locks.
    pub(crate) fn modes(&self) -> Vec<Mode> {
        match self.wants {
            Wants::Lock => vec![Mode::Exclusive],
            Wants::Read => vec![Mode::Shared],
            Wants::Both { .. } => vec![Mode::Shared, Mode::Exclusive],
            Wants::Permit { of } => vec![Mode::Permits { take: NonZeroU32::MIN, of }],
        }
    }

    /// How many turns of a hundred want the second of the modes.
    pub(crate) fn writes(&self) -> usize {
        match self.wants {
            Wants::Both { writes } => writes,
            Wants::Lock | Wants::Read | Wants::Permit { .. } => 0,
        }
    }

    /// How many clients there are: in a run with fewer hand-offs fewer than otherwise.
    pub(super) fn clients_of(&self, plan: &Plan) -> usize {
        let most = plan.hand_off.clients.iter().copied().max().unwrap_or(self.clients);
        self.clients.min(most)
    }

    /// With which turn a client begins, so that not all of them write at the same time.
    pub(super) fn first_turn_of(client: usize) -> usize {
        client * 37
    }

    /// Which of its locks a client wants in this turn: writes are spread evenly among its turns.
    pub(super) fn lock_of(&self, turn: usize) -> usize {
        let writes = self.writes();
        usize::from((turn + 1) * writes / 100 > turn * writes / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_turns_as_many_write_as_it_says() {
        for (id, writes) in [("mixed-95-5", 5), ("mixed-50-50", 50), ("read-16", 0)] {
            let scenario = Scenario::ALL.iter().find(|scenario| scenario.id == id).unwrap();
            for client in 0..3 {
                let first = Scenario::first_turn_of(client);
                let written: usize = (first..first + 100).map(|turn| scenario.lock_of(turn)).sum();
                assert_eq!(written, writes, "{id}");
            }
        }
    }
}
