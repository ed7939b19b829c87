//! Time, as leases need it: monotonic, running while the machine sleeps, and replaceable in tests.
//!
//! On Linux a [`Moment`] is a reading of `CLOCK_BOOTTIME`. `std::time::Instant` reads `CLOCK_MONOTONIC`, which stands
//! still while the machine is suspended: a laptop that wakes after an hour would take an expired lease for a fresh one.
//!
//! All code in this crate that waits for time uses [`Clock::schedule`] or [`Clock::sleep_until`], so a test with a manual
//! clock (`manual_clock.rs`) decides when time passes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
#[cfg(feature = "testing")]
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::runtime::deadline_thread;
#[cfg(feature = "testing")]
use crate::runtime::manual_clock::{ManualClock, ManualTime};

/// A point in time, measured from the start of the machine. Only comparable with moments of the same [`Clock`].
///
/// ```
/// use std::time::Duration;
///
/// use lock_core::Moment;
///
/// let start = Moment::from_nanoseconds(1_000);
/// let later = start.plus(Duration::from_secs(2));
/// assert_eq!(later.since(start), Duration::from_secs(2));
/// assert_eq!(later.minus(Duration::from_secs(2)).as_nanoseconds(), 1_000);
/// assert_eq!(start.plus(Duration::MAX), Moment::FOREVER);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every moment that a clock reads.
    pub const FOREVER: Self = Self(u64::MAX);

    /// Creates the moment `nanoseconds` after the clock's start.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_nanoseconds(self) -> u64 {
        self.0
    }

    /// Returns the moment `duration` later; [`Moment::FOREVER`] on overflow.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the moment `duration` earlier; the clock's start on underflow.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time. It is cheap to clone.
///
/// ```
/// # use lock_core::Clock;
/// # use std::time::Duration;
/// # lock_memory::example(async |_| {
/// let clock = Clock::system();
/// let deadline = clock.now().plus(Duration::from_millis(10));
/// clock.sleep_until(deadline).await;
/// assert!(clock.now() >= deadline);
/// # Ok(()) });
/// ```
#[derive(Clone)]
pub struct Clock(TimeSource);

#[derive(Clone)]
enum TimeSource {
    System,
    #[cfg(feature = "testing")]
    Manual(Arc<ManualTime>),
}

impl Clock {
    /// Returns the clock of this machine.
    pub const fn system() -> Self {
        Self(TimeSource::System)
    }

    /// Returns a clock that stands still until a test advances it, and the handle to advance it. Needs the feature
    /// `testing`.
    #[cfg(feature = "testing")]
    pub fn manual() -> (Self, ManualClock) {
        let time = Arc::new(ManualTime::default());
        (Self(TimeSource::Manual(Arc::clone(&time))), ManualClock::new(time))
    }

    /// Returns the current moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            TimeSource::System => deadline_thread::system_now(),
            #[cfg(feature = "testing")]
            TimeSource::Manual(time) => time.now(),
        }
    }

    /// Wakes `alarm` at `moment`, or immediately if that is past, unless the handle is dropped first. For the core: backends wait with
    /// [`Clock::sleep_until`].
    ///
    /// The alarm is woken on the deadline thread or, with a manual clock, on the thread that advances the clock. It must be
    /// quick and must not block: it delays every other deadline of the process. Dropping the handle does not wait for an
    /// alarm that is just being woken.
    pub(crate) fn schedule(&self, moment: Moment, alarm: Waker) -> AlarmHandle {
        let key = match &self.0 {
            TimeSource::System => deadline_thread::schedule(moment, alarm),
            #[cfg(feature = "testing")]
            TimeSource::Manual(time) => Some(time.schedule(moment, alarm)),
        };
        AlarmHandle { clock: self.clone(), key }
    }

    /// Returns a future that completes at `moment`.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the alarm.
    pub fn sleep_until(&self, moment: Moment) -> Sleep {
        Sleep { clock: self.clone(), moment, alarm: None }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.0 {
            TimeSource::System => "Clock(system)",
            #[cfg(feature = "testing")]
            TimeSource::Manual(_) => "Clock(manual)",
        })
    }
}

/// Keeps an alarm scheduled; dropping it cancels the alarm.
#[derive(Debug)]
#[must_use = "dropping the handle cancels the alarm"]
pub(crate) struct AlarmHandle {
    clock: Clock,
    key: Option<AlarmKey>,
}

impl Drop for AlarmHandle {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        match &self.clock.0 {
            TimeSource::System => deadline_thread::cancel(key),
            #[cfg(feature = "testing")]
            TimeSource::Manual(time) => time.cancel(key),
        }
    }
}

/// The future that [`Clock::sleep_until`] returns.
#[derive(Debug)]
pub struct Sleep {
    clock: Clock,
    moment: Moment,
    alarm: Option<(Waker, AlarmHandle)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.moment == Moment::FOREVER {
            return Poll::Pending;
        }
        if self.clock.now() >= self.moment {
            return Poll::Ready(());
        }
        let waker = context.waker();
        if !self.alarm.as_ref().is_some_and(|(scheduled, _)| scheduled.will_wake(waker)) {
            self.alarm = Some((waker.clone(), self.clock.schedule(self.moment, waker.clone())));
        }
        Poll::Pending
    }
}

