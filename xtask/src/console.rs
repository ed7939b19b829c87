//! Prints progress to standard error, where cargo writes its own: in colour only on a terminal.

use std::fmt::Display;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

/// What a line is about: its colour and its first word.
type Mark = (&'static str, &'static str);

pub(crate) const PASSED: Mark = ("1;32", "    ok");
/// For a step that has skipped something.
pub(crate) const PARTLY: Mark = ("1;33", "partly");
pub(crate) const FAILED: Mark = ("1;31", "FAILED");
pub(crate) const SKIPPED: Mark = ("1;33", "skipped:");
pub(crate) const ERROR: Mark = ("1;31", "error:");
pub(crate) const DETAIL: Mark = ("0", "   ");

const CLEAR_LINE: &str = "\r\x1b[K";

/// No terminal is expected to be narrower, and a line that was wrapped could not be cleared.
const STATUS_WIDTH: usize = 78;

pub(crate) fn say(mark: Mark, what: impl Display) {
    show_now("");
    eprintln!("{} {what}", painted(mark, is_coloured()));
}

pub(crate) fn heading(step: &str, summary: &str) {
    eprintln!("\n{} {summary}", painted(("1", &format!("==> {step}:")), is_coloured()));
}

/// On a terminal, shows the current activity in the last line, until something else is printed.
pub(crate) fn show_now(what: &str) {
    if stderr().is_terminal() {
        eprint!("{CLEAR_LINE}{}", what.chars().take(STATUS_WIDTH).collect::<String>());
    }
}

/// Prints the current activity for a reader of a log, who does not see the last line change.
pub(crate) fn show_still(what: &str) {
    if !stderr().is_terminal() {
        say(DETAIL, what);
    }
}

fn is_coloured() -> bool {
    stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn painted((colour, text): (&str, &str), is_coloured: bool) -> String {
    if is_coloured { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
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

    #[test]
    fn colours_are_left_out_without_a_terminal() {
        assert_eq!(painted(("1;31", "x"), false), "x");
        assert_eq!(painted(("1;31", "x"), true), "\x1b[1;31mx\x1b[0m");
    }
}
