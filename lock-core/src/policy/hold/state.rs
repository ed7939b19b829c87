//! The state machine of a hold, which ends in exactly one way, and what its listeners have been told of it.
//!
//! ```text
//!   Standing ── begin_release ──▶ Releasing ── finish ──▶ Ended(Released or Lost)
//!      └──────────────── lose ──────────────────────────▶ Ended(Lost)
//! ```
//!
//! Only one caller makes the transition out of *Standing*, and its call says so; all other callers learn that they came
//! too late. That is why a loss is announced once, and never after the release has begun. Times are nanoseconds of the
//! client's clock.
//!
//! A listener learns first of the acquisition, then of suspect and restored contact, then of the end. What happens before
//! the owner has received the hold waits until it has. A hold that never had an owner is not reported. `publish` is called
//! with the mutex held, which keeps the events in order, so it must not run user code.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::runtime::{Few, Mutex, with_waker};
use crate::types::{HoldEnd, LossReason};

/// The events of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Acquired,
    Released,
    Suspect,
    Restored,
    Abort(LossReason),
}

/// The state of one hold.
#[derive(Debug)]
pub(crate) struct HoldState {
    life: Mutex<Life>,
    /// The moment from which the hold is no longer valid. It moves only while the mutex is locked.
    deadline: AtomicU64,
}

#[derive(Debug)]
struct Life {
    phase: Phase,
    /// Whether contact with the server is lost.
    is_suspect: bool,
    reported: Reported,
    /// Present once there has been one: most holds are never watched.
    watchers: Option<Box<Watchers>>,
}

/// Those who wait for the end.
#[derive(Debug, Default)]
struct Watchers {
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

/// The phase of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Standing,
    Releasing,
    Ended(HoldEnd),
}

/// What listeners know of the hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    /// Nothing: the owner has not received the hold yet. It may already have ended.
    Nothing,
    /// The acquisition, and whether contact is lost.
    Held {
        is_suspect: bool,
    },
    End,
}

impl Life {
    fn follow_contact(&mut self, publish: impl FnOnce(Event)) {
        let Reported::Held { is_suspect } = &mut self.reported else { return };
        if matches!(self.phase, Phase::Standing) && *is_suspect != self.is_suspect {
            *is_suspect = self.is_suspect;
            publish(if self.is_suspect { Event::Suspect } else { Event::Restored });
        }
    }

    /// The event is published if the owner has received the hold.
    fn end(&mut self, end: HoldEnd, event: Event, publish: impl FnOnce(Event), woken: &mut Few<Waker>) {
        woken.extend(self.watchers.take().into_iter().flat_map(|watchers| watchers.wakers.into_values()));
        self.phase = Phase::Ended(end);
        if self.reported != Reported::Nothing {
            self.reported = Reported::End;
            publish(event);
        }
    }
}

