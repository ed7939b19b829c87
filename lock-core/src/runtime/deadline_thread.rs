//! The deadline thread: one thread of the process that keeps all deadlines, whatever the runtimes do.
//!
//! A hold must be declared lost in time even if every runtime is busy, blocked or gone, and when the machine has just
//! woken from a suspend. So the deadlines of all clients are kept on one operating-system thread of their own. On Linux
//! it waits on a timer of `CLOCK_BOOTTIME`, which fires immediately if the machine wakes after the moment; elsewhere it
//! waits on the monotonic clock.

use std::io;
use std::sync::Arc;
use std::task::Waker;
use std::thread;

use platform::Timer;

use crate::runtime::{AlarmKey, Moment, Mutex, Schedule, wake_contained};

pub(super) struct Deadlines {
    schedule: Schedule,
    /// What the thread waits on, once it runs. It is armed for the first alarm, or for an earlier moment.
    timer: Option<Arc<Timer>>,
}

pub(super) static DEADLINES: Mutex<Deadlines> =
    Mutex::new(Deadlines { schedule: Schedule::new(), timer: None });

/// Starts the thread, if it is not running yet.
pub(crate) fn start() -> io::Result<()> {
    DEADLINES.lock().running().map(drop)
}

/// Schedules an alarm on the clock of the machine.
///
/// If the system cannot start the thread, the alarm is woken immediately: too early is safe, too late is not.
pub(crate) fn schedule(moment: Moment, alarm: Waker) -> Option<AlarmKey> {
    let mut deadlines = DEADLINES.lock();
    let Ok(timer) = deadlines.running() else {
        drop(deadlines);
        wake_contained(alarm);
        return None;
    };
    let key = deadlines.schedule.insert(moment, alarm);
    if deadlines.schedule.first() == Some(key) {
        timer.arm(moment);
    }
    Some(key)
}

pub(crate) fn cancel(key: AlarmKey) {
    let removed = DEADLINES.lock().schedule.remove(key);
    drop(removed);
}

impl Deadlines {
    fn running(&mut self) -> io::Result<Arc<Timer>> {
        if let Some(timer) = &self.timer {
            return Ok(Arc::clone(timer));
        }
        let timer = Arc::new(Timer::new()?);
        let of_thread = Arc::clone(&timer);
        thread::Builder::new().name("distlock-deadline".to_owned()).spawn(move || run(&of_thread))?;
        self.timer = Some(Arc::clone(&timer));
        Ok(timer)
    }
}

fn run(timer: &Timer) {
    loop {
        match due_or_arm(timer) {
            Some(alarm) => wake_contained(alarm),
            None => timer.wait(),
        }
    }
}

/// Takes an alarm that is due. If there is none, arms the timer: under the mutex, so that an alarm that is scheduled meanwhile
/// arms it afterwards.
fn due_or_arm(timer: &Timer) -> Option<Waker> {
    let mut deadlines = DEADLINES.lock();
    let due = deadlines.schedule.take_due(system_now());
    if due.is_none() {
        timer.arm(deadlines.schedule.first().map_or(Moment::FOREVER, |(moment, _)| moment));
    }
    due
}

#[cfg(target_os = "linux")]
pub(crate) fn system_now() -> Moment {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u64::try_from(time.tv_nsec).unwrap_or_default();
    Moment::from_nanoseconds(seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn system_now() -> Moment {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    Moment::from_nanoseconds(0).plus(START.elapsed())
}

#[cfg(target_os = "linux")]
mod platform {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::thread;
    use std::time::Duration;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::runtime::clock::Moment;

    pub(super) struct Timer(OwnedFd);

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
        }

        /// Ends the wait at `moment`, also one that has begun.
        pub(super) fn arm(&self, moment: Moment) {
            // This can only fail for a timer that cannot be waited on either.
            let _ = timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &timer_value(moment));
        }

        pub(super) fn wait(&self) {
            if rustix::io::read(&self.0, &mut [0; 8]).is_err() {
                // Interrupted, or the kernel refused: check again too early rather than too late.
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn timer_value(moment: Moment) -> Itimerspec {
        const SECOND: u64 = 1_000_000_000;
        // All zeroes would disarm the timer, so "for ever" is a moment some centuries away and zero is one nanosecond.
        let nanoseconds = moment.as_nanoseconds().clamp(1, i64::MAX.unsigned_abs());
        let part = |value: u64| value.try_into().unwrap_or_default();
        Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: part(nanoseconds / SECOND), tv_nsec: part(nanoseconds % SECOND) },
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    use std::io;
    use std::sync::{Condvar, PoisonError};

    use super::system_now;
    use crate::runtime::clock::Moment;
    use crate::runtime::sync::Mutex;

    pub(super) struct Timer(Mutex<Moment>, Condvar);

    impl Timer {
        pub(super) fn new() -> io::Result<Self> {
            Ok(Self(Mutex::new(Moment::FOREVER), Condvar::new()))
        }

        /// Ends the wait at `moment`, also one that has begun.
        pub(super) fn arm(&self, moment: Moment) {
            *self.0.lock() = moment;
            self.1.notify_one();
        }

        pub(super) fn wait(&self) {
            let armed = self.0.lock();
            let left = armed.since(system_now());
            drop(self.1.wait_timeout(armed, left).unwrap_or_else(PoisonError::into_inner));
        }
    }
}
