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
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::runtime::deadline;
#[cfg(feature = "testing")]
use crate::runtime::manual_clock::{ManualClock, ManualTime};
use crate::runtime::number_map::NumberMap;
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System,
    #[cfg(feature = "testing")]
    Manual(Arc<ManualTime>),
}

/// A callback at a moment, for the core and the server in memory: other backends wait with [`Clock::sleep_until`]. It runs on
/// the deadline thread or, with a manual clock, on the thread that advances the clock.
///
/// It must be quick and must not block: it delays every other deadline of the process.
#[doc(hidden)]
pub trait Alarm: Send + Sync {
    /// Called when the moment has come. Returns when to ring again, if at all.
    fn ring(&self, now: Moment) -> Option<Moment>;
}

impl Clock {
    /// Returns the clock of this machine.
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Returns a clock that stands still until a test advances it, and the handle to advance it. Needs the feature
    /// `testing`.
    #[cfg(feature = "testing")]
    pub fn manual() -> (Self, ManualClock) {
        let time = Arc::new(ManualTime::default());
        (Self(Source::Manual(Arc::clone(&time))), ManualClock::new(time))
    }

    /// Returns the current moment.
    pub fn now(&self) -> Moment {
        match &self.0 {
            Source::System => deadline::system_now(),
            #[cfg(feature = "testing")]
            Source::Manual(time) => time.now(),
        }
    }

    /// Rings `alarm` at `moment`, or immediately if that is past, unless the handle is dropped first.
    ///
    /// Dropping the handle does not wait for an alarm that is already ringing.
    #[doc(hidden)]
    pub fn schedule(&self, moment: Moment, alarm: Arc<dyn Alarm>) -> AlarmHandle {
        match &self.0 {
            Source::System => AlarmHandle(deadline::schedule(moment, alarm).map(Place::System)),
            #[cfg(feature = "testing")]
            Source::Manual(time) => {
                let number = time.schedule(moment, alarm);
                AlarmHandle(Some(Place::Manual(Arc::clone(time), number)))
            }
        }
    }

    /// Returns a future that completes at `moment`.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the alarm.
    pub fn sleep_until(&self, moment: Moment) -> Sleep {
        Sleep { clock: self.clone(), moment, bell: None }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self.0 {
            Source::System => "Clock(system)",
            #[cfg(feature = "testing")]
            Source::Manual(_) => "Clock(manual)",
        })
    }
}

/// Keeps an alarm scheduled; dropping it cancels the alarm.
#[doc(hidden)]
#[must_use = "dropping the handle cancels the alarm"]
pub struct AlarmHandle(Option<Place>);

enum Place {
    System(AlarmNumber),
    #[cfg(feature = "testing")]
    Manual(Arc<ManualTime>, AlarmNumber),
}

impl Drop for AlarmHandle {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Place::System(number)) => deadline::cancel(number),
            #[cfg(feature = "testing")]
            Some(Place::Manual(time, number)) => time.cancel(number),
            None => {}
        }
    }
}

impl fmt::Debug for AlarmHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("AlarmHandle")
    }
}

/// The future that [`Clock::sleep_until`] returns.
pub struct Sleep {
    clock: Clock,
    moment: Moment,
    bell: Option<(Arc<Bell>, AlarmHandle)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.moment == Moment::FOREVER {
            return Poll::Pending;
        }
        if let Some((bell, _)) = &self.bell {
            return bell.poll(context);
        }
        if self.clock.now() >= self.moment {
            return Poll::Ready(());
        }
        let bell =
            Arc::new(Bell { rung: AtomicBool::new(false), waker: Mutex::new(Some(context.waker().clone())) });
        let handle = self.clock.schedule(self.moment, Arc::clone(&bell) as Arc<dyn Alarm>);
        self.bell = Some((bell, handle));
        Poll::Pending
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Sleep").field("moment", &self.moment).finish_non_exhaustive()
    }
}

struct Bell {
    rung: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Bell {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        with_waker(context, |waker| {
            let mut registered = self.waker.lock();
            if self.rung.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            std::mem::swap(&mut *registered, waker);
            Poll::Pending
        })
    }
}

impl Alarm for Bell {
    fn ring(&self, _now: Moment) -> Option<Moment> {
        let waker = {
            let mut waker = self.waker.lock();
            self.rung.store(true, Ordering::Release);
            waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        None
    }
}

/// Alarms in the order of their moments. The deadline thread and the manual clock both use it.
#[derive(Default)]
pub(crate) struct Schedule {
    alarms: BTreeMap<(Moment, AlarmNumber), Arc<dyn Alarm>>,
    /// The moment of each alarm whose handle has not been dropped; while the alarm rings, the moment at which it began.
    moments: NumberMap<AlarmNumber, Moment>,
    next_number: AlarmNumber,
}

pub(crate) type AlarmNumber = u64;

impl Schedule {
    pub(crate) fn insert(&mut self, moment: Moment, alarm: Arc<dyn Alarm>) -> AlarmNumber {
        let number = self.next_number;
        self.next_number += 1;
        self.moments.insert(number, moment);
        self.alarms.insert((moment, number), alarm);
        number
    }

