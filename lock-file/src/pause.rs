//! Points at which tests stop a process, to force what otherwise happens once in a million runs.

/// A critical point of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// The gate's file is open, and not locked yet.
    BeforeGate,
    /// The gate is ours.
    InGate,
    /// A number has been computed, and the ticket with it not yet made.
    BeforeTicket,
    /// The file of a lock is open, and not locked yet.
    BeforeHeld,
    /// The lock is ours, and its file says nothing yet.
    BeforeRecord,
    /// A sleeper has looked, and does not watch yet.
    BeforeWatch,
    /// A sleeper watches and has looked again, and does not sleep yet.
    BeforeSleep,
    /// The holder has been found to be the one to break, and nothing has been done yet.
    BeforeBreak,
    /// What a dead holder left has been found to be free, and has not been removed yet.
    BeforeTidy,
}

#[cfg(not(all(test, target_os = "linux")))]
pub(crate) use absent::{at, second_chances};
#[cfg(all(test, target_os = "linux"))]
pub(crate) use forced::{NO_SECOND_CHANCES, STOP_AT, at, second_chances};

#[cfg(not(all(test, target_os = "linux")))]
mod absent {
    #[inline]
    pub(crate) fn at(_point: super::Point) {}

    /// Whether sleepers look again although they were not told to.
    #[inline]
    pub(crate) fn second_chances() -> bool {
        true
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod forced {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::sys::signal::{Signal, raise};

    use super::Point;

    /// Names the point at which the process stops itself, as SIGSTOP would; `Point:3` is the third time that it gets
    /// there.
    pub(crate) const STOP_AT: &str = "DISTLOCK_TEST_STOP_AT";

    /// Set, it keeps sleepers from looking without being told to, which would hide that they were not told.
    pub(crate) const NO_SECOND_CHANCES: &str = "DISTLOCK_TEST_NO_SECOND_CHANCES";

    pub(crate) fn at(point: Point) {
        static WHERE: OnceLock<Option<(String, usize)>> = OnceLock::new();
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let place = WHERE.get_or_init(|| {
            let text = std::env::var(STOP_AT).ok()?;
            let (name, time) = text.split_once(':').unwrap_or((&text, "1"));
            Some((name.to_owned(), time.parse().unwrap()))
        });
        let Some((_, time)) = place.as_ref().filter(|(name, _)| *name == format!("{point:?}")) else {
            return;
        };
        if TIMES.fetch_add(1, Ordering::SeqCst) + 1 == *time {
            // To this thread, which so does not go a step further.
            raise(Signal::SIGSTOP).unwrap();
        }
    }

    pub(crate) fn second_chances() -> bool {
        static CHANCES: OnceLock<bool> = OnceLock::new();
        *CHANCES.get_or_init(|| std::env::var_os(NO_SECOND_CHANCES).is_none())
    }
}
