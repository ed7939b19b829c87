//! What a store can do.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use lock_core::{ErrorKind, LockError, Operation};

/// A store of small objects, each of which can be written on the condition that it has not changed.
///
/// It has to be linearizable: a read that begins after a write was answered shows that write or a later one, and of two
/// writes on the same condition at most one is carried out. Its futures may be dropped at every await; the request may then be
/// carried out or not, now or later. It need not limit the time of its requests, which [the backend](crate::RegisterBackend)
/// does.
pub trait Register: fmt::Debug + Send + Sync + 'static {
    /// What the condition names: a revision, or a hash of the content, which differs from write to write.
    type Version: fmt::Debug + Send + Sync + 'static;

    /// Reads an object; `None` if it does not exist.
    ///
    /// # Errors
    /// What keeps the store from answering; [retryable](LockError::is_retryable) if that may pass.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await.
    fn read(
        &self,
        key: &str,
    ) -> impl Future<Output = Result<Option<Stored<Self::Version>>, LockError>> + Send;

    /// Writes an object if it still has this version, or creates it if there is none. It never sends a write twice.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await.
    fn write(
        &self,
        key: &str,
        content: Vec<u8>,
        if_still: Option<&Self::Version>,
    ) -> impl Future<Output = Written<Self::Version>> + Send;

    /// Returns the keys of all objects, for a backend that [lists](lock_core::Capabilities::listing) locks.
    ///
    /// # Errors
    /// What keeps the store from answering.
    ///
    /// # Cancel safety
    /// The future may be dropped at every await.
    fn list(&self) -> impl Future<Output = Result<Vec<String>, LockError>> + Send {
        async { Err(LockError::new(ErrorKind::Unsupported, Operation::Inspect)) }
    }

    /// Returns the least time between two writes of one client to one object; none by default.
    fn pace(&self) -> Duration {
        Duration::ZERO
    }
}

/// The content of an object, and its version.
pub type Stored<V> = (Vec<u8>, V);

/// What became of a write.
#[derive(Debug)]
pub enum Written<V> {
    /// It was carried out, and made this version.
    Done(V),
    /// It was not and never will be carried out: the object has another version, or another write was about to change it.
    Conflict,
    /// It was not and never will be carried out, for this reason.
    Refused(LockError),
    /// It may have been carried out, or be carried out later. The error is [retryable](LockError::is_retryable).
    Unknown(LockError),
}
