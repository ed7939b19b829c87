//! The joint holds of several locks, by their owners.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::joint_hold::join;
use crate::api::lock::DistributedLock;
use crate::api::publisher::Publisher;
use crate::api::scope;
use crate::policy::hold::{Hold, UntilEnded};
use crate::runtime::{Clock, Mutex, race};
use crate::spi::{Backoff, Wait};
use crate::types::{ErrorKind, LockError, LockName, Operation, Owner};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Several locks, in their order, and who holds all of them.
pub(crate) struct Joints {
    pub(super) name: LockName,
    pub(super) clock: Clock,
    pub(super) names: Box<[LockName]>,
    locks: Vec<Arc<dyn DistributedLock>>,
    held: Mutex<HashMap<Owner, Joint>>,
    pub(super) publisher: Arc<Publisher>,
    /// Which of the locks was held by another owner, the last time that one was.
    refused: AtomicUsize,
}

/// One owner's hold of all locks.
struct Joint {
    /// It refers to the locks: those that were left to their owner stay held when no lock or guard is left.
    hold: Hold,
    entries: u64,
    /// What was done under it may go on after its entries have ended.
    keeps_margin: bool,
    guards: Vec<LockGuard>,
    _parts: Vec<UntilEnded>,
}

impl Joints {
    /// Joins locks that are in order.
    pub(super) fn of(
        locks: Vec<Arc<dyn DistributedLock>>,
        names: &[LockName],
        publisher: &Arc<Publisher>,
    ) -> Result<Self, LockError> {
        Ok(Self {
            name: joined(names)?,
            clock: locks.first().map_or_else(Clock::system, |lock| lock.clock().clone()),
            names: names.into(),
            locks,
            held: Mutex::default(),
            publisher: Arc::clone(publisher),
            refused: AtomicUsize::new(0),
        })
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    pub(super) fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        let owners = self.held.lock();
        let joint = owners.get(&owner)?;
        joint.hold.loss().is_none().then(|| (joint.hold.clone(), joint.entries))
    }

    pub(super) fn is_locked(&self) -> bool {
        self.held.lock().values().any(|joint| joint.hold.loss().is_none())
    }

    /// The error of a wait that ended without all locks. It names the lock that another owner has.
    pub(super) fn busy(&self) -> LockError {
        match self.locks.get(self.refused.load(Ordering::Relaxed)) {
            Some(part) => {
                part.busy().on(&self.name).because(format!("{:?} is held by another owner", part.name()))
            }
            None => LockError::busy(&self.name),
        }
    }

    pub(super) async fn acquire(
        self: &Arc<Self>,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<Hold>, LockError> {
        if let Some(hold) = self.enter(owner, None)? {
            return Ok(Some(hold));
        }
        let Some(guards) = self.take_all(owner, wait).await? else { return Ok(None) };
        let hold = self.joined(owner, guards);
        hold.report_acquired();
        Ok(Some(hold))
    }

    /// Enters again for `owner`, if it has all locks; with `of`, only into that hold.
    pub(super) fn enter(&self, owner: Owner, of: Option<&Hold>) -> Result<Option<Hold>, LockError> {
        let mut owners = self.held.lock();
        let Some(joint) = entered(&mut owners, owner, of) else {
            return of.map_or(Ok(None), |hold| Err(self.ended(Operation::Acquire, hold)));
        };
        let hold = joint.hold.clone();
        if hold.is_valid() {
            joint.entries += 1;
            return Ok(Some(hold));
        }
        // A caller without a guard learns of it now.
        let ended = if of.is_none() { owners.remove(&owner) } else { None };
        drop(owners);
        drop(ended);
        Err(self.ended(Operation::Acquire, &hold))
    }

    /// Makes a joint hold of the guards of all locks.
    fn joined(self: &Arc<Self>, owner: Owner, guards: Vec<LockGuard>) -> Hold {
        let (hold, parts) = join(self, guards.iter().map(LockGuard::hold));
        let joint = Joint { hold, entries: 1, keeps_margin: false, guards, _parts: parts };
        let mut owners = self.held.lock();
        // Another task may have acquired them for the same owner meanwhile.
        let (hold, ended) = match owners.get_mut(&owner).filter(|earlier| earlier.hold.is_valid()) {
            Some(earlier) => {
                earlier.entries += 1;
                (earlier.hold.clone(), Some(joint))
            }
            None => (joint.hold.clone(), owners.insert(owner, joint)),
        };
        drop(owners);
        drop(ended);
        hold
    }

    /// Acquires all locks, and again from the first when one is lost meanwhile.
    async fn take_all(&self, owner: Owner, wait: Wait) -> Result<Option<Vec<LockGuard>>, LockError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let mut guards = Vec::with_capacity(self.locks.len());
            for lock in &self.locks {
                let acquiring = lock.acquire_as(owner, self.wait_by(lock.clock(), wait));
                let Ok(answer) = race(acquiring, one_ends(&guards)).await else { break };
                let Some(guard) = answer? else {
                    self.refused.store(guards.len(), Ordering::Relaxed);
                    return Ok(None);
                };
                guards.push(guard);
            }
            match guards.iter().find(|guard| !guard.hold().is_valid()) {
                None => return Ok(Some(guards)),
                Some(ended) if wait == Wait::Try => {
                    return Err(part_ended(&self.name, Operation::Acquire, ended.hold()));
                }
                Some(_) => drop(guards),
            }
            let pause = self.clock.now().plus(backoff.next_pause());
            self.clock.sleep_until(pause.min(wait.deadline())).await;
        }
    }

    /// Returns the wait by another clock: clients may differ in theirs.
    fn wait_by(&self, clock: &Clock, wait: Wait) -> Wait {
        match wait {
            Wait::Until(deadline) => Wait::Until(clock.now().plus(deadline.since(self.clock.now()))),
            wait => wait,
        }
    }

    /// The entries of `owner` into `hold`, which is lost, do not say when it has stopped.
    pub(super) fn keep_margin(&self, owner: Owner, hold: &Hold) {
        if let Some(joint) = entered(&mut self.held.lock(), owner, Some(hold)) {
            joint.keeps_margin = true;
        }
    }

    /// Ends one entry of `owner`; with `of`, only one into that hold. Returns the joint hold with the last one, and when the owner
    /// learns that it is lost.
    fn leave(&self, owner: Owner, of: Option<&Hold>) -> Result<(Hold, Option<Joint>), LockError> {
        let mut owners = self.held.lock();
        let Some(joint) = entered(&mut owners, owner, of) else {
            let is_lost = |hold: &Hold| hold.loss().is_some();
            return Err(match of.filter(|of| is_lost(of) || of.parts().iter().any(is_lost)) {
                Some(lost) => self.ended(Operation::Release, lost),
                None => LockError::not_owner(&self.name, owner),
            });
        };
        joint.entries -= 1;
        let hold = joint.hold.clone();
        let is_over = joint.entries == 0 || (of.is_none() && hold.loss().is_some());
        Ok((hold, if is_over { owners.remove(&owner) } else { None }))
    }

    /// Ends one entry of `owner`, and with the last one releases all locks; with `of`, only one into that hold.
    pub(super) async fn release(&self, owner: Owner, of: Option<&Hold>) -> Result<(), LockError> {
        let (hold, last) = self.leave(owner, of)?;
        if of.is_none() {
            scope::forget(owner, |guard| *guard.hold() == hold);
        }
        let errors = match last {
            Some(joint) => joint.release().await,
            None => Vec::new(),
        };
        if hold.loss().is_some() {
            return Err(self.ended(Operation::Release, &hold));
        }
        let not_owner = errors.iter().position(|error| error.kind() == ErrorKind::NotOwner);
        errors.into_iter().nth(not_owner.unwrap_or_default()).map_or(Ok(()), Err)
    }

    /// Ends one entry of `owner` into `hold` without waiting.
    pub(super) fn leave_in_background(&self, owner: Owner, hold: &Hold) {
        // Outside of the mutex: the guards call their locks.
        drop(self.leave(owner, Some(hold)));
    }

    /// The error of a hold that has ended, which names the part that has.
    fn ended(&self, operation: Operation, hold: &Hold) -> LockError {
        let parts = hold.parts();
        let ended =
            parts.iter().find(|part| part.loss().is_some()).or(parts.iter().find(|part| !part.is_valid()));
        part_ended(&self.name, operation, ended.unwrap_or(hold))
    }
}

