//! In which line a request stands until it is sent.

use std::sync::Arc;

use lock_core::Operation;
use tokio::sync::Semaphore;

/// How many requests of a line may be under way: what else is sent waits for no more than their answers.
const UNDER_WAY: usize = 256;

/// Renewals stand in no line: they are not to wait for whatever a client asks for besides.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Line {
    /// Heartbeats, which keep a place that would be lost.
    Heartbeats,
    /// What ends a hold or a wait: others may wait for the lock.
    Ends,
    Others,
}

impl Line {
    /// The line of those that keep no place.
    pub(crate) fn of(operation: Operation) -> Self {
        match operation {
            Operation::Release | Operation::Cancel | Operation::Break => Self::Ends,
            _ => Self::Others,
        }
    }
}

/// The lines of a connection.
pub(crate) struct Lines {
    heartbeats: Arc<Semaphore>,
    ends: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

impl Default for Lines {
    fn default() -> Self {
        let line = || Arc::new(Semaphore::new(UNDER_WAY));
        Self { heartbeats: line(), ends: line(), others: line() }
    }
}

impl Lines {
    pub(crate) fn get(&self, line: Line) -> &Arc<Semaphore> {
        match line {
            Line::Heartbeats => &self.heartbeats,
            Line::Ends => &self.ends,
            Line::Others => &self.others,
        }
    }

    /// Nothing is sent any more.
    pub(crate) fn close(&self) {
        for line in [&self.heartbeats, &self.ends, &self.others] {
            line.close();
        }
    }
}
