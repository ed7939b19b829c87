//! Synchronisation points: where tests stop a process, to force what otherwise happens once in a million runs.

/// A critical point of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// The gate's file is open, but not locked yet.
    BeforeGate,
    /// This process is in the gate.
    InGate,
    /// The process has computed a number, but not made the ticket yet.
    BeforeTicket,
    /// The file of a waiter or of a share is made, but not locked yet.
    BeforeMember,
    /// There is room for a share, but its file has not been made yet.
    BeforeShare,
    /// The file of a lock is open, but not locked yet.
    BeforeHeld,
    /// This process has the lock, but has not written its record yet.
    BeforeRecord,
    /// A task has checked, but does not watch yet.
    BeforeWatch,
    /// A task watches and has checked again, but does not sleep yet.
    BeforeSleep,
    /// This is the holder to break, but nothing has been done yet.
    BeforeBreak,
    /// The file that a dead holder left is known to be free, but has not been removed yet.
    BeforeRemoval,
}

#[cfg(not(all(test, target_os = "linux")))]
pub(crate) use absent::{reach, second_chances};
#[cfg(all(test, target_os = "linux"))]
pub(crate) use forced::{NO_SECOND_CHANCES, STOP_AT, reach, second_chances};

#[cfg(not(all(test, target_os = "linux")))]
mod absent {
    #[inline]
    pub(crate) fn reach(_point: super::Point) {}

    /// Whether tasks check again without an event.
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

    /// Names the point at which the process stops itself, as SIGSTOP would; `Point:3` means the third time that the process
    /// gets there.
    pub(crate) const STOP_AT: &str = "DISTLOCK_TEST_STOP_AT";

    /// If set, tasks do not check without an event, because that would hide a missing event.
    pub(crate) const NO_SECOND_CHANCES: &str = "DISTLOCK_TEST_NO_SECOND_CHANCES";

    pub(crate) fn reach(point: Point) {
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
            // Stops this thread too, which therefore goes no further.
            raise(Signal::SIGSTOP).unwrap();
        }
    }

    pub(crate) fn second_chances() -> bool {
        static CHANCES: OnceLock<bool> = OnceLock::new();
        *CHANCES.get_or_init(|| std::env::var_os(NO_SECOND_CHANCES).is_none())
    }
}
