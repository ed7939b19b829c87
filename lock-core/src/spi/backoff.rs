//! What everybody needs who talks to a server that may be away.

use std::time::Duration;

/// Growing pauses between attempts, with jitter, so that clients that lost a server together do not return together.
///
/// Each pause is drawn evenly from between half and the whole of a bound that doubles from `first` to `most`.
#[derive(Debug, Clone)]
pub struct Backoff {
    bound: Duration,
    most: Duration,
    /// Drawn when the first pause is: most operations need none.
    random: Option<u64>,
}

impl Backoff {
    /// Pauses from `first` up to `most`.
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { bound: first, most, random: None }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        let bound = self.bound.min(self.most);
        self.bound = bound.saturating_mul(2);
        bound / 2 + bound.mul_f64(self.next_fraction() / 2.0)
    }

    /// An even fraction from 0 to 1, by xorshift64 (Marsaglia, "Xorshift RNGs", 2003).
    fn next_fraction(&mut self) -> f64 {
        // Jitter need not be unpredictable: without random numbers from the system it is only less spread.
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