/// Alarms in the order of their moments. The deadline thread and the manual clock both use it. Alarms are foreign code: the
/// caller wakes and drops them after it has unlocked the schedule.
#[derive(Default)]
pub(crate) struct Schedule {
    alarms: BTreeMap<AlarmKey, Waker>,
    next_number: u64,
}

/// The moment of an alarm, and a number that no other one of the schedule has.
pub(crate) type AlarmKey = (Moment, u64);

impl Schedule {
    pub(crate) const fn new() -> Self {
        Self { alarms: BTreeMap::new(), next_number: 0 }
    }

    pub(crate) fn insert(&mut self, moment: Moment, alarm: Waker) -> AlarmKey {
        let key = (moment, self.next_number);
        self.next_number += 1;
        self.alarms.insert(key, alarm);
        key
    }

    pub(crate) fn remove(&mut self, key: AlarmKey) -> Option<Waker> {
        self.alarms.remove(&key)
    }

    pub(crate) fn first(&self) -> Option<AlarmKey> {
        self.alarms.keys().next().copied()
    }

    /// Takes the first alarm that is due.
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<Waker> {
        let first = self.alarms.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;
    use crate::runtime::Mutex;

    struct Recorder {
        clock: Clock,
        rung: Arc<Mutex<Vec<(usize, Moment)>>>,
        number: usize,
    }

    impl Wake for Recorder {
        fn wake(self: Arc<Self>) {
            self.rung.lock().push((self.number, self.clock.now()));
        }
    }

    fn at(nanoseconds: u64) -> Moment {
        Moment::from_nanoseconds(nanoseconds)
    }

    #[test]
    fn an_alarm_rings_once_and_not_after_its_handle_is_dropped() {
        let (clock, time) = Clock::manual();
        let rung = Arc::default();
        let schedule = |number, moment| {
            let recorder = Recorder { clock: clock.clone(), rung: Arc::clone(&rung), number };
            clock.schedule(at(moment), Arc::new(recorder).into())
        };
        let (_first, second) = (schedule(0, 10), schedule(1, 20));
        time.advance_to(at(15));
        assert_eq!(*rung.lock(), [(0, at(10))]);
        assert_eq!(time.next_alarm(), Some(at(20)));
        drop(second);
        time.advance_to(at(100));
        assert_eq!(rung.lock().len(), 1);
        assert_eq!(time.next_alarm(), None);
    }

    #[test]
    fn a_sleep_wakes_the_task_that_polled_it_last() {
        struct Counts(AtomicUsize);
        impl Wake for Counts {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (clock, time) = Clock::manual();
        let wakers = [(); 2].map(|()| Arc::new(Counts(AtomicUsize::new(0))));
        let mut sleep = std::pin::pin!(clock.sleep_until(at(10)));
        for waker in &wakers {
            for _ in 0..2 {
                let waker = Arc::clone(waker).into();
                assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            }
        }
        time.advance_to(at(10));
        assert_eq!(wakers.map(|waker| waker.0.load(Ordering::SeqCst)), [0, 1]);
        assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn the_machines_clock_rings_in_time_and_survives_a_panic() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("on purpose")
            }
        }
        struct Sends(std::sync::mpsc::Sender<Moment>);
        impl Wake for Sends {
            fn wake(self: Arc<Self>) {
                let _ = self.0.send(Clock::system().now());
            }
        }
        let clock = Clock::system();
        let _panics = clock.schedule(clock.now(), Arc::new(Panics).into());
        let (sender, receiver) = std::sync::mpsc::channel();
        let sends = || Arc::new(Sends(sender.clone())).into();
        let _later = clock.schedule(clock.now().plus(Duration::from_secs(60)), sends());
        for _ in 0..5 {
            // The thread waits for the later alarm by then. While it does not yet, a round shows less.
            std::thread::sleep(Duration::from_millis(10));
            let wanted = clock.now().plus(Duration::from_millis(20));
            let _handle = clock.schedule(wanted, sends());
            let rung = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
            assert!(rung >= wanted);
        }
    }

    #[test]
    fn an_alarm_that_is_scheduled_for_the_past_rings_on_the_manual_clock_too() {
        let (clock, time) = Clock::manual();
        time.advance_to(at(20));
        let rung = Arc::default();
        let recorder = Recorder { clock: clock.clone(), rung: Arc::clone(&rung), number: 0 };
        let _handle = clock.schedule(at(10), Arc::new(recorder).into());
        while rung.lock().is_empty() {
            std::thread::yield_now();
        }
    }

    proptest! {
        #[test]
        fn every_alarm_rings_once_in_order_and_never_early(moments in prop::collection::vec(1_u64..1000, 1..50), steps in prop::collection::vec(1_u64..200, 1..20)) {
            let (clock, time) = Clock::manual();
            let rung = Arc::default();
            let _handles: Vec<_> = moments.iter().enumerate().map(|(number, moment)| {
                let recorder = Recorder { clock: clock.clone(), rung: Arc::clone(&rung), number };
                clock.schedule(at(*moment), Arc::new(recorder).into())
            }).collect();
            for step in steps {
                time.advance(Duration::from_nanos(step));
                let rung = rung.lock();
                prop_assert!(rung.is_sorted_by_key(|(_, now)| *now));
                for (number, now) in rung.iter() {
                    prop_assert_eq!(*now, at(moments[*number]));
                }
                let due = moments.iter().filter(|moment| at(**moment) <= clock.now()).count();
                prop_assert_eq!(rung.len(), due);
            }
        }
    }
}
