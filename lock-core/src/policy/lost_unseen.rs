//! Grants that were lost before their waiters had them. The attempts that follow pause, longer each time.

use std::time::Duration;

use crate::spi::Backoff;
use crate::types::loss::LossReason;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Consecutive grants that were lost before their waiters had them.
#[derive(Debug, Default)]
pub(crate) struct LostUnseen {
    in_a_row: u32,
    /// The number of the last hold of these.
    last: Option<u64>,
    /// The reason of the last loss, until the next attempt has paused for it.
    not_paused_for: Option<LossReason>,
    backoff: Option<Backoff>,
}

/// The pause before the next attempt after such losses.
pub(crate) struct Pause {
    pub(crate) length: Duration,
    pub(crate) reason: LossReason,
    pub(crate) in_a_row: u32,
}

impl LostUnseen {
    /// Adds the hold with this number. Several waiters may report the same hold.
    pub(crate) fn add(&mut self, number: u64, reason: LossReason) {
        if self.last != Some(number) {
            self.last = Some(number);
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.not_paused_for = Some(reason);
        }
    }

    /// Returns the pause before the next attempt, if one is due: that attempt may fail in the same way.
    pub(crate) fn next_pause(&mut self) -> Option<Pause> {
        let reason = self.not_paused_for.take()?;
        let backoff = self.backoff.get_or_insert_with(|| Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Some(Pause { length: backoff.next_pause(), reason, in_a_row: self.in_a_row })
    }
}
