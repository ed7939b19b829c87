//! Prints on standard error what is being measured: one line that changes on a terminal, elsewhere one line for each
//! part.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a line is printed if it is not a terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) struct Progress(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    output: Output,
    begun: Instant,
    last: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Output {
    Terminal,
    Log,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let output = if stderr().is_terminal() { Output::Terminal } else { Output::Log };
        Self(Arc::new(Mutex::new(State { output, begun: Instant::now(), last: None })))
    }

    /// A part of a workload begins.
    pub(crate) fn step(&self, text: &str) {
        self.write(text, false);
    }

    /// A workload begins.
    pub(crate) fn part(&self, text: &str) {
        self.write(text, true);
    }

    /// Clears the line on the terminal.
    pub(crate) fn finish(&self) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.output == Output::Terminal {
            // If standard error cannot be written to, there is no way to report it.
            let _ = write!(stderr(), "\r\x1b[2K");
        }
    }

    fn write(&self, text: &str, always: bool) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = state.begun.elapsed().as_secs();
        let due = state.last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        let written = match state.output {
            Output::Terminal => write!(stderr(), "\r\x1b[2K[{seconds:>3} s] {text}"),
            Output::Log if always || due => writeln!(stderr(), "[{seconds:>3} s] {text}"),
            Output::Log => return,
        };
        drop(written);
        state.last = Some(Instant::now());
    }
}
