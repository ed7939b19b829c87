//! The answers to releases, cancels and downgrades that are due: what a request waits for that excludes what is being undone.

use super::claims::Number;
use crate::spi::Mode;

#[derive(Default)]
pub(super) struct Answers {
    shared: Due,
    /// Those that are not about what is shared.
    excluding: Due,
    /// The last release of an exclusive lease.
    pub(super) of_release: Option<Number>,
    /// The attempt, or lease, that was sent behind it: its request does not get the lease before the answer.
    pub(super) follower: Option<Number>,
}

#[derive(Default)]
pub(super) struct Due {
    pub(super) count: u32,
    /// How many of them are due for longer than they should.
    pub(super) overdue: u32,
}

impl Answers {
    /// The counts of those that are about something in this mode.
    pub(super) fn of(&mut self, mode: Mode) -> &mut Due {
        if mode == Mode::Shared { &mut self.shared } else { &mut self.excluding }
    }

    /// Counts those that a request in this mode waits for.
    fn before(&self, mode: Mode, part: impl Fn(&Due) -> u32) -> u32 {
        part(&self.excluding) + if mode == Mode::Shared { 0 } else { part(&self.shared) }
    }

    pub(super) fn count_before(&self, mode: Mode) -> u32 {
        self.before(mode, |due| due.count)
    }

    pub(super) fn any_is_late_before(&self, mode: Mode) -> bool {
        self.before(mode, |due| due.overdue) > 0
    }

    /// Whether this lease, or attempt, has been sent behind a release without an answer.
    pub(super) fn are_before(&self, number: Number) -> bool {
        self.of_release.is_some() && self.follower == Some(number)
    }
}
