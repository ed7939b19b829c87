//! The key of a lock at the server: a number that everyone can compute from the lock's name.

use std::fmt;
use std::ops::RangeInclusive;

use lock_core::LockKind;
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
/// [prefix](crate::PostgresOptions::server) uses the key of `PREFIX:NAME`.
///
/// ```
/// assert_eq!(lock_postgres::key("orders/42"), -4_261_225_075_031_449_721);
/// ```
pub fn key(name: &str) -> i64 {
    begin_of_digest(name.as_bytes()).cast_signed()
}

fn begin_of_digest(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes).iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// How many keys a semaphore has.
pub(crate) const SEMAPHORE_KEYS: u64 = 1024;

/// The key of a lock, or the first one of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    number: i64,
    kind: LockKind,
}

impl Key {
    pub(crate) fn of(prefix: &str, name: &str) -> Self {
        Self::of_number(if prefix.is_empty() { key(name) } else { key(&format!("{prefix}:{name}")) })
    }

    pub(crate) fn of_number(number: i64) -> Self {
        Self { number, kind: LockKind::Lock }
    }

    /// The key that a name is, if it is one. No two names are the same key. The lowest number is none: the server reads its digits
    /// before its sign, and they are too many for a key.
    pub(crate) fn raw(name: &str) -> Option<Self> {
        let key = name.parse().ok()?;
        (name == i64::to_string(&key) && key != i64::MIN).then_some(Self::of_number(key))
    }

    /// The first of the keys of a semaphore: it has a thousand and 24, none of which is the key of a lock's name. The number
    /// is the version of their layout.
    pub(crate) fn of_semaphore(prefix: &str, name: &str) -> Self {
        let full = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}:{name}") };
        let number = begin_of_digest(&[b"distlock semaphore 1".as_slice(), &Sha256::digest(full)].concat());
        Self { number: (number & !(SEMAPHORE_KEYS - 1)).cast_signed(), kind: LockKind::Semaphore }
    }

    /// What it is the key of.
    pub(crate) fn kind(self) -> LockKind {
        self.kind
    }

    /// All that it has.
    pub(crate) fn range(self) -> RangeInclusive<i64> {
        self.number..=self.number | (self.count() - 1).cast_signed()
    }

    /// How many keys it has.
    pub(crate) fn count(self) -> u64 {
        if self.kind == LockKind::Semaphore { SEMAPHORE_KEYS } else { 1 }
    }

    /// The two halves of the key, as `pg_locks` shows them.
    pub(crate) fn halves(self) -> (u64, u64) {
        let bits = self.number.cast_unsigned();
        (bits >> 32, bits & 0xffff_ffff)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.number, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_key_that_it_always_had() {
        assert_eq!(key("orders/42"), -4_261_225_075_031_449_721);
        assert_eq!(Key::of("", "orders/42"), Key::of_number(key("orders/42")));
        assert_eq!(Key::of("shop", "orders/42"), Key::of_number(key("shop:orders/42")));
    }

    #[test]
    fn a_raw_key_has_one_name() {
        for key in [-42, i64::MIN + 1, i64::MAX] {
            assert_eq!(Key::raw(&key.to_string()), Some(Key::of_number(key)));
        }
        for name in ["-9223372036854775808", "+42", "042", "-0", "9223372036854775808", "orders/42", ""] {
            assert_eq!(Key::raw(name), None, "{name}");
        }
    }

    #[test]
    fn a_semaphore_has_keys_of_its_own_in_a_row() {
        let first = Key::of_semaphore("shop", "render");
        assert_eq!(first, Key::of_semaphore("", "shop:render"));
        assert_ne!(first, Key::of_semaphore("", "render"));
        assert_eq!(first.number % 1024, 0);
        assert_eq!(Key::of_number(first.number + 1023).halves().0, first.halves().0);
        // It never changes.
        assert_eq!(first.number, 8_320_948_373_311_074_304);
    }

    #[test]
    fn its_halves_are_those_of_its_bits() {
        assert_eq!(Key::of_number(1).halves(), (0, 1));
        assert_eq!(Key::of_number(-1).halves(), (0xffff_ffff, 0xffff_ffff));
        assert_eq!(Key::of_number(5 << 32 | 7).halves(), (5, 7));
    }
}
