//! The verdict on a test program, from its output.

use std::fmt;

use crate::failure::Failure;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Passed(Counts),
    /// What the program has done, as in "ended with exit status: 101".
    Failed(String),
}

/// How many tests there were.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counts {
    passed: u64,
    ignored: u64,
}

impl Verdict {
    /// Judges a program by its outcome and its output. A program that ends successfully without printing a result was
    /// cut off.
    pub(super) fn of(outcome: &Result<(), Failure>, output: &str) -> Self {
        match (outcome, Counts::in_output(output)) {
            (Ok(()), Some(counts)) => Self::Passed(counts),
            (Ok(()), None) => Self::Failed("ended well, but said no result".to_owned()),
            (Err(failure), _) => Self::Failed(failure.to_string()),
        }
    }
}

/// Returns the output of a program without the lines about tests that passed or were ignored: some programs have hundreds of
/// them, and what failed shall not be below what a reader is shown.
pub(super) fn without_passed(output: &str) -> String {
    let has_passed =
        |line: &str| line.starts_with("test ") && (line.ends_with("... ok") || line.contains("... ignored"));
    let lines = output.lines().filter(|line| !has_passed(line));
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

impl Counts {
    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.ignored += other.ignored;
    }

    /// Returns the sum of all lines such as `test result: ok. 6 passed; 0 failed; 1 ignored; …`, if there are any.
    fn in_output(output: &str) -> Option<Self> {
        let mut results =
            output.lines().filter_map(|line| line.trim().strip_prefix("test result: ok.")).peekable();
        results.peek()?;
        let mut sum = Self::default();
        for result in results {
            let number = |what: &str| {
                let part = result.split(';').find_map(|part| part.trim().strip_suffix(what));
                part.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
            };
            sum.add(&Self { passed: number(" passed"), ignored: number(" ignored") });
        }
        Some(sum)
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed", self.passed)?;
        if self.ignored > 0 { write!(formatter, ", {} ignored", self.ignored) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let output = "running 6 tests\n\ntest result: ok. 6 passed; 0 failed; 1 ignored; 0 measured; 15 filtered out; finished in 0.00s\n\n\
                      test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n";
        let verdict = Verdict::of(&Ok(()), output);
        assert_eq!(verdict, Verdict::Passed(Counts { passed: 8, ignored: 1 }));
        assert_eq!(Counts { passed: 8, ignored: 1 }.to_string(), "8 passed, 1 ignored");
        assert_eq!(Counts { passed: 8, ignored: 0 }.to_string(), "8 passed");
    }

    #[test]
    fn what_failed_stands_first() {
        let output = "running 3 tests\ntest a ... ok\ntest b ... FAILED\ntest c   ... ignored, slow\n\nfailures:\n\n---- b ----\ntest the waters\n\n";
        let shown = "running 3 tests\ntest b ... FAILED\n\nfailures:\n\n---- b ----\ntest the waters";
        assert_eq!(without_passed(output), shown);
    }

    #[test]
    fn only_a_good_end_with_a_result_is_a_pass() {
        let good = "test result: ok. 1 passed; 0 failed; 0 ignored";
        assert!(matches!(Verdict::of(&Err(Failure::new("ended with 1")), good), Verdict::Failed(_)));
        assert!(matches!(Verdict::of(&Ok(()), "running 1 test"), Verdict::Failed(_)));
        assert!(matches!(Verdict::of(&Ok(()), ""), Verdict::Failed(_)));
    }
}
