//! The set of known states. The standard library's hash table and hash function would take most of the time here, because
//! without optimisation they are slow.
use std::hash::{Hash as _, Hasher};

use super::world::World;

/// The size of the first table. All sizes are powers of two.
const FIRST_SIZE: usize = 1 << 12;

/// The known states, as fingerprints that are too long for two states to share one by chance.
#[derive(Default)]
pub(crate) struct Known {
    fingerprints: Vec<u128>,
    /// One more than the number of the state in each slot, or 0 for a free slot. At least half of the slots are free.
    table: Vec<u32>,
}

impl Known {
    /// The number of a state, and whether the state is new.
    pub(crate) fn number(&mut self, world: &World) -> (u32, bool) {
        if self.fingerprints.len() * 2 >= self.table.len() {
            self.grow();
        }
        let fingerprint = fingerprint(world);
        let place = self.place(fingerprint);
        let found = self.table[place];
        if found != 0 {
            return (found - 1, false);
        }
        self.fingerprints.push(fingerprint);
        let count = u32::try_from(self.fingerprints.len()).unwrap_or(u32::MAX);
        self.table[place] = count;
        (count - 1, true)
    }

    /// The slot of the state, or the slot where it belongs.
    fn place(&self, fingerprint: u128) -> usize {
        let last = self.table.len() - 1;
        #[allow(clippy::cast_possible_truncation, reason = "no more bits are wanted than there are places")]
        let mut place = fingerprint as usize & last;
        loop {
            let found = self.table[place];
            if found == 0 || self.fingerprints[found as usize - 1] == fingerprint {
                return place;
            }
            place = (place + 1) & last;
        }
    }

    fn grow(&mut self) {
        self.table = vec![0; (self.table.len() * 4).max(FIRST_SIZE)];
        for (fingerprint, number) in self.fingerprints.iter().zip(1..) {
            let place = self.place(*fingerprint);
            self.table[place] = number;
        }
    }
}

fn fingerprint(world: &World) -> u128 {
    let mut hash = Fingerprint(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f);
    world.hash(&mut hash);
    u128::from(stirred(hash.0)) << 64 | u128::from(stirred(hash.1))
}

/// Two hashes of the small numbers in a state, each with a multiplier of its own.
struct Fingerprint(u64, u64);

impl Fingerprint {
    fn take(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.1 = (self.1 ^ number).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    }
}

impl Hasher for Fingerprint {
    fn write_u8(&mut self, number: u8) {
        self.take(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.take(u64::from(number));
    }

    fn write_isize(&mut self, number: isize) {
        #[allow(clippy::cast_sign_loss, reason = "which variant of an enumeration it is")]
        self.take(number as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.take(number as u64);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u8(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Makes each bit depend on all others.
fn stirred(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}