impl HoldState {
    pub(crate) fn new(deadline: u64) -> Self {
        Self {
            life: Mutex::new(Life {
                phase: Phase::Standing,
                is_suspect: false,
                reported: Reported::Nothing,
                watchers: None,
            }),
            deadline: AtomicU64::new(deadline),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.life.lock().phase
    }

    /// Returns how long the hold is still valid, in nanoseconds: `u64::MAX` without a deadline, zero when it has ended.
    /// `now` is called while the mutex is held. Otherwise a renewal could move the deadline meanwhile, and the old
    /// deadline would be compared with a time at which it no longer applied.
    pub(crate) fn remaining(&self, now: impl FnOnce() -> u64) -> u64 {
        let life = self.life.lock();
        match (life.phase, self.last_deadline()) {
            (Phase::Standing, u64::MAX) => u64::MAX,
            (Phase::Standing, deadline) => deadline.saturating_sub(now()),
            _ => 0,
        }
    }

    /// Returns the last deadline, whatever has become of the hold.
    pub(crate) fn last_deadline(&self) -> u64 {
        self.deadline.load(Ordering::Acquire)
    }

    /// Moves the deadline; contact is good again. Does nothing when the deadline has passed or the hold has ended. Returns
    /// whether contact had been suspect. `now` is called while the mutex is held, so that a caller that has seen the hold
    /// expired never sees it valid again.
    pub(crate) fn renew(
        &self,
        deadline: u64,
        now: impl FnOnce() -> u64,
        publish: impl FnOnce(Event),
    ) -> bool {
        let mut life = self.life.lock();
        if !matches!(life.phase, Phase::Standing) || now() >= self.last_deadline() {
            return false;
        }
        self.deadline.fetch_max(deadline, Ordering::AcqRel);
        let was_suspect = std::mem::replace(&mut life.is_suspect, false);
        life.follow_contact(publish);
        was_suspect
    }

    /// Records that contact is lost. Returns whether that changed the state of a hold that stands.
    pub(crate) fn suspect(&self, publish: impl FnOnce(Event)) -> bool {
        let mut life = self.life.lock();
        let was_suspect = std::mem::replace(&mut life.is_suspect, true);
        life.follow_contact(publish);
        !was_suspect && matches!(life.phase, Phase::Standing)
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.life.lock().is_suspect
    }

    /// The owner has received the hold, for the first time or again: returns whether it is the first. Publishes that then, and
    /// the end of the hold, if that came first.
    pub(crate) fn acquired(&self, mut publish: impl FnMut(Event)) -> bool {
        let mut life = self.life.lock();
        if life.reported != Reported::Nothing {
            return false;
        }
        publish(Event::Acquired);
        life.reported = Reported::Held { is_suspect: false };
        let Phase::Ended(end) = life.phase else {
            life.follow_contact(publish);
            return true;
        };
        life.reported = Reported::End;
        publish(match end {
            HoldEnd::Released => Event::Released,
            HoldEnd::Lost(reason) => Event::Abort(reason),
        });
        true
    }

    /// Begins the release of a hold that stands: from here on it cannot be lost any more.
    pub(crate) fn begin_release(&self) -> bool {
        let mut life = self.life.lock();
        let stands = matches!(life.phase, Phase::Standing);
        if stands {
            life.phase = Phase::Releasing;
        }
        stands
    }

    /// Declares the hold lost. Returns whether this call did it. Publishes that if its owner has received it. Those who watch it
    /// are to be woken when no mutex is locked.
    pub(crate) fn lose(
        &self,
        reason: LossReason,
        publish: impl FnOnce(Event),
        woken: &mut Few<Waker>,
    ) -> bool {
        let mut life = self.life.lock();
        let stands = matches!(life.phase, Phase::Standing);
        if stands {
            life.end(HoldEnd::Lost(reason), Event::Abort(reason), publish, woken);
        }
        stands
    }

    /// Ends a release: the hold is released, or turns out to have been lost. Returns whether this call did it.
    pub(crate) fn finish(
        &self,
        loss: Option<LossReason>,
        publish: impl FnOnce(Event),
        woken: &mut Few<Waker>,
    ) -> bool {
        let mut life = self.life.lock();
        let releasing = matches!(life.phase, Phase::Releasing);
        if releasing {
            life.end(loss.map_or(HoldEnd::Released, HoldEnd::Lost), Event::Released, publish, woken);
        }
        releasing
    }

    /// Waits for the end. `watcher` keeps the place between polls.
    pub(crate) fn poll(&self, watcher: &mut Option<u64>, context: &mut Context<'_>) -> Poll<HoldEnd> {
        with_waker(context, |waker| {
            let mut life = self.life.lock();
            if let Phase::Ended(end) = life.phase {
                // It watches no longer.
                *watcher = None;
                return Poll::Ready(end);
            }
            let Watchers { wakers, next } = &mut **life.watchers.get_or_insert_default();
            let place = *watcher.get_or_insert_with(|| {
                let place = *next;
                *next += 1;
                place
            });
            *waker = waker.take().and_then(|waker| wakers.insert(place, waker));
            Poll::Pending
        })
    }

    /// Removes a watcher that was dropped.
    pub(crate) fn unwatch(&self, watcher: u64) {
        let waker = self.life.lock().watchers.as_mut().and_then(|watchers| watchers.wakers.remove(&watcher));
        drop(waker);
    }
}
