//! The joint holds of several locks, by their owners.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;

use super::joint_hold::JointHold;
use crate::api::guard::LockGuard;
use crate::api::guard_origin::Several;
use crate::api::hold::Hold;
use crate::api::lock::DistributedLock;
use crate::api::publisher::Publisher;
use crate::runtime::clock::Clock;
use crate::runtime::sync::Mutex;
use crate::spi::{Backoff, Wait};
use crate::types::error::{ErrorKind, LockError, Operation};
use crate::types::loss::{HoldEnd, LossReason};
use crate::types::name::LockName;
use crate::types::owner::Owner;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Several locks, in their order, and who holds all of them.
pub(super) struct Joints {
    name: LockName,
    /// Of no server.
    pub(super) server: Arc<str>,
    clock: Clock,
    names: Box<[LockName]>,
    locks: Vec<Arc<dyn DistributedLock>>,
    held: Mutex<HashMap<Owner, Joint>>,
    pub(super) publisher: Arc<Publisher>,
    /// Which of the locks was held by another owner, the last time that one was.
    refused: AtomicUsize,
}

/// One owner's hold of all locks.
struct Joint {
    /// It refers to the locks: those that were left to their owner stay held when no lock or guard is left.
    of: JointHold,
    entries: u64,
    guards: Vec<LockGuard>,
}

/// The result of acquiring all locks once.
enum Taken {
    All(Vec<LockGuard>),
    Refused,
    /// One of them was lost while the others were acquired.
    Lost(LockError),
}

impl Joints {
    /// Joins locks that are in order.
    pub(super) fn of(locks: Vec<Arc<dyn DistributedLock>>) -> Result<Self, LockError> {
        let names: Box<[_]> = locks.iter().map(|lock| lock.name().clone()).collect();
        let clock = locks.first().map_or_else(Clock::system, |lock| lock.clock().clone());
        Ok(Self {
            name: joined(&names)?,
            server: Arc::from(""),
            clock,
            names,
            locks,
            held: Mutex::default(),
            publisher: Arc::default(),
            refused: AtomicUsize::new(0),
        })
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    pub(super) fn names(&self) -> &[LockName] {
        &self.names
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the hold and the number of entries of `owner`, unless the hold has been lost.
    pub(super) fn entry_of(&self, owner: Owner) -> Option<(Hold, u64)> {
        let owners = self.held.lock();
        let joint = owners.get(&owner)?;
        joint.loss().is_none().then(|| (joint.of.hold.clone(), joint.entries))
    }

    pub(super) fn is_locked(&self) -> bool {
        self.held.lock().values().any(|joint| joint.loss().is_none())
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
        if let Some(hold) = self.enter_again(owner)? {
            return Ok(Some(hold));
        }
        let Some(guards) = self.take_all(owner, wait).await? else { return Ok(None) };
        let hold = self.joined(owner, guards);
        hold.0.report_acquired();
        Ok(Some(hold))
    }

    fn enter_again(&self, owner: Owner) -> Result<Option<Hold>, LockError> {
        let mut owners = self.held.lock();
        let Some(joint) = owners.get_mut(&owner) else { return Ok(None) };
        let hold = joint.of.hold.clone();
        if hold.is_valid() {
            joint.entries += 1;
            return Ok(Some(hold));
        }
        // The caller learns of it now.
        let ended = owners.remove(&owner);
        drop(owners);
        drop(ended);
        Err(self.ended(Operation::Acquire, &hold))
    }

    /// Makes a joint hold of the guards of all locks.
    fn joined(self: &Arc<Self>, owner: Owner, guards: Vec<LockGuard>) -> Hold {
        let parts: Vec<_> = guards.iter().map(|guard| guard.hold().clone()).collect();
        let joint = Joint { of: JointHold::of(self, &parts), entries: 1, guards };
        let mut owners = self.held.lock();
        // Another task may have acquired them for the same owner meanwhile.
        let (hold, ended) = match owners.get_mut(&owner).filter(|earlier| earlier.of.hold.is_valid()) {
            Some(earlier) => {
                earlier.entries += 1;
                (earlier.of.hold.clone(), Some(joint))
            }
            None => (joint.of.hold.clone(), owners.insert(owner, joint)),
        };
        drop(owners);
        drop(ended);
        hold
    }

    /// Acquires all locks, and again from the first when one is lost meanwhile.
    async fn take_all(&self, owner: Owner, wait: Wait) -> Result<Option<Vec<LockGuard>>, LockError> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            match self.take_in_order(owner, wait).await? {
                Taken::All(guards) => return Ok(Some(guards)),
                Taken::Refused => return Ok(None),
                Taken::Lost(error) if wait == Wait::Try => return Err(error),
                Taken::Lost(_) => {}
            }
            let pause = self.clock.now().plus(backoff.next_pause());
            self.clock.sleep_until(pause.min(wait.deadline())).await;
        }
    }

