//! The few synchronisation primitives of the model-checked modules, so that a model checker can replace them. See
//! `tests/model.rs`.

use std::sync::PoisonError;

pub(crate) use std::sync::MutexGuard;

/// A mutex that is not poisoned by a panic: every critical section of this crate leaves its data consistent before it
/// calls anything that could panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
