//! A listener that records its events and their times.

use std::sync::Arc;
use std::time::Instant;

use crate::{Outcome, ensure};
use lock_core::{DistributedLock, LossReason};

use super::wait::soon;
use crate::probe;
pub use crate::probe::{Event, Level};

/// Records the events of a lock.
#[derive(Debug)]
pub struct EventRecorder(Arc<probe::EventRecorder>);

impl EventRecorder {
    /// Creates a recorder that listens to the lock.
    #[must_use]
    pub fn of(lock: &Arc<dyn DistributedLock>) -> Self {
        Self(probe::EventRecorder::of(lock))
    }

    /// Returns the events so far, in order.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.0.events()
    }

    /// Returns how often a loss has been reported so far.
    #[must_use]
    pub fn aborts(&self) -> usize {
        self.0.aborts()
    }

    /// Returns when contact was reported lost for the first time.
    ///
    /// # Errors
    /// When that does not happen within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn suspect(&self) -> Outcome<Instant> {
        self.when("on_suspect", Event::Suspect).await
    }

    /// Returns when contact was reported to have returned for the first time.
    ///
    /// # Errors
    /// When that does not happen within [`PATIENCE`](super::PATIENCE).
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn restored(&self) -> Outcome<Instant> {
        self.when("on_restored", Event::Restored).await
    }

    /// Returns when the loss was reported, and why.
    ///
    /// # Errors
    /// When that does not happen within [`PATIENCE`](super::PATIENCE), or happens more than once.
    ///
    /// # Cancel safety
    /// The future may be dropped at any time.
    pub async fn abort(&self) -> Outcome<(LossReason, Instant)> {
        let reason = |event: &Event| match event {
            Event::Abort(reason, _) => Some(*reason),
            _ => None,
        };
        let reported = soon("on_abort", self.0.has_at(reason)).await?;
        let aborts = self.aborts();
        ensure!(aborts == 1, "{aborts} aborts: {:?}", self.events());
        Ok(reported)
    }

    async fn when(&self, what: &str, wanted: Event) -> Outcome<Instant> {
        let is_it = |event: &Event| (*event == wanted).then_some(());
        Ok(soon(what, self.0.has_at(is_it)).await?.1)
    }
}