    async fn take_in_order(&self, owner: Owner, wait: Wait) -> Result<Taken, LockError> {
        let mut guards: Vec<LockGuard> = Vec::with_capacity(self.locks.len());
        for (index, lock) in self.locks.iter().enumerate() {
            let acquiring = lock.acquire_as(owner, self.wait_by(lock.clock(), wait));
            let Some(answer) = unless_ended(&guards, acquiring).await else { break };
            let Some(guard) = answer? else {
                self.refused.store(index, Ordering::Relaxed);
                return Ok(Taken::Refused);
            };
            guards.push(guard);
        }
        Ok(match guards.iter().find(|guard| !guard.hold().is_valid()) {
            None => Taken::All(guards),
            Some(guard) => Taken::Lost(part_ended(&self.name, Operation::Acquire, guard.hold())),
        })
    }

    /// Returns the wait by another clock: clients may differ in theirs.
    fn wait_by(&self, clock: &Clock, wait: Wait) -> Wait {
        match wait {
            Wait::Until(deadline) => Wait::Until(clock.now().plus(deadline.since(self.clock.now()))),
            wait => wait,
        }
    }

    pub(super) async fn unlock(&self, owner: Owner) -> Result<(), LockError> {
        let (hold, last) = {
            let mut owners = self.held.lock();
            let Some(joint) = owners.get_mut(&owner) else { return Err(self.not_owner(owner)) };
            joint.entries -= 1;
            let (hold, is_over) = (joint.of.hold.clone(), joint.entries == 0 || joint.loss().is_some());
            (hold, if is_over { owners.remove(&owner) } else { None })
        };
        owner.left(&hold);
        self.end(last, &hold).await
    }

    /// Ends one entry of `owner` into `hold`; returns the joint hold with the last one.
    fn leave(&self, owner: Owner, hold: &Hold) -> Result<Option<Joint>, LockError> {
        let mut owners = self.held.lock();
        match owners.get_mut(&owner).filter(|joint| joint.is(hold)) {
            None => Err(self.ended_or(Operation::Release, hold, || self.not_owner(owner))),
            Some(joint) if joint.entries > 1 => {
                joint.entries -= 1;
                Ok(None)
            }
            Some(_) => Ok(owners.remove(&owner)),
        }
    }

    /// Releases all locks, if this was the last entry, and reports a loss.
    async fn end(&self, last: Option<Joint>, hold: &Hold) -> Result<(), LockError> {
        let errors = match last {
            Some(joint) => joint.release().await,
            None => Vec::new(),
        };
        let of = |kind| errors.iter().find(|error| error.kind() == kind);
        match (hold.end(), of(ErrorKind::Lost)) {
            (Some(HoldEnd::Lost(_)), _) => Err(self.ended(Operation::Release, hold)),
            (_, Some(error)) => Err(self.lost_as(error)),
            _ => of(ErrorKind::NotOwner).or(errors.first()).map_or(Ok(()), |error| Err(error.clone())),
        }
    }

    fn lost_as(&self, error: &LockError) -> LockError {
        let reason = error.loss().unwrap_or(LossReason::Expired);
        let part = error.name().unwrap_or(&self.name);
        LockError::lost(Operation::Release, &self.name, reason).because(was_lost(part))
    }

    fn ended(&self, operation: Operation, hold: &Hold) -> LockError {
        self.ended_or(operation, hold, || {
            let ended = hold.parts().into_iter().find(|part| !part.is_valid());
            part_ended(&self.name, operation, &ended.unwrap_or_else(|| hold.clone()))
        })
    }

