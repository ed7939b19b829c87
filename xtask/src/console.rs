//! Prints progress to standard error, where cargo writes its own: in colour only on a terminal.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// What a line is about: its colour and its first word.
type Mark<'a> = (&'a str, &'a str);

pub(crate) const PASSED: Mark<'_> = ("1;32", "    ok");
/// For a step that has skipped something.
pub(crate) const PARTLY: Mark<'_> = ("1;33", "partly");
pub(crate) const FAILED: Mark<'_> = ("1;31", "FAILED");
pub(crate) const SKIPPED: Mark<'_> = ("1;33", "skipped:");
pub(crate) const ERROR: Mark<'_> = ("1;31", "error:");
pub(crate) const DETAIL: Mark<'_> = ("0", "   ");

pub(crate) fn say((colour, word): Mark<'_>, what: impl Display) {
    if stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) {
        eprintln!("\x1b[{colour}m{word}\x1b[0m {what}");
    } else {
        eprintln!("{word} {what}");
    }
}

/// `0.4 s`, `12.3 s`, `3 min 5 s`.
pub(crate) fn readable(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        seconds => format!("{} min {} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_readable() {
        assert_eq!(readable(Duration::from_millis(420)), "0.4 s");
        assert_eq!(readable(Duration::from_millis(12_345)), "12.3 s");
        assert_eq!(readable(Duration::from_secs(185)), "3 min 5 s");
    }
}
