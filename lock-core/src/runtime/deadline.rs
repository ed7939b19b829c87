//! The deadline thread: one thread of the process that keeps all deadlines, whatever the runtimes do.
//!
//! A hold must be declared lost in time even if every runtime is busy, blocked or gone, and when the machine has just
//! woken from a suspend. So the deadlines of all clients are kept on one operating-system thread of their own. On Linux
//! it waits on a timer of `CLOCK_BOOTTIME`, which fires immediately if the machine wakes after the moment; elsewhere it
//! waits on the monotonic clock.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;

use crate::runtime::clock::{Alarm, AlarmNumber, Moment, Schedule, ring_due};
use crate::runtime::sync::Mutex;

struct DeadlineThread {
    schedule: Mutex<Schedule>,
    /// The moment at which the thread wakes by itself. Later alarms need not wake it.
    looks_at: Mutex<Moment>,
    bell: platform::Bell,
}

static THREAD: OnceLock<Arc<DeadlineThread>> = OnceLock::new();
static STARTING: Mutex<()> = Mutex::new(());

/// Starts the thread, if it is not running yet.
pub(crate) fn start() -> io::Result<()> {
    running().map(drop)
}

fn running() -> io::Result<&'static Arc<DeadlineThread>> {
    if let Some(thread) = THREAD.get() {
        return Ok(thread);
    }
    let _starting = STARTING.lock();
    if let Some(thread) = THREAD.get() {
        return Ok(thread);
    }
    let (bell, waiter) = platform::bell()?;
    let shared =
        Arc::new(DeadlineThread { schedule: Mutex::default(), looks_at: Mutex::new(Moment::FOREVER), bell });
    let for_thread = Arc::clone(&shared);
    thread::Builder::new().name("distlock-deadline".to_owned()).spawn(move || for_thread.run(&waiter))?;
    Ok(THREAD.get_or_init(|| shared))
}

/// Schedules an alarm on the clock of the machine.
///
/// If the system cannot start the thread, the alarm rings immediately: too early is safe, too late is not.
pub(crate) fn schedule(moment: Moment, alarm: Arc<dyn Alarm>) -> Option<AlarmNumber> {
    let Ok(thread) = running() else {
        alarm.ring(moment.max(system_now()));
        return None;
    };
    let number = thread.schedule.lock().insert(moment, alarm);
    thread.look_by(moment);
    Some(number)
}

pub(crate) fn cancel(number: AlarmNumber) {
    if let Some(thread) = THREAD.get() {
        let removed = thread.schedule.lock().remove(number);
        drop(removed);
    }
}

impl DeadlineThread {
    fn look_by(&self, moment: Moment) {
        let mut looks_at = self.looks_at.lock();
        if moment < *looks_at {
            *looks_at = moment;
            drop(looks_at);
            self.bell.ring();
        }
    }

    fn run(&self, waiter: &platform::Waiter) {
        loop {
            // From here on, every insert wakes the thread, because no moment is earlier than this.
            *self.looks_at.lock() = Moment::FOREVER;
            let next = ring_due(&self.schedule, system_now()).unwrap_or(Moment::FOREVER);
            let until = {
                let mut looks_at = self.looks_at.lock();
                *looks_at = next.min(*looks_at);
                *looks_at
            };
            waiter.wait_until(until);
        }
    }
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
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    Moment::from_nanoseconds(0).plus(START.get_or_init(std::time::Instant::now).elapsed())
}

#[cfg(target_os = "linux")]
mod platform {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    use crate::runtime::clock::Moment;

    pub(super) struct Bell(Arc<OwnedFd>);

    pub(super) struct Waiter {
        timer: OwnedFd,
        rung: Arc<OwnedFd>,
    }

    pub(super) fn bell() -> io::Result<(Bell, Waiter)> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let rung = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        Ok((Bell(Arc::clone(&rung)), Waiter { timer, rung }))
    }

    impl Bell {
        pub(super) fn ring(&self) {
            // This can only fail after 2^64 - 2 writes without a read: then the bell is ringing already.
            let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
        }
    }

    impl Waiter {
        pub(super) fn wait_until(&self, moment: Moment) {
            let armed = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &timer_value(moment));
            let mut events =
                [PollFd::new(&self.timer, PollFlags::IN), PollFd::new(&*self.rung, PollFlags::IN)];
            if armed.is_err() || poll(&mut events, None).is_err() {
                // Interrupted, or the kernel refused: check again too early rather than too late.
                thread::sleep(Duration::from_millis(1));
            }
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.rung, &mut count);
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
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::system_now;
    use crate::runtime::clock::Moment;

    pub(super) struct Bell(SyncSender<()>);

    pub(super) struct Waiter(Receiver<()>);

    pub(super) fn bell() -> io::Result<(Bell, Waiter)> {
        let (sender, receiver) = sync_channel(1);
        Ok((Bell(sender), Waiter(receiver)))
    }

    impl Bell {
        pub(super) fn ring(&self) {
            // A full channel means that the bell is ringing already.
            let _ = self.0.try_send(());
        }
    }

    impl Waiter {
        pub(super) fn wait_until(&self, moment: Moment) {
            let _ = self.0.recv_timeout(moment.since(system_now()));
        }
    }
}