    /// Removes an alarm and returns it; the caller drops it after it has unlocked the schedule.
    pub(crate) fn remove(&mut self, number: AlarmNumber) -> Option<Arc<dyn Alarm>> {
        let moment = self.moments.remove(&number)?;
        self.alarms.remove(&(moment, number))
    }

    pub(crate) fn earliest(&self) -> Option<Moment> {
        self.alarms.keys().next().map(|(moment, _)| *moment)
    }

    /// Takes the first alarm that is due. The caller rings it with the schedule unlocked, and then passes it to
    /// [`Self::rung`].
    pub(crate) fn take_due(&mut self, now: Moment) -> Option<(AlarmNumber, Arc<dyn Alarm>)> {
        if self.earliest()? > now {
            return None;
        }
        self.alarms.pop_first().map(|((_, number), alarm)| (number, alarm))
    }

    /// Puts back an alarm that wants to ring again, unless its handle was dropped while it rang. Otherwise returns it,
    /// to be dropped after the schedule is unlocked.
    pub(crate) fn rung(
        &mut self,
        number: AlarmNumber,
        alarm: Arc<dyn Alarm>,
        again: Option<Moment>,
    ) -> Option<Arc<dyn Alarm>> {
        let Some(next) = again else {
            self.moments.remove(&number);
            return Some(alarm);
        };
        let Some(moment) = self.moments.get_mut(&number) else { return Some(alarm) };
        *moment = next;
        self.alarms.insert((next, number), alarm)
    }
}

/// Rings all alarms that are due at `now`, and returns when the next one is due.
pub(crate) fn ring_due(schedule: &Mutex<Schedule>, now: Moment) -> Option<Moment> {
    loop {
        let (number, alarm) = {
            let mut schedule = schedule.lock();
            match schedule.take_due(now) {
                Some(due) => due,
                None => return schedule.earliest(),
            }
        };
        // An alarm is code of this crate or of a backend; if it panics, all other deadlines must still work.
        let again = catch_unwind(AssertUnwindSafe(|| alarm.ring(now))).unwrap_or_default();
        let done = schedule.lock().rung(number, alarm, again);
        drop(done);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Recorder {
        rung: Arc<Mutex<Vec<(usize, Moment)>>>,
        number: usize,
        again: Mutex<Vec<Moment>>,
    }

    impl Alarm for Recorder {
        fn ring(&self, now: Moment) -> Option<Moment> {
            self.rung.lock().push((self.number, now));
            self.again.lock().pop()
        }
    }

    fn at(nanoseconds: u64) -> Moment {
        Moment::from_nanoseconds(nanoseconds)
    }

    #[test]
    fn an_alarm_that_is_put_off_rings_again_until_its_handle_is_dropped() {
        let (clock, time) = Clock::manual();
        let rung = Arc::default();
        let alarm = Recorder { rung: Arc::clone(&rung), number: 0, again: Mutex::new(vec![at(30), at(20)]) };
        let handle = clock.schedule(at(10), Arc::new(alarm));
        time.advance_to(at(25));
        assert_eq!(*rung.lock(), [(0, at(10)), (0, at(20))]);
        assert_eq!(time.next_alarm(), Some(at(30)));
        drop(handle);
        time.advance_to(at(100));
        assert_eq!(rung.lock().len(), 2);
        assert_eq!(time.next_alarm(), None);
    }

    #[test]
    fn the_machines_clock_rings_in_time_and_survives_a_panic() {
        struct Panics;
        impl Alarm for Panics {
            fn ring(&self, _now: Moment) -> Option<Moment> {
                panic!("on purpose")
            }
        }
        struct Sends(std::sync::mpsc::Sender<Moment>);
        impl Alarm for Sends {
            fn ring(&self, now: Moment) -> Option<Moment> {
                let _ = self.0.send(now);
                None
            }
        }
        let clock = Clock::system();
        let _panics = clock.schedule(clock.now(), Arc::new(Panics));
        let wanted = clock.now().plus(Duration::from_millis(20));
        let (sender, receiver) = std::sync::mpsc::channel();
        let _later = clock.schedule(wanted.plus(Duration::from_secs(60)), Arc::new(Sends(sender.clone())));
        let _handle = clock.schedule(wanted, Arc::new(Sends(sender)));
        let rung = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(rung >= wanted);
    }

    #[test]
    fn an_alarm_that_is_scheduled_for_the_past_rings_on_the_manual_clock_too() {
        let (clock, time) = Clock::manual();
        time.advance_to(at(20));
        let rung = Arc::default();
        let _handle = clock.schedule(
            at(10),
            Arc::new(Recorder { rung: Arc::clone(&rung), number: 0, again: Mutex::default() }),
        );
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
                clock.schedule(at(*moment), Arc::new(Recorder { rung: Arc::clone(&rung), number, again: Mutex::default() }))
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
