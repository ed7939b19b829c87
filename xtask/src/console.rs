//! Prints progress: one line when a step starts, one when it ends, in colour only on a terminal.

use std::io::IsTerminal;
use std::time::Duration;

const BOLD: &str = "1";
const GREEN: &str = "1;32";
const YELLOW: &str = "1;33";
const RED: &str = "1;31";

const CLEAR_LINE: &str = "\r\x1b[K";

/// No terminal is expected to be narrower, and a line that was wrapped could not be cleared.
const STATUS_WIDTH: usize = 78;

/// Writes progress to standard error, where cargo writes its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Console {
    coloured: bool,
    terminal: bool,
}

impl Console {
    pub(crate) fn new() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = std::io::stderr().is_terminal();
        Self { coloured: !refused && terminal, terminal }
    }

    pub(crate) fn heading(self, step: &str, summary: &str) {
        eprintln!("\n{} {summary}", self.paint(BOLD, &format!("==> {step}:")));
    }

    /// On a terminal, shows the current activity in the last line, until something else is printed.
    pub(crate) fn status(self, what: &str) {
        if self.terminal {
            let line: String = what.chars().take(STATUS_WIDTH).collect();
            eprint!("{CLEAR_LINE}{line}");
        }
    }

    /// Prints the current activity for a reader of a log, who does not see the status line.
    pub(crate) fn still(self, what: &str) {
        if !self.terminal {
            Self::detail(what);
        }
    }

    pub(crate) fn passed(self, step: &str, took: Duration) {
        self.status("");
        eprintln!("{} {step} in {}", self.paint(GREEN, "    ok"), readable(took));
    }

    /// Like [`Console::passed`], for a step that has skipped something.
    pub(crate) fn partly(self, step: &str, took: Duration) {
        self.status("");
        eprintln!("{} {step} in {}", self.paint(YELLOW, "partly"), readable(took));
    }

    pub(crate) fn failed(self, step: &str, took: Duration) {
        self.status("");
        eprintln!("{} {step} after {}", self.paint(RED, "FAILED"), readable(took));
    }

    pub(crate) fn skipped(self, what: &str) {
        eprintln!("{} {what}", self.paint(YELLOW, "skipped:"));
    }

    pub(crate) fn error(self, what: &str) {
        eprintln!("{} {what}", self.paint(RED, "error:"));
    }

    pub(crate) fn detail(what: &str) {
        eprintln!("    {what}");
    }

    fn paint(self, colour: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// `0.4 s`, `12.3 s`, `3 min 5 s`.
pub(crate) fn readable(duration: Duration) -> String {
    if duration < Duration::from_secs(60) {
        return format!("{:.1} s", duration.as_secs_f64());
    }
    format!("{} min {} s", duration.as_secs() / 60, duration.as_secs() % 60)
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
        assert_eq!(Console { coloured: false, terminal: false }.paint(RED, "x"), "x");
        assert_eq!(Console { coloured: true, terminal: true }.paint(RED, "x"), "\x1b[1;31mx\x1b[0m");
    }
}
