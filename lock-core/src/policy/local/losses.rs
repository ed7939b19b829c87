//! Grants that were lost before their requests had them. The attempts that follow pause, longer each time.

use std::time::Duration;

use crate::spi::Backoff;
use crate::types::loss::LossReason;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Such grants of one lock, one after the other.
#[derive(Debug, Default)]
pub(super) struct Losses(Option<Box<Row>>);

#[derive(Debug)]
struct Row {
    length: u32,
    /// The reason of the last loss, until the next attempt has paused for it.
    not_paused_for: Option<LossReason>,
    backoff: Backoff,
}

/// The pause before the next attempt after such losses.
#[derive(Debug)]
pub(crate) struct Pause {
    pub(crate) length: Duration,
    pub(crate) reason: LossReason,
    pub(crate) in_a_row: u32,
}

impl Losses {
    pub(super) fn add(&mut self, reason: LossReason) {
        let row = self.0.get_or_insert_with(|| {
            Box::new(Row {
                length: 0,
                not_paused_for: None,
                backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            })
        });
        row.length = row.length.saturating_add(1);
        row.not_paused_for = Some(reason);
    }

    /// A grant has reached its request, or there was none.
    pub(super) fn end_row(&mut self) {
        self.0 = None;
    }

    /// Returns the pause before the next attempt, if one is due: that attempt may fail in the same way.
    pub(super) fn next_pause(&mut self) -> Option<Pause> {
        let row = self.0.as_mut()?;
        let reason = row.not_paused_for.take()?;
        Some(Pause { length: row.backoff.next_pause(), reason, in_a_row: row.length })
    }
}
