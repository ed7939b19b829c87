//! How a lock is shared, and what has holders: a lock or a semaphore.

use std::fmt;
use std::num::NonZeroU32;

/// How a lock is shared.
///
/// ```
/// use std::num::NonZeroU32;
///
/// use lock_core::{LockKind, Mode};
///
/// let of = NonZeroU32::new(5).unwrap();
/// let two = Mode::Permits { take: NonZeroU32::new(2).unwrap(), of };
/// assert_eq!((two.to_string(), two.kind()), ("2 of 5 permits".to_owned(), LockKind::Semaphore));
/// assert_eq!(Mode::Shared.kind(), Mode::Exclusive.kind()); // the two sides of one lock
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Mode {
    /// One holder at a time: a mutex, or the write side of a read-write lock.
    #[default]
    Exclusive,
    /// Any number of holders at a time, and none that is exclusive: the read side of a read-write lock.
    Shared,
    /// Some of the permits of a semaphore.
    Permits {
        /// How many permits this acquisition takes, all or nothing.
        take: NonZeroU32,
        /// How many permits there are.
        of: NonZeroU32,
    },
}

impl Mode {
    /// Returns what is held in this mode.
    pub const fn kind(self) -> LockKind {
        match self {
            Self::Exclusive | Self::Shared => LockKind::Lock,
            Self::Permits { .. } => LockKind::Semaphore,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => formatter.write_str("exclusive"),
            Self::Shared => formatter.write_str("shared"),
            Self::Permits { take, of } => write!(formatter, "{take} of {of} permits"),
        }
    }
}

/// What has a name at the server. A lock and a semaphore of one name have nothing to do with each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum LockKind {
    /// A mutex or a read-write lock: the mutex is its write side.
    #[default]
    Lock,
    /// A semaphore.
    Semaphore,
}

impl fmt::Display for LockKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Lock => "lock",
            Self::Semaphore => "semaphore",
        })
    }
}
