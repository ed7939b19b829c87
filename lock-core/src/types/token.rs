//! Fencing tokens.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// A number that increases from one holder of a lock to the next.
///
/// A lock alone cannot stop a holder that was paused past its lease and has not noticed it yet. The resource that the
/// lock protects can: it remembers the highest token that it has seen and refuses writes with a lower one. See Martin
/// Kleppmann, "How to do distributed locking" (2016).
///
/// Compare tokens; do not calculate with them. In JSON they are decimal strings, because many readers lose the digits
/// of numbers above 2^53.
///
/// ```
/// use lock_core::FencingToken;
///
/// let earlier = FencingToken::new(41);
/// let later: FencingToken = "42".parse()?;
/// assert!(earlier < later);
/// assert_eq!((later.get(), later.to_string()), (42, "42".to_owned()));
/// # Ok::<(), std::num::ParseIntError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Creates a token with the number that a server assigned.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token as a number, for a store that keeps it in a numeric column.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, formatter)
    }
}

impl FromStr for FencingToken {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}
