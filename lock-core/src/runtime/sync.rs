//! The few synchronisation primitives of the model-checked modules, so that a model checker can replace them. See
//! `tests/hold_model.rs`.

use std::sync::PoisonError;

pub(crate) use std::sync::MutexGuard;

/// A mutex that a panic does not poison, for backends whose critical sections leave their data consistent before they
/// call anything that could panic, as those of the core do.
///
/// ```
/// let waiting = lock_core::spi::Mutex::new(Vec::new());
/// waiting.lock().push("a");
/// assert_eq!(waiting.lock().len(), 1);
/// ```
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Locks the mutex, and blocks the thread until that is possible. Never keep the guard across an await.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(test)]
        super::counts::mutex(self);
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
