//! The key of a lock at the server: a number that everyone can compute from the lock's name.

use std::fmt;

use sha2::{Digest, Sha256};

/// Returns the key of the advisory lock with this name: the first eight bytes of the SHA-256 of its UTF-8, as a signed
/// number in big-endian order.
///
/// It never changes from one version of this crate to another. In SQL it is
///
/// ```sql
/// ('x' || left(encode(sha256(convert_to('orders/42', 'UTF8')), 'hex'), 16))::bit(64)::bigint
/// ```
///
/// so a program that knows nothing of distlock excludes its clients with `pg_advisory_lock` and this key. A client with a
/// [prefix](crate::PostgresOptions::prefix) uses the key of `PREFIX:NAME`.
///
/// ```
/// assert_eq!(lock_postgres::key("orders/42"), -4_261_225_075_031_449_721);
/// ```
pub fn key(name: &str) -> i64 {
    let digest = Sha256::digest(name.as_bytes());
    let bytes = digest.iter().take(8);
    bytes.fold(0_u64, |number, byte| number << 8 | u64::from(*byte)).cast_signed()
}

/// The key of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(i64);

impl Key {
    pub(crate) fn of(prefix: &str, name: &str) -> Self {
        Self(if prefix.is_empty() { key(name) } else { key(&format!("{prefix}:{name}")) })
    }

    pub(crate) fn number(self) -> i64 {
        self.0
    }

    /// The two halves of the key, as `pg_locks` shows them.
    pub(crate) fn halves(self) -> (u64, u64) {
        let bits = self.0.cast_unsigned();
        (bits >> 32, bits & 0xffff_ffff)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_key_that_it_always_had() {
        assert_eq!(key("orders/42"), -4_261_225_075_031_449_721);
        assert_eq!(Key::of("", "orders/42"), Key(key("orders/42")));
        assert_eq!(Key::of("shop", "orders/42"), Key(key("shop:orders/42")));
    }

    #[test]
    fn its_halves_are_those_of_its_bits() {
        assert_eq!(Key(1).halves(), (0, 1));
        assert_eq!(Key(-1).halves(), (0xffff_ffff, 0xffff_ffff));
        assert_eq!(Key(5 << 32 | 7).halves(), (5, 7));
    }
}
