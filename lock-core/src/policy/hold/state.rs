//! The state machine of a hold, which ends in exactly one way.
//!
//! ```text
//!   Standing ── begin_release ──▶ Releasing ── finish ──▶ Ended(released or lost)
//!      └──────── lose, expire ──────────────────────────▶ Ended(lost)
//! ```
//!
//! Only one caller makes the transition out of *Standing*, and its call says so; all other callers learn that they came
//! too late. That is why a loss is announced once, and never after the release has begun. Times are nanoseconds of the
//! client's clock.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;

/// The state of one hold. `R` is the reason of a loss.
#[derive(Debug)]
pub(crate) struct HoldState<R> {
    inner: Mutex<Inner<R>>,
}

#[derive(Debug)]
struct Inner<R> {
    phase: Phase<R>,
    /// The moment from which the hold is no longer valid.
    deadline: u64,
    contact: Contact,
    /// Present once there has been one: most holds are never watched.
    watchers: Option<Box<Watchers>>,
}

/// Those who wait for another phase.
#[derive(Debug, Default)]
struct Watchers {
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

/// The phase of a hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase<R> {
    Standing,
    Releasing,
    Released,
    Lost(R),
}

/// Whether contact with the server is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contact {
    Good,
    Suspect,
}

/// The effect of a renewal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewed {
    /// The deadline has moved.
    Extended,
    /// The deadline has moved, and contact had been suspect before.
    Restored,
    /// The renewal came too late: the deadline had passed, or the hold had ended.
    TooLate,
}

/// The result of checking the deadline.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The hold stands until then.
    Until(u64),
    /// The deadline has passed, and this call has turned that into a loss.
    Expired,
    /// The hold had ended, or its release has begun.
    Over,
}

impl<R> Inner<R> {
    /// Returns whether the deadline has passed. Most holds without a lease have none, so the clock need not be read.
    fn has_passed(&self, now: impl FnOnce() -> u64) -> bool {
        self.deadline != u64::MAX && now() >= self.deadline
    }
}

