//! The answers to releases, cancels and downgrades that are due: what a request waits for that excludes what is being undone.

use super::asks::Number;
use crate::spi::Mode;

#[derive(Default)]
pub(super) struct Answers {
    all: Due,
    /// Those that are not about what is shared.
    excluding: Due,
    /// The last release of an exclusive lease.
    pub(super) of_release: Option<Number>,
    /// The attempt, or lease, that was sent behind it: its request does not get the lease before the answer.
    pub(super) follower: Option<Number>,
}

#[derive(Default)]
struct Due {
    count: u32,
    /// How many of them are due for longer than they should.
    overdue: u32,
}

impl Answers {
    /// Those that a request in this mode waits for.
    fn before(&self, mode: Mode) -> &Due {
        if mode == Mode::Shared { &self.excluding } else { &self.all }
    }

    /// The counts of those that are about something in this mode.
    fn of(&mut self, mode: Mode) -> impl Iterator<Item = &mut Due> {
        std::iter::once(&mut self.all).chain((mode != Mode::Shared).then_some(&mut self.excluding))
    }

    pub(super) fn expect(&mut self, mode: Mode) {
        self.of(mode).for_each(|due| due.count += 1);
    }

    pub(super) fn is_late(&mut self, mode: Mode) {
        self.of(mode).for_each(|due| due.overdue += 1);
    }

    pub(super) fn has_come(&mut self, mode: Mode, was_late: bool) {
        for due in self.of(mode) {
            due.count -= 1;
            due.overdue -= u32::from(was_late);
        }
    }

    pub(super) fn count_before(&self, mode: Mode) -> u32 {
        self.before(mode).count
    }

    pub(super) fn any_is_late_before(&self, mode: Mode) -> bool {
        self.before(mode).overdue > 0
    }

    /// Whether this lease, or attempt, has been sent behind a release without an answer.
    pub(super) fn are_before(&self, number: Number) -> bool {
        self.of_release.is_some() && self.follower == Some(number)
    }
}
