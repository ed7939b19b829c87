//! A clock for tests, which stands still until a test advances it. It is compiled with the feature `testing`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use crate::runtime::{AlarmKey, Moment, Mutex, Schedule, wake_contained};

#[cfg(doc)]
use crate::runtime::clock::Clock;

#[derive(Default)]
pub(super) struct ManualTime {
    /// In nanoseconds.
    now: AtomicU64,
    schedule: Mutex<Schedule>,
}

impl ManualTime {
    pub(super) fn now(&self) -> Moment {
        Moment::from_nanoseconds(self.now.load(Ordering::SeqCst))
    }

    /// An alarm that the clock has passed meanwhile is woken on a thread of its own, because the caller may hold a mutex that
    /// the alarm locks.
    pub(super) fn schedule(self: &Arc<Self>, moment: Moment, alarm: Waker) -> AlarmKey {
        let key = self.schedule.lock().insert(moment, alarm);
        if self.now() >= moment {
            let time = Arc::clone(self);
            std::thread::spawn(move || time.ring_due(time.now()));
        }
        key
    }

    pub(super) fn cancel(&self, key: AlarmKey) {
        let removed = self.schedule.lock().remove(key);
        drop(removed);
    }

    fn take_due(&self, now: Moment) -> Option<Waker> {
        self.schedule.lock().take_due(now)
    }

    fn ring_due(&self, now: Moment) {
        while let Some(alarm) = self.take_due(now) {
            wake_contained(alarm);
        }
    }
}

/// Advances a manual clock; see [`Clock::manual`].
///
/// ```
/// # use lock_core::Clock;
/// # use std::future::Future;
/// # use std::pin::pin;
/// # use std::task::{Context, Waker};
/// # use std::time::Duration;
/// let (clock, time) = Clock::manual();
/// let noon = clock.now().plus(Duration::from_secs(3600));
/// let mut sleep = pin!(clock.sleep_until(noon));
/// assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
/// assert_eq!(time.next_alarm(), Some(noon));
/// time.advance_to(noon);
/// assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<ManualTime>);

impl ManualClock {
    pub(super) fn new(time: Arc<ManualTime>) -> Self {
        Self(time)
    }

    /// Lets `duration` pass. Alarms ring on the calling thread, in order, each at its own moment.
    pub fn advance(&self, duration: Duration) {
        self.advance_to(self.0.now().plus(duration));
    }

    /// Lets time pass up to `moment`; does nothing if that is past.
    pub fn advance_to(&self, moment: Moment) {
        loop {
            let next = self.next_alarm().filter(|next| *next <= moment);
            let step = next.unwrap_or(moment);
            self.0.now.fetch_max(step.as_nanoseconds(), Ordering::SeqCst);
            // Also at the end: an alarm may have been scheduled after the look at the schedule and before the step of the clock.
            self.0.ring_due(step);
            if next.is_none() {
                return;
            }
        }
    }

    /// Returns the moment of the next alarm, if there is one.
    pub fn next_alarm(&self) -> Option<Moment> {
        self.0.schedule.lock().first().map(|(moment, _)| moment)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ManualClock").field("now", &self.0.now).finish_non_exhaustive()
    }
}