/// What `owner` has of all locks; with `of`, only if that is its hold.
fn entered<'a>(
    owners: &'a mut HashMap<Owner, Joint>,
    owner: Owner,
    of: Option<&Hold>,
) -> Option<&'a mut Joint> {
    owners.get_mut(&owner).filter(|joint| of.is_none_or(|of| joint.hold == *of))
}

/// The error of a joint hold one part of which has ended.
fn part_ended(name: &LockName, operation: Operation, part: &Hold) -> LockError {
    let error = part.why_over(operation).on(name);
    let how = if error.loss().is_some() { "lost" } else { "released meanwhile" };
    error.because(format!("{:?} was {how}", part.name()))
}

/// The name of several locks together: the names of all, or of the first and how many there are.
fn joined(names: &[LockName]) -> Result<LockName, LockError> {
    let texts: Vec<_> = names.iter().map(LockName::as_str).collect();
    let first = texts.first().copied().unwrap_or_default();
    LockName::new(texts.join(" + "))
        .or_else(|_| LockName::new(format!("{first} + {} more", names.len().saturating_sub(1))))
        .or_else(|_| LockName::new(first))
}

/// Waits until one of the guards has lost its hold, or another entry of its owner has ended it.
async fn one_ends(guards: &[LockGuard]) {
    let mut ends: Vec<_> = guards.iter().map(|guard| Box::pin(guard.hold().ended())).collect();
    poll_fn(|context| {
        let has_ended = ends.iter_mut().any(|end| end.as_mut().poll(context).is_ready());
        if has_ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

impl Joint {
    fn begins_to_end(&self) {
        self.hold.0.state.begin_release();
        // Code with another entry may be at work.
        if self.keeps_margin || self.entries > 0 {
            self.guards.iter().for_each(LockGuard::keep_margin);
        }
    }

    /// Releases all locks at once, and returns what went wrong. Those that are not released when the future is dropped
    /// are released in the background.
    async fn release(mut self) -> Vec<LockError> {
        self.begins_to_end();
        let guards = std::mem::take(&mut self.guards);
        let mut pending: Vec<_> = guards.into_iter().map(|guard| Box::pin(guard.release())).collect();
        let mut errors = Vec::new();
        poll_fn(|context| {
            pending.retain_mut(|release| match release.as_mut().poll(context) {
                Poll::Ready(outcome) => {
                    errors.extend(outcome.err());
                    false
                }
                Poll::Pending => true,
            });
            if pending.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        self.hold.released(errors.iter().find_map(LockError::loss));
        errors
    }
}

impl Drop for Joint {
    /// Releases in the background what is still held.
    fn drop(&mut self) {
        self.begins_to_end();
        self.guards.clear();
        self.hold.released(None);
    }
}
