//! Points at which tests stop a process, to force what otherwise happens once in a million runs.

/// A critical point of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// The gate is ours.
    InGate,
    /// A number has been computed, and the ticket with it not yet made.
    BeforeTicket,
    /// The lock is ours, and its file says nothing yet.
    BeforeRecord,
    /// A sleeper has looked, and does not watch yet.
    BeforeWatch,
    /// A sleeper watches and has looked again, and does not sleep yet.
    BeforeSleep,
    /// The holder has been found to be the one to break, and nothing has been done yet.
    BeforeBreak,
}

/// Does nothing, outside tests.
#[cfg(not(test))]
#[inline]
pub(crate) fn at(_point: Point) {}

#[cfg(test)]
pub(crate) use forced::{VARIABLE, at};

#[cfg(test)]
mod forced {
    use std::sync::{Once, OnceLock};

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    /// Names the point at which the process stops itself, as SIGSTOP would; once.
    pub(crate) const VARIABLE: &str = "DISTLOCK_TEST_STOP_AT";

    pub(crate) fn at(point: Point) {
        static WHERE: OnceLock<Option<String>> = OnceLock::new();
        static DONE: Once = Once::new();
        let place = WHERE.get_or_init(|| std::env::var(VARIABLE).ok());
        if place.as_deref() == Some(&format!("{point:?}")) {
            // To this thread, which so does not go a step further.
            DONE.call_once(|| raise(Signal::SIGSTOP).unwrap());
        }
    }
}
