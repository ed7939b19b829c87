//! Names of locks, and the rule that maps them to names that a server accepts.
//!
//! A lock can have any name: any UTF-8 text of 1 to 512 bytes. Servers accept less (a file name has no `/`, some
//! servers allow only 64 characters), so every backend declares its [`NameRules`], and the core maps a [`LockName`] to a
//! [`PhysicalName`] with one rule that never gives two names the same result:
//!
//! * a name stays as it is if all its characters are in the set, it has no `~`, it is short enough and it does not
//!   begin with a dot (so `.` and `..` never reach a file system, and no lock is hidden from a listing);
//! * any other name becomes `prefix~hash`: its readable part, with `_` for each character outside the set, then `~`,
//!   then the first 128 bits of the name's SHA-256, in hexadecimal.
//!
//! Only mapped names contain a `~`, so a mapped name never equals an unmapped one, and two mapped names differ unless
//! SHA-256 collides in its first 128 bits.
//!
//! # Test vectors
//! For the rules of a file system (`A`–`Z`, `a`–`z`, `0`–`9`, `-`, `_`, `.`; at most 200 bytes):
//!
//! ```
//! use lock_core::{CharacterSet, LockName, NameRules};
//!
//! let rules = NameRules::new(CharacterSet::PORTABLE, 200);
//! for (name, physical) in [
//!     ("nightly-report", "nightly-report"),
//!     ("A", "A"),
//!     ("a", "a"),
//!     ("a/b", "a_b~c14cddc033f64b9dea80ea675cf280a0"),
//!     ("a_b", "a_b"),
//!     ("../x", "_._x~d6b96a97d147daaae49eb87a5ca7bfbc"),
//!     ("..", "_.~5ec1f7e700f37c3d0b2981d04855fc34"),
//!     ("a~b", "a_b~941528e5e77c9a1f3e2fcbc95f20556f"),
//!     ("🔒", "_~6ae1d2ee2e9592ea2e665661450a09fe"),
//! ] {
//!     assert_eq!(rules.apply(&LockName::new(name)?).as_str(), physical, "{name}");
//! }
//! # Ok::<(), lock_core::LockError>(())
//! ```

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::types::{ErrorKind, LockError, Operation};

