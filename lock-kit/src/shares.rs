//! Who holds a lock or a semaphore and who waits for it: the rules, without clocks, tokens and wakers, for backends that
//! keep the queue themselves.

use std::collections::{BTreeMap, VecDeque};

use lock_core::{AttemptId, Mode};

/// Who holds a lock or a semaphore, and who waits for it; `H` is what is kept of a holder, `W` what is kept of a waiter.
///
/// First come, first served: a head that does not fit stops the queue, and all that fit follow it. The tests go through
/// all states of a few clients.
///
/// ```
/// use lock_core::{AttemptId, Mode};
/// use lock_kit::{Asked, Shares};
///
/// let (first, second) = (AttemptId::new(1), AttemptId::new(2));
/// let mut lock = Shares::default();
/// assert_eq!(lock.ask(first, Mode::Exclusive), Asked::Free);
/// lock.hold(first, Mode::Exclusive, "the first");
/// assert_eq!(lock.ask(second, Mode::Exclusive), Asked::Behind);
/// lock.wait(second, Mode::Exclusive, "the second");
/// lock.remove(first, |_, _, waiter| waiter); // what is kept of a waiter becomes what is kept of a holder
/// assert_eq!(lock.holder(second), Some(&"the second"));
/// ```
#[derive(Clone)]
pub struct Shares<H, W> {
    holders: BTreeMap<u128, (Mode, H)>,
    queue: VecDeque<(AttemptId, Mode, W)>,
    /// How many permits the holders have.
    taken: u32,
}

/// What an attempt finds.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// Its own hold.
    Holds,
    /// Its own place in the queue.
    Waits,
    /// Nothing in its way: the caller lets it [hold](Shares::hold) the lock.
    Free,
    /// Others, which have the lock or come before: the caller lets it [wait](Shares::wait), or refuses it.
    Behind,
    /// A semaphore with this many permits.
    OtherPermits(u32),
}

/// What there was of an attempt.
pub struct Removed<H, W> {
    /// What was kept of it as a holder.
    pub held: Option<H>,
    /// What was kept of it as a waiter.
    pub waited: Option<W>,
}

impl<H, W> Default for Shares<H, W> {
    fn default() -> Self {
        Self { holders: BTreeMap::new(), queue: VecDeque::new(), taken: 0 }
    }
}

impl<H, W> Shares<H, W> {
    /// Returns what an attempt with this id finds.
    pub fn ask(&self, id: AttemptId, mode: Mode) -> Asked {
        if self.holders.contains_key(&id.get()) {
            return Asked::Holds;
        }
        if self.queue.iter().any(|(other, _, _)| *other == id) {
            return Asked::Waits;
        }
        match (mode, self.permits()) {
            (Mode::Permits { of, .. }, Some(is)) if of.get() != is => Asked::OtherPermits(is),
            _ if self.queue.is_empty() && self.fits(mode) => Asked::Free,
            _ => Asked::Behind,
        }
    }

    /// Returns how many permits there are, as long as there is a holder or a waiter.
    fn permits(&self) -> Option<u32> {
        let modes = self.holders.values().map(|(mode, _)| mode);
        match modes.chain(self.queue.iter().map(|(_, mode, _)| mode)).next()? {
            Mode::Permits { of, .. } => Some(of.get()),
            _ => None,
        }
    }

    /// Returns whether the holders leave room for another one.
    fn fits(&self, mode: Mode) -> bool {
        let Some((held, _)) = self.holders.values().next() else { return true };
        match (*held, mode) {
            (Mode::Shared, Mode::Shared) => true,
            (Mode::Permits { .. }, Mode::Permits { take, of }) => {
                of.get().checked_sub(self.taken).is_some_and(|free| take.get() <= free)
            }
            _ => false,
        }
    }

    /// Lets an attempt hold the lock, which has found it [free](Asked::Free).
    pub fn hold(&mut self, id: AttemptId, mode: Mode, holder: H) -> &mut H {
        self.taken += weight(mode);
        &mut self.holders.entry(id.get()).or_insert((mode, holder)).1
    }

    /// Lets an attempt wait at the end of the queue.
    pub fn wait(&mut self, id: AttemptId, mode: Mode, waiter: W) {
        self.queue.push_back((id, mode, waiter));
    }

    /// Lets an attempt wait before all others, for a server whose tests do that.
    pub fn wait_first(&mut self, id: AttemptId, mode: Mode, waiter: W) {
        self.queue.push_front((id, mode, waiter));
    }

    /// Removes what there is of an attempt, and grants what others can have now.
    pub fn remove(&mut self, id: AttemptId, grant: impl FnMut(AttemptId, Mode, W) -> H) -> Removed<H, W> {
        let held = self.holders.remove(&id.get()).map(|(mode, holder)| {
            self.taken -= weight(mode);
            holder
        });
        let place = self.queue.iter().position(|(other, _, _)| *other == id);
        let waited = place.and_then(|place| self.queue.remove(place)).map(|(_, _, waiter)| waiter);
        // Also when a waiter leaves: it may have held back those behind it.
        self.admit(grant);
        Removed { held, waited }
    }

    /// Turns an exclusive hold into a shared one with another id, and grants what others can have now. Returns whether
    /// there was such a hold.
    pub fn share(
        &mut self,
        held: AttemptId,
        id: AttemptId,
        change: impl FnOnce(H) -> H,
        grant: impl FnMut(AttemptId, Mode, W) -> H,
    ) -> bool {
        let Some((_, holder)) = self.holders.remove(&held.get()) else { return false };
        self.holders.insert(id.get(), (Mode::Shared, change(holder)));
        self.admit(grant);
        true
    }

    /// Grants what can be had now, in the order of the queue. Only what was put together from elsewhere needs it.
    pub fn admit(&mut self, mut grant: impl FnMut(AttemptId, Mode, W) -> H) {
        while self.queue.front().is_some_and(|(_, mode, _)| self.fits(*mode)) {
            let Some((id, mode, waiter)) = self.queue.pop_front() else { return };
            let holder = grant(id, mode, waiter);
            self.hold(id, mode, holder);
        }
    }

    /// Returns what is kept of a holder.
    pub fn holder(&self, id: AttemptId) -> Option<&H> {
        self.holders.get(&id.get()).map(|(_, holder)| holder)
    }

    /// Returns what is kept of a holder.
    pub fn holder_mut(&mut self, id: AttemptId) -> Option<&mut H> {
        self.holders.get_mut(&id.get()).map(|(_, holder)| holder)
    }

    /// Returns what is kept of a waiter.
    pub fn waiter_mut(&mut self, id: AttemptId) -> Option<&mut W> {
        self.queue.iter_mut().find(|(other, _, _)| *other == id).map(|(_, _, waiter)| waiter)
    }

    /// Returns all holders, in the order of their ids.
    pub fn holders(&self) -> impl Iterator<Item = (AttemptId, Mode, &H)> {
        self.holders.iter().map(|(id, (mode, holder))| (AttemptId::new(*id), *mode, holder))
    }

    /// Returns all waiters, in the order of the queue.
    pub fn waiters(&self) -> impl ExactSizeIterator<Item = (AttemptId, Mode, &W)> {
        self.queue.iter().map(|(id, mode, waiter)| (*id, *mode, waiter))
    }

    /// Returns whether there are neither holders nor waiters.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty()
    }
}

fn weight(mode: Mode) -> u32 {
    match mode {
        Mode::Permits { take, .. } => take.get(),
        _ => 0,
    }
}

#[cfg(test)]
mod model;
