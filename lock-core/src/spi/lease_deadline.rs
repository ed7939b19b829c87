//! The deadline of a lease, and how often it is renewed: one formula for all backends, which ask for the interval, and for the core,
//! which computes the deadlines of holds. The SPI is the lowest layer that both know.
//!
//! With `V` the length of the lease at the server and `anchor` the moment **before** the client sent the last
//! acknowledged renewal, the hold is valid until
//!
//! ```text
//! D = anchor + V·(1 − 2ρ) − J − C
//! ```
//!
//! * `ρ` = 1 %: how far the clocks of client and server may drift apart, each way;
//! * `J` = 100 ms: how late the deadline thread may be woken;
//! * `C` = the abort margin: how long the holder needs to stop before another client can have the lock.
//!
//! It is renewed every `H = min(V/4, (V·(1 − 2ρ) − J − C)/3)`. A renewal may take `H`, so a lease has time for a second
//! one after one that was not answered, and without an abort margin for most of a third. A lease that leaves too little
//! time between renewals is refused.

use std::time::Duration;

use crate::runtime::Moment;
use crate::types::{ErrorKind, LockError, Operation};

/// How late a thread or task that waits for a moment may be woken.
pub(crate) const TIMER_SLIP: Duration = Duration::from_millis(100);

/// Twice the drift, as a fraction of the lease: one fiftieth.
const DRIFT_DIVISOR: u32 = 50;

/// More renewals than this in one lease mean that the abort margin leaves too little of the lease.
const MOST_RENEWALS: u32 = 20;

const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);

/// The validity of leases of one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    length: Duration,
    usable: Duration,
}

impl Validity {
    /// The validity of leases of `length` whose holders need `abort_margin` to stop.
    pub(crate) fn new(length: Duration, abort_margin: Duration) -> Result<Self, LockError> {
        let usable = length
            .saturating_sub(length / DRIFT_DIVISOR)
            .saturating_sub(TIMER_SLIP)
            .saturating_sub(abort_margin);
        let validity = Self { length, usable };
        if validity.interval() < SHORTEST_INTERVAL.max(length / MOST_RENEWALS) {
            return Err(too_short(length, abort_margin));
        }
        Ok(validity)
    }

    /// Until when a hold is valid, if its last acknowledged renewal was sent at `anchor`.
    pub(crate) fn deadline(&self, anchor: Moment) -> Moment {
        anchor.plus(self.usable)
    }

    /// The longest time that a lease lasts, at a server whose clock is slow.
    pub(crate) fn length_at_most(&self) -> Duration {
        self.length.saturating_add(self.length / DRIFT_DIVISOR)
    }

    /// How long after `anchor` the next renewal is sent.
    pub(crate) fn interval(&self) -> Duration {
        (self.length / 4).min(self.usable / 3)
    }
}

fn too_short(length: Duration, abort_margin: Duration) -> LockError {
    LockError::new(ErrorKind::InvalidOption, Operation::Configure)
        .because(format!(
            "a lease of {} leaves no time to renew it when the holder needs {} to stop",
            humantime::format_duration(length),
            humantime::format_duration(abort_margin)
        ))
        .remedy("make the lease longer, or the abort margin (for the command: --grace) shorter")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn thirty_seconds_are_renewed_every_seven_and_a_half() {
        let validity = Validity::new(30 * SECOND, Duration::ZERO).unwrap();
        assert_eq!(validity.interval(), Duration::from_millis(7500));
        assert_eq!(validity.deadline(Moment::from_nanoseconds(0)).as_nanoseconds(), 29_300_000_000);
    }

    #[test]
    fn a_margin_that_eats_the_lease_is_refused_and_the_text_says_which_to_change() {
        let error = Validity::new(12 * SECOND, 10 * SECOND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidOption);
        let text = error.to_string();
        assert!(text.contains("12s") && text.contains("10s") && text.contains("--grace"), "{text}");
        assert!(Validity::new(13 * SECOND, 10 * SECOND).is_ok());
    }

    #[test]
    fn a_third_of_any_lease_is_an_acceptable_margin() {
        for milliseconds in 1000..5000 {
            let lease = Duration::from_millis(milliseconds);
            assert!(Validity::new(lease, lease / 3).is_ok(), "{lease:?}");
        }
    }

    proptest! {
        #[test]
        fn the_holder_has_stopped_before_the_server_gives_the_lock_away(
            lease in 1_u64..600_000, margin in 0_u64..600_000, anchor in 0_u64..1 << 60, drift in -100_i64..=100
        ) {
            let lease = Duration::from_millis(lease);
            let margin = Duration::from_millis(margin);
            if let Ok(validity) = Validity::new(lease, margin) {
                let anchor = Moment::from_nanoseconds(anchor);
                // The server starts counting at the anchor at the earliest; its clock may run 1 % fast.
                let length = i128::try_from(lease.as_nanos()).unwrap();
                let given_away = i128::from(anchor.as_nanoseconds()) + length - length * i128::from(drift) / 10_000;
                let stopped = validity.deadline(anchor).plus(TIMER_SLIP + margin);
                prop_assert!(i128::from(stopped.as_nanoseconds()) <= given_away);
                prop_assert!(validity.deadline(anchor) >= anchor.plus(3 * validity.interval()));
            }
        }
    }
}
