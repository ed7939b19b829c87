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
    /// Drawn with the first pause: most operations need no pause.
    random: Option<u64>,
}

impl Backoff {
    /// Creates pauses from `first` up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { bound: first, most, random: None }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let bound = self.bound.min(self.most);
        self.bound = bound.saturating_mul(2);
        bound / 2 + bound.mul_f64(self.next_fraction() / 2.0)
    }

    /// Returns an evenly distributed fraction from 0 to 1, by xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
    fn next_fraction(&mut self) -> f64 {
        // Jitter need not be unpredictable. Without random numbers from the system the pauses are only less spread.
        let mut random = self.random.unwrap_or_else(|| getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15) | 1);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random = Some(random);
        f64::from(u32::try_from(random >> 32).unwrap_or_default()) / f64::from(u32::MAX)
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