/// The name of a lock: any UTF-8 text of 1 to 512 bytes. It is cheap to clone.
///
/// ```
/// use lock_core::{ErrorKind, LockName};
///
/// let name = LockName::new("orders/42")?;
/// assert_eq!(name.as_str(), "orders/42");
/// assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::InvalidName);
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The maximum length of a name, in bytes.
    pub const MAX_LENGTH: usize = 512;

    /// Creates a name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] when it is empty or longer than [`LockName::MAX_LENGTH`] bytes.
    pub fn new(name: impl AsRef<str>) -> Result<Self, LockError> {
        let name = name.as_ref();
        let invalid = |cause: String| {
            LockError::new(ErrorKind::InvalidName, Operation::Configure)
                .because(cause)
                .remedy("use 1 to 512 bytes of UTF-8")
        };
        match name.len() {
            0 => Err(invalid("it is empty".to_owned())),
            length if length > Self::MAX_LENGTH => Err(invalid(format!("it has {length} bytes"))),
            _ => Ok(Self(Arc::from(name))),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, formatter)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// The name under which a server knows a lock: a [`LockName`] after [`NameRules::apply`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PhysicalName(Arc<str>);

impl PhysicalName {
    /// The name, as a server has spelt it.
    pub(crate) fn of_server(name: &LockName) -> Self {
        Self(Arc::clone(&name.0))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PhysicalName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The characters that a server accepts unchanged. `~` is never one of them: it marks mapped names.
///
/// ```
/// use lock_core::CharacterSet;
///
/// const LETTERS: CharacterSet = CharacterSet::of(|character| character.is_ascii_alphabetic());
/// assert!(LETTERS.contains('a') && !LETTERS.contains('/'));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CharacterSet {
    contains: fn(char) -> bool,
}

impl CharacterSet {
    /// Every character except `~`.
    pub const ANY: Self = Self { contains: |_| true };

    /// ASCII letters and digits, `-`, `_` and `.`: safe as a file name where upper and lower case differ.
    pub const PORTABLE: Self = Self {
        contains: |character| matches!(character, 'A'..='Z' | 'a'..='z' | '0'..='9' | '-' | '_' | '.'),
    };

    /// Like [`CharacterSet::PORTABLE`], without capital letters, for servers that do not distinguish `A` from `a`.
    pub const PORTABLE_LOWER_CASE: Self =
        Self { contains: |character| matches!(character, 'a'..='z' | '0'..='9' | '-' | '_' | '.') };

    /// Creates a character set of the backend's own.
    pub const fn of(contains: fn(char) -> bool) -> Self {
        Self { contains }
    }

    /// Returns whether `character` may stay as it is.
    pub fn contains(self, character: char) -> bool {
        character != '~' && (self.contains)(character)
    }
}

/// What a server accepts as the name of a lock; part of the backend's capabilities.
///
/// ```
/// use lock_core::{CharacterSet, LockName, NameRules};
///
/// let rules = NameRules::new(CharacterSet::PORTABLE, 200);
/// assert_eq!(rules.apply(&LockName::new("nightly-report")?).as_str(), "nightly-report");
/// assert_eq!(rules.apply(&LockName::new("a/b")?).as_str(), "a_b~c14cddc033f64b9dea80ea675cf280a0");
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct NameRules {
    characters: CharacterSet,
    max_length: usize,
}

/// `~` and 128 bits in hexadecimal.
const SUFFIX_LENGTH: usize = 33;

impl NameRules {
    /// Creates the rules for a server that accepts names of these `characters`, of at most `max_length` bytes.
    ///
    /// A `max_length` below 33 counts as 33: the hash must fit, or two locks could get the same name.
    pub const fn new(characters: CharacterSet, max_length: usize) -> Self {
        let max_length = if max_length < SUFFIX_LENGTH { SUFFIX_LENGTH } else { max_length };
        Self { characters, max_length }
    }

    /// Maps a name to the name that the server gets.
    ///
    /// A name stays as it is if the server accepts it. Any other name becomes a readable prefix, a `~` and a hash of
    /// the name.
    pub fn apply(&self, name: &LockName) -> PhysicalName {
        let text = name.as_str();
        if self.accepts(text) {
            return PhysicalName(Arc::clone(&name.0));
        }
        let mut mapped = self.readable_prefix(text);
        mapped.push('~');
        mapped.push_str(&hash(text));
        PhysicalName(Arc::from(mapped))
    }

    /// Whether this may be, at the server, a name that begins with `prefix`; or is one, as the server has spelt it.
    pub(crate) fn may_begin(&self, physical: &PhysicalName, prefix: &str) -> bool {
        let text = physical.as_str();
        text.starts_with(prefix) || text.contains('~') && text.starts_with(&self.readable_prefix(prefix))
    }

    fn accepts(&self, text: &str) -> bool {
        text.len() <= self.max_length
            && !text.starts_with('.')
            && text.chars().all(|character| self.characters.contains(character))
    }

    fn readable_prefix(&self, text: &str) -> String {
        let room = self.max_length - SUFFIX_LENGTH;
        let mut prefix = String::new();
        for (position, character) in text.chars().enumerate() {
            let hides = position == 0 && character == '.';
            let shown = if self.characters.contains(character) && !hides { character } else { '_' };
            if prefix.len() + shown.len_utf8() > room {
                break;
            }
            prefix.push(shown);
        }
        prefix
    }
}

/// The first 128 bits of the SHA-256 of a text, in 32 characters.
pub(crate) fn hash(text: &str) -> String {
    let bytes = Sha256::digest(text.as_bytes()).into_iter().take(16);
    format!("{:032x}", bytes.fold(0_u128, |bits, byte| bits << 8 | u128::from(byte)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn refuses_the_empty_name_and_513_bytes() {
        for name in [String::new(), "x".repeat(513), "é".repeat(257)] {
            assert_eq!(LockName::new(name).unwrap_err().kind(), ErrorKind::InvalidName);
        }
        assert!(LockName::new("é".repeat(256)).is_ok());
    }

    #[test]
    fn stays_within_the_servers_length() {
        for max_length in [0, 33, 34, 64, 200] {
            let rules = NameRules::new(CharacterSet::ANY, max_length);
            let physical = rules.apply(&LockName::new("🔒".repeat(128)).unwrap());
            assert!(physical.as_str().len() <= max_length.max(33), "{physical}");
        }
    }

    #[test]
    fn a_name_that_looks_mapped_is_mapped_again() {
        let rules = NameRules::new(CharacterSet::PORTABLE, 200);
        let first = rules.apply(&LockName::new("a/b").unwrap());
        let second = rules.apply(&LockName::new(first.as_str()).unwrap());
        assert_ne!(first, second);
    }

    #[test]
    fn another_beginning_is_seen_in_the_name_at_the_server() {
        let rules = NameRules::new(CharacterSet::PORTABLE, 48);
        for (name, prefix, may) in [
            ("orders-42", "orders-", true),
            ("orders-42", "jobs-", false),
            ("orders_42", "orders/", false),
            ("orders/42", "jobs/", false),
            ("orders/42", "orders.", false),
            ("orders/42", "orders:", true),
        ] {
            let physical = rules.apply(&LockName::new(name).unwrap());
            assert_eq!(rules.may_begin(&physical, prefix), may, "{name:?} {prefix:?}");
        }
    }

    proptest! {
        #[test]
        fn each_beginning_of_a_name_is_one_of_its_name_at_the_server(name in "[a~./é🔒-]{1,80}") {
            for rules in [CharacterSet::PORTABLE, CharacterSet::ANY].map(|set| NameRules::new(set, 48)) {
                let physical = rules.apply(&LockName::new(&name).unwrap());
                for (end, _) in name.char_indices() {
                    prop_assert!(rules.may_begin(&physical, &name[..end]), "{physical} {}", &name[..end]);
                }
                prop_assert!(rules.may_begin(&physical, &name) && rules.may_begin(&physical, physical.as_str()));
            }
        }

        #[test]
        fn is_injective_and_accepted(names in prop::collection::hash_set(".{1,60}", 1..40)) {
            let rules = NameRules::new(CharacterSet::PORTABLE_LOWER_CASE, 48);
            let mut seen = HashMap::new();
            for name in names {
                let physical = rules.apply(&LockName::new(&name).unwrap());
                prop_assert!(physical.as_str().len() <= 48);
                prop_assert!(!physical.as_str().starts_with('.'));
                prop_assert!(physical.as_str().chars().all(|c| c == '~' || CharacterSet::PORTABLE_LOWER_CASE.contains(c)));
                if let Some(other) = seen.insert(physical.clone(), name.clone()) {
                    prop_assert!(false, "{other:?} and {name:?} are both {physical}");
                }
            }
        }
    }
}