    /// The error of a hold that was lost, or another one if it was not.
    fn ended_or(
        &self,
        operation: Operation,
        hold: &Hold,
        otherwise: impl FnOnce() -> LockError,
    ) -> LockError {
        let lost = |hold: &Hold| matches!(hold.end(), Some(HoldEnd::Lost(_)));
        match hold.parts().into_iter().find(lost).or_else(|| Some(hold.clone()).filter(lost)) {
            Some(part) => part_ended(&self.name, operation, &part),
            None => otherwise(),
        }
    }

    fn not_owner(&self, owner: Owner) -> LockError {
        LockError::new(ErrorKind::NotOwner, Operation::Release)
            .on(&self.name)
            .because(format!("{owner:?} has no entry"))
            .remedy("unlock in the task or scope that locked, the same lock, once for each lock")
    }
}

/// The error of a joint hold one part of which has ended.
fn part_ended(name: &LockName, operation: Operation, part: &Hold) -> LockError {
    match part.end() {
        Some(HoldEnd::Released) => LockError::new(ErrorKind::NotOwner, operation)
            .on(name)
            .because(format!("{:?} was released meanwhile", part.name())),
        Some(HoldEnd::Lost(reason)) => {
            LockError::lost(operation, name, reason).because(was_lost(part.name()))
        }
        // Its deadline has passed, and the loss is about to be reported.
        None => LockError::lost(operation, name, LossReason::Expired).because(was_lost(part.name())),
    }
}

fn was_lost(part: &LockName) -> String {
    format!("{part:?} was lost")
}

/// The name of several locks together: the names of all, or of the first and how many there are.
fn joined(names: &[LockName]) -> Result<LockName, LockError> {
    let texts: Vec<_> = names.iter().map(LockName::as_str).collect();
    let first = texts.first().copied().unwrap_or_default();
    LockName::new(texts.join(" + "))
        .or_else(|_| LockName::new(format!("{first} + {} more", names.len().saturating_sub(1))))
        .or_else(|_| LockName::new(first))
}

/// Returns the output of `future`, unless one of the guards ends before.
async fn unless_ended<T>(guards: &[LockGuard], future: impl Future<Output = T>) -> Option<T> {
    let mut ends: Vec<_> = guards.iter().map(|guard| Box::pin(guard.hold().ended())).collect();
    let mut future = pin!(future);
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        let has_ended = ends.iter_mut().any(|end| end.as_mut().poll(context).is_ready());
        if has_ended { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

type Releasing = Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>>;

impl Joint {
    fn loss(&self) -> Option<LossReason> {
        match self.of.hold.end() {
            Some(HoldEnd::Lost(reason)) => Some(reason),
            _ => None,
        }
    }

    fn is(&self, hold: &Hold) -> bool {
        self.of.hold == *hold
    }

    /// Releases all locks at once, and returns what went wrong. Those that are not released when the future is dropped
    /// are released in the background.
    async fn release(mut self) -> Vec<LockError> {
        self.of.hold.0.begin_release();
        let begin = |guard: LockGuard| -> Releasing { Box::pin(guard.release()) };
        let mut pending: Vec<_> = std::mem::take(&mut self.guards).into_iter().map(begin).collect();
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
        self.of.hold.released(errors.iter().find_map(LockError::loss));
        errors
    }
}

impl Drop for Joint {
    /// Releases in the background what is still held.
    fn drop(&mut self) {
        self.of.hold.0.begin_release();
        self.guards.clear();
        self.of.hold.released(None);
    }
}

#[async_trait]
impl Several for Joints {
    fn reenter(&self, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        let mut owners = self.held.lock();
        match owners.get_mut(&owner).filter(|joint| joint.is(hold) && hold.is_valid()) {
            Some(joint) => {
                joint.entries += 1;
                Ok(())
            }
            None => Err(self.ended(Operation::Acquire, hold)),
        }
    }

    async fn release(self: Arc<Self>, owner: Owner, hold: &Hold) -> Result<(), LockError> {
        let last = self.leave(owner, hold)?;
        self.end(last, hold).await
    }

    fn release_in_background(&self, owner: Owner, hold: &Hold) {
        // Outside of the mutex: the guards call their locks.
        let last = self.leave(owner, hold);
        drop(last);
    }
}