impl<R: Clone> HoldState<R> {
    pub(crate) fn new(deadline: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                phase: Phase::Standing,
                deadline,
                contact: Contact::Good,
                watchers: None,
            }),
        }
    }

    pub(crate) fn phase(&self) -> Phase<R> {
        self.inner.lock().phase.clone()
    }

    /// Returns the state of the contact, while the hold stands.
    pub(crate) fn contact(&self) -> Option<Contact> {
        let inner = self.inner.lock();
        matches!(inner.phase, Phase::Standing).then_some(inner.contact)
    }

    /// Returns how long the hold is still valid, in nanoseconds: `u64::MAX` without a deadline, zero when it has ended.
    /// `now` is called while the mutex is held. Otherwise a renewal could move the deadline meanwhile, and the old
    /// deadline would be compared with a time at which it no longer applied.
    pub(crate) fn remaining(&self, now: impl FnOnce() -> u64) -> u64 {
        let inner = self.inner.lock();
        match inner.phase {
            Phase::Standing if inner.deadline == u64::MAX => u64::MAX,
            Phase::Standing => inner.deadline.saturating_sub(now()),
            _ => 0,
        }
    }

    /// Returns the last deadline, whatever has become of the hold.
    pub(crate) fn last_deadline(&self) -> u64 {
        self.inner.lock().deadline
    }

    /// Moves the deadline to an earlier one.
    pub(crate) fn limit(&self, deadline: u64) {
        let mut inner = self.inner.lock();
        inner.deadline = inner.deadline.min(deadline);
    }

    /// Moves the deadline. `now` is called while the mutex is held, so that a caller that has seen the hold expired
    /// never sees it valid again.
    pub(crate) fn renew(&self, deadline: u64, now: impl FnOnce() -> u64) -> Renewed {
        let mut inner = self.inner.lock();
        if !matches!(inner.phase, Phase::Standing) || now() >= inner.deadline {
            return Renewed::TooLate;
        }
        inner.deadline = inner.deadline.max(deadline);
        match std::mem::replace(&mut inner.contact, Contact::Good) {
            Contact::Good => Renewed::Extended,
            Contact::Suspect => Renewed::Restored,
        }
    }

    /// Records that contact is lost. Returns whether that changed the state of a hold that stands.
    pub(crate) fn suspect(&self) -> bool {
        let mut inner = self.inner.lock();
        let was_good = std::mem::replace(&mut inner.contact, Contact::Suspect) == Contact::Good;
        was_good && matches!(inner.phase, Phase::Standing)
    }

    /// Returns whether contact was lost, also when the release had begun: the lease may pass to another hold.
    pub(crate) fn is_suspect(&self) -> bool {
        self.inner.lock().contact == Contact::Suspect
    }

    /// Records that contact has returned although nothing was renewed. Returns whether that changed the state.
    pub(crate) fn restore(&self) -> bool {
        let mut inner = self.inner.lock();
        matches!(inner.phase, Phase::Standing)
            && std::mem::replace(&mut inner.contact, Contact::Good) == Contact::Suspect
    }

    /// Declares the hold lost. Returns whether this call did it.
    pub(crate) fn lose(&self, reason: R) -> bool {
        let mut inner = self.inner.lock();
        if !matches!(inner.phase, Phase::Standing) {
            return false;
        }
        inner.phase = Phase::Lost(reason);
        let watchers = inner.watchers.take();
        drop(inner);
        wake(watchers);
        true
    }

    /// Declares the hold lost for `reason` if its deadline has passed.
    pub(crate) fn expire(&self, now: u64, reason: R) -> Checked {
        let mut inner = self.inner.lock();
        match inner.phase {
            Phase::Standing if now < inner.deadline => return Checked::Until(inner.deadline),
            Phase::Standing => {}
            _ => return Checked::Over,
        }
        inner.phase = Phase::Lost(reason);
        let watchers = inner.watchers.take();
        drop(inner);
        wake(watchers);
        Checked::Expired
    }

    /// Begins the release: from here on the hold cannot be lost any more. Fails when the hold has been lost, or has
    /// expired without a report of the loss so far.
    pub(crate) fn begin_release(&self, now: impl FnOnce() -> u64, expired: R) -> Result<(), R> {
        let mut inner = self.inner.lock();
        match &inner.phase {
            Phase::Standing if inner.has_passed(now) => Err(expired),
            Phase::Standing => {
                inner.phase = Phase::Releasing;
                Ok(())
            }
            Phase::Lost(reason) => Err(reason.clone()),
            Phase::Releasing | Phase::Released => Ok(()),
        }
    }

    /// Checks that the hold stands and has not expired.
    pub(crate) fn verify(&self, now: impl FnOnce() -> u64, expired: R) -> Result<(), R> {
        let inner = self.inner.lock();
        match &inner.phase {
            Phase::Standing if inner.has_passed(now) => Err(expired),
            Phase::Standing => Ok(()),
            Phase::Lost(reason) => Err(reason.clone()),
            Phase::Releasing | Phase::Released => Err(expired),
        }
    }

    /// Ends a release: the hold is released, or turns out to have been lost. Returns whether this call did it.
    pub(crate) fn finish(&self, loss: Option<R>) -> bool {
        let mut inner = self.inner.lock();
        if !matches!(inner.phase, Phase::Releasing) {
            return false;
        }
        inner.phase = loss.map_or(Phase::Released, Phase::Lost);
        let watchers = inner.watchers.take();
        drop(inner);
        wake(watchers);
        true
    }

    /// Waits for a phase for which `wanted` returns a value. `watcher` keeps the place between polls.
    pub(crate) fn poll<T>(
        &self,
        watcher: &mut Option<u64>,
        context: &mut Context<'_>,
        wanted: impl Fn(&Phase<R>) -> Option<T>,
    ) -> Poll<T> {
        with_waker(context, |waker| {
            let mut inner = self.inner.lock();
            if let Some(found) = wanted(&inner.phase) {
                return Poll::Ready(found);
            }
            let Watchers { wakers, next } = &mut **inner.watchers.get_or_insert_default();
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
        let waker = self.inner.lock().watchers.as_mut().and_then(|watchers| watchers.wakers.remove(&watcher));
        drop(waker);
    }
}

fn wake(watchers: Option<Box<Watchers>>) {
    for waker in watchers.into_iter().flat_map(|watchers| watchers.wakers.into_values()) {
        waker.wake();
    }
}
