//! Hash maps whose keys are numbers that this program or its server gives out. None is chosen so that they collide, so
//! they need no hash that withstands that.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

pub(crate) type NumberHashes = BuildHasherDefault<NumberHasher>;

pub(crate) type NumberMap<K, V> = HashMap<K, V, NumberHashes>;

#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

/// Odd, and its bits are as irregular as those of the golden ratio, from which it is.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    /// A map takes the lowest bits and the highest ones. The lowest of a product depend on few bits of its factors.
    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 32)).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, RandomState};

    use super::*;

    /// How many places of a table of this size its keys have.
    fn places(build: &impl BuildHasher, shift: u32) -> usize {
        const SIZE: u64 = 1024;
        (0..SIZE).map(|number| build.hash_one(number << shift) % SIZE).collect::<HashSet<_>>().len()
    }

    #[test]
    fn keys_that_follow_each_other_at_any_usual_distance_are_spread_as_well_as_by_the_standard_hash() {
        for shift in [0, 4, 8, 16, 32] {
            let ours = places(&BuildHasherDefault::<NumberHasher>::default(), shift);
            let standard = places(&RandomState::new(), shift);
            assert!(
                ours >= standard - standard / 8,
                "{ours} instead of {standard}, at a distance of 2^{shift}"
            );
        }
    }
}
