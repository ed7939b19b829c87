//! How much a run checks.

/// A tier of the checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// What proves on any machine that all of it works.
    Default,
    /// Everything: also what takes long and seldom fails alone.
    All,
}

impl Tier {
    /// The variable that tells the test programs that they run in [`Tier::All`].
    pub(crate) const VARIABLE: (&str, &str) = ("DISTLOCK_TESTS", "all");

    /// The options of cargo for the crates of this tier. What only measures, and its dependencies, are in the wider one.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Self::Default => &["--workspace", "--exclude", "lock-bench"],
            Self::All => &["--workspace"],
        }
    }
}
