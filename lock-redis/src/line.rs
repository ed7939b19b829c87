//! The lines in which requests queue until they are sent.

use std::sync::Arc;

use lock_core::Operation;
use tokio::sync::Semaphore;

/// How many requests of one line may be pending: any other request waits for at most that many replies.
const UNDER_WAY: usize = 256;

/// Renewals use no line: they must not wait behind a client's other requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Line {
    /// Heartbeats, which keep a place that would otherwise be lost.
    Heartbeats,
    /// Requests that end a hold or a wait, because other clients may be waiting for the lock.
    Ends,
    Others,
}

impl Line {
    /// The line of a request other than a heartbeat.
    pub(crate) fn of(operation: Operation) -> Self {
        match operation {
            Operation::Release | Operation::Cancel | Operation::Break | Operation::Downgrade => Self::Ends,
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

    /// Makes sure that nothing more is sent.
    pub(crate) fn close(&self) {
        for line in [&self.heartbeats, &self.ends, &self.others] {
            line.close();
        }
    }
}
