//! Grants that were lost before their waiters had them. The attempts that follow pause, longer each time.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::runtime::sync::Mutex;
use crate::spi::Backoff;
use crate::types::loss::LossReason;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Consecutive grants of one lock that were lost before their waiters had them, and the place in the server's queue that
/// the last attempt lost.
#[derive(Debug, Default)]
pub(crate) struct LostUnseen {
    /// Whether there is anything in `losses`. Usually there is not, and then no attempt locks the mutex.
    is_any: AtomicBool,
    losses: Mutex<Losses>,
}

#[derive(Debug, Default)]
struct Losses {
    /// For the attempt that replaces the one that lost it.
    place: Option<NonZeroU64>,
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
    /// Adds the hold with this number, which had this place. Several waiters may report the same hold.
    pub(crate) fn add(&self, number: u64, reason: LossReason, place: Option<NonZeroU64>) {
        let mut losses = self.losses.lock();
        self.is_any.store(true, Ordering::Release);
        losses.place = place;
        if losses.last != Some(number) {
            losses.last = Some(number);
            losses.in_a_row = losses.in_a_row.saturating_add(1);
            losses.not_paused_for = Some(reason);
        }
    }

    /// Sets the place that the next attempt starts from.
    pub(crate) fn keep_place(&self, place: Option<NonZeroU64>) {
        if place.is_some() || self.is_any() {
            let mut losses = self.losses.lock();
            self.is_any.store(true, Ordering::Release);
            losses.place = place;
        }
    }

    pub(crate) fn take_place(&self) -> Option<NonZeroU64> {
        if self.is_any() { self.losses.lock().place.take() } else { None }
    }

    /// A grant has reached its waiter, or there was none.
    pub(crate) fn end_row(&self) {
        if self.is_any() {
            let mut losses = self.losses.lock();
            *losses = Losses { place: losses.place, ..Losses::default() };
            self.is_any.store(losses.place.is_some(), Ordering::Release);
        }
    }

    /// Returns the pause before the next attempt, if one is due: that attempt may fail in the same way.
    pub(crate) fn next_pause(&self) -> Option<Pause> {
        if !self.is_any() {
            return None;
        }
        let mut losses = self.losses.lock();
        let reason = losses.not_paused_for.take()?;
        let in_a_row = losses.in_a_row;
        let backoff = losses.backoff.get_or_insert_with(|| Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        Some(Pause { length: backoff.next_pause(), reason, in_a_row })
    }

    /// An attempt that follows a loss sees it: the local mutex is locked in between.
    fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }
}
