//! How much a run of the tests checks.

/// A tier of the tests, by the variable `DISTLOCK_TESTS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// What proves that all of it works: contests with fewer rounds, and of a second way to run a backend only the cases
    /// that can see the difference.
    Default,
    /// Every case, with every round. The variable's value is `all`.
    All,
}

impl Tier {
    /// Returns the tier of this process.
    pub fn of_this_run() -> Self {
        let all = std::env::var_os("DISTLOCK_TESTS").is_some_and(|value| value == "all");
        if all { Self::All } else { Self::Default }
    }

    /// Returns how often to repeat a step, where `many` times are enough to see it fail. The seeded defects are found
    /// in either tier.
    pub(crate) fn rounds(self, many: u32) -> u32 {
        match self {
            Self::Default => many.div_ceil(5),
            Self::All => many,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_has_a_fifth_of_the_rounds_and_never_none() {
        assert_eq!((Tier::Default.rounds(200), Tier::Default.rounds(1)), (40, 1));
        assert_eq!(Tier::All.rounds(200), 200);
    }
}
