//! Pauses between attempts, for clients of a server that may be unreachable.

use std::time::Duration;

/// Increasing pauses between attempts, with jitter, so that clients that lost a server at the same time do not all
/// return at the same time.
///
/// Each pause is chosen evenly from between half and the whole of a bound, which doubles from `first` to `most`.
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::Backoff;
///
/// let mut pauses = Backoff::new(Duration::from_millis(10), Duration::from_secs(1));
/// assert!(pauses.next_pause() <= Duration::from_millis(10));
/// assert!(pauses.next_pause() <= Duration::from_millis(20)); // and so on, up to a second
/// ```
#[derive(Debug, Clone)]
pub struct Backoff {
    bound: Duration,
    most: Duration,
}

impl Backoff {
    /// Creates pauses from `first` up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { bound: first, most }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let bound = self.bound.min(self.most);
        self.bound = bound.saturating_mul(2);
        // Without random numbers from the system the pauses are only not spread.
        let fraction = f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        bound / 2 + bound.mul_f64(fraction / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_never_fall_below_half() {
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(50));
        for bound in [10, 20, 40, 50, 50, 50] {
            let pause = backoff.next_pause();
            let bound = Duration::from_millis(bound);
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
        }
    }
}
