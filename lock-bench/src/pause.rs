//! Random pauses for contenders that poll.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns a random pause of up to `longest`.
pub(crate) fn random(longest: Duration) -> Duration {
    // A new hasher has new keys each time, which is random enough for a pause.
    let random = RandomState::new().hash_one(0_u8) >> 11;
    #[expect(clippy::cast_precision_loss, reason = "53 bits are left, which is what a float holds")]
    let share = random as f64 / (1_u64 << 53) as f64;
    longest.mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_over_the_whole_range() {
        let longest = Duration::from_millis(100);
        let pauses: Vec<_> = (0..1000).map(|_| random(longest)).collect();
        assert!(pauses.iter().all(|pause| *pause <= longest));
        assert!(pauses.iter().any(|pause| *pause < longest / 4));
        assert!(pauses.iter().any(|pause| *pause > longest * 3 / 4));
    }
}
