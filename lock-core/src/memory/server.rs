//! The server of the memory backend: its table of locks.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use super::faults::{Faults, Outage};
use super::memos::Memos;
use crate::runtime::clock::{Alarm, AlarmHandle, Clock, Moment};
use crate::runtime::sync::Mutex;
use crate::runtime::waker::with_waker;
use crate::spi::AttemptHandle;
use crate::spi::{AcquireRequest, AttemptId, LeaseState, Updated};
use crate::types::loss::LossReason;
use crate::types::name::{LockName, PhysicalName};
use crate::types::status::{Broken, HolderId, HolderInfo, LockStatus, Participant};
use crate::types::token::FencingToken;

/// How a lock is taken from its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The lease of the holder is over.
    Expire,
    /// The entry is deleted.
    Delete,
    /// A foreign holder gets the lock, and never gives it back; [`Loss::Delete`] ends that.
    Steal,
}

/// When the holder learns of its loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// Now: the server notifies it.
    AtOnce,
    /// When it sends a renewal or a release.
    WhenAsked,
}

/// One attempt of a client, as the server knows it.
#[derive(Debug, Clone)]
pub(super) struct Requested {
    pub(super) id: AttemptId,
    pub(super) name: PhysicalName,
    pub(super) lease: Option<Duration>,
}

/// What became of a grant.
#[derive(Debug)]
pub(super) struct Fate {
    token: FencingToken,
    granted_at: Moment,
    loss: Mutex<Option<LossReason>>,
}

impl Fate {
    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    pub(super) fn granted_at(&self) -> Moment {
        self.granted_at
    }

    pub(super) fn reason(&self) -> LossReason {
        self.loss.lock().unwrap_or(LossReason::Deleted)
    }
}

pub(super) struct Server {
    clock: Clock,
    locks: Mutex<HashMap<PhysicalName, Lock>>,
    next_token: AtomicU64,
    faults: Faults,
    pub(super) memos: Memos,
    this: Weak<Self>,
}

#[derive(Default)]
struct Lock {
    holder: Option<Holder>,
    queue: VecDeque<Waiter>,
}

struct Holder {
    waiter: Waiter,
    fate: Arc<Fate>,
    expires_at: Moment,
    /// Keeps the end of the lease scheduled.
    _alarm: Option<AlarmHandle>,
}

struct Waiter {
    id: AttemptId,
    lease: Option<Duration>,
    info: Arc<HolderInfo>,
    since: SystemTime,
    attempt: AttemptHandle,
    waker: Option<Waker>,
}

impl Waiter {
    fn new(requested: &Requested, request: &AcquireRequest) -> Self {
        Self {
            id: requested.id,
            lease: requested.lease,
            info: Arc::clone(request.holder()),
            since: SystemTime::now(),
            attempt: request.attempt().clone(),
            waker: None,
        }
    }

    fn participant(&self) -> Participant {
        Participant::new(holder_id(self.id)).with_info(&self.info).with_since(self.since)
    }
}

fn holder_id(id: AttemptId) -> HolderId {
    HolderId::new(id.to_string())
}

impl Server {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            clock,
            locks: Mutex::default(),
            next_token: AtomicU64::new(1),
            faults: Faults::default(),
            memos: Memos::default(),
            this: Weak::clone(this),
        })
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Grants the lock, or puts the attempt into the queue. If the attempt already has a grant or a place, returns
    /// that.
    pub(super) fn request(
        &self,
        requested: &Requested,
        tries_once: bool,
        request: &AcquireRequest,
    ) -> Option<Arc<Fate>> {
        let mut locks = self.locks.lock();
        let lock = locks.entry(requested.name.clone()).or_default();
        match &lock.holder {
            Some(holder) if holder.waiter.id == requested.id => return Some(Arc::clone(&holder.fate)),
            None if lock.queue.is_empty() => {
                let holder = self.grant(&requested.name, Waiter::new(requested, request));
                return Some(Arc::clone(&lock.holder.insert(holder).fate));
            }
            _ => {}
        }
        if !tries_once && !lock.queue.iter().any(|waiter| waiter.id == requested.id) {
            lock.queue.push_back(Waiter::new(requested, request));
        }
        None
    }

    /// Waits until a queued attempt has been granted the lock; returns `None` when it has neither a grant nor a place
    /// any more.
    pub(super) async fn granted(&self, requested: &Requested) -> Result<Option<Arc<Fate>>, Outage> {
        let _watch = self.faults.watch(requested.id);
        poll_fn(|context| match self.faults.poll_outage(requested.id, context) {
            Poll::Ready(outage) => Poll::Ready(Err(outage)),
            Poll::Pending => self.poll_granted(requested, context).map(Ok),
        })
        .await
    }

    fn poll_granted(&self, requested: &Requested, context: &Context<'_>) -> Poll<Option<Arc<Fate>>> {
        with_waker(context, |waker| {
            let mut locks = self.locks.lock();
            let Some(lock) = locks.get_mut(&requested.name) else { return Poll::Ready(None) };
            match &lock.holder {
                Some(holder) if holder.waiter.id == requested.id => {
                    return Poll::Ready(Some(Arc::clone(&holder.fate)));
                }
                _ => {}
            }
            match lock.queue.iter_mut().find(|waiter| waiter.id == requested.id) {
                Some(waiter) => {
                    std::mem::swap(&mut waiter.waker, waker);
                    Poll::Pending
                }
                None => Poll::Ready(None),
            }
        })
    }

    /// Removes the grant or the place of an attempt. Returns whether it held the lock.
    pub(super) fn withdraw(&self, requested: &Requested) -> bool {
        let mut locks = self.locks.lock();
        let Some(lock) = locks.get_mut(&requested.name) else {
            return false;
        };
        let place = lock.queue.iter().position(|waiter| waiter.id == requested.id);
        let left = place.and_then(|place| lock.queue.remove(place));
        let was_held = lock.holder.as_ref().is_some_and(|holder| holder.waiter.id == requested.id);
        let ended = if was_held { lock.holder.take() } else { None };
        let next = self.promote(&mut locks, &requested.name);
        drop(locks);
        drop((left, ended));
        wake(next);
        was_held
    }

    pub(super) fn renew(&self, requested: &Requested, fate: &Fate) -> LeaseState {
        let mut locks = self.locks.lock();
        match locks.get_mut(&requested.name).and_then(|lock| lock.holder.as_mut()) {
            Some(holder) if holder.waiter.id == requested.id => {
                holder.expires_at = self.end_of(holder.waiter.lease);
                LeaseState::Held
            }
            _ => LeaseState::Lost(fate.reason()),
        }
    }

    pub(super) fn update_holder(&self, requested: &Requested, fate: &Fate, info: &HolderInfo) -> Updated {
        let mut locks = self.locks.lock();
        match locks.get_mut(&requested.name).and_then(|lock| lock.holder.as_mut()) {
            Some(holder) if holder.waiter.id == requested.id => {
                holder.waiter.info = Arc::new(info.clone());
                Updated::Done
            }
            _ => Updated::Lost(fate.reason()),
        }
    }

    pub(super) fn inspect(&self, name: &LockName, physical: &PhysicalName) -> LockStatus {
        let mut status = LockStatus::free(name.clone());
        let locks = self.locks.lock();
        let Some(lock) = locks.get(physical) else {
            return status;
        };
        if let Some(holder) = &lock.holder {
            status.holders.push(holder.waiter.participant().with_token(Some(holder.fate.token)));
            status.remaining = holder.waiter.lease.map(|_| holder.expires_at.since(self.clock.now()));
        }
        status.waiters.extend(lock.queue.iter().map(Waiter::participant));
        status
    }

    pub(super) fn holder(&self, physical: &PhysicalName) -> Option<Participant> {
        let locks = self.locks.lock();
        locks.get(physical)?.holder.as_ref().map(|holder| holder.waiter.participant())
    }

    pub(super) fn break_holder(&self, physical: &PhysicalName, holder: &HolderId) -> Broken {
        let is_that_one = |held: &Holder| holder_id(held.waiter.id) == *holder;
        match self.end_holder(physical, LossReason::Broken, Told::AtOnce, is_that_one) {
            Some(()) => Broken::taken_away(),
            None => Broken::not_held(),
        }
    }

    pub(super) fn lose(&self, name: &PhysicalName, loss: Loss, told: Told) -> bool {
        let reason = match loss {
            Loss::Expire => LossReason::Expired,
            Loss::Delete => LossReason::Deleted,
            Loss::Steal => {
                self.put_stranger_first(name);
                LossReason::Taken
            }
        };
        self.end_holder(name, reason, told, |_| true).is_some()
    }

    /// Puts a foreign waiter, which never releases, at the head of the queue.
    fn put_stranger_first(&self, name: &PhysicalName) {
        let stranger = Waiter {
            id: AttemptId::new(u128::MAX),
            lease: None,
            info: Arc::new(HolderInfo {
                host: "elsewhere".to_owned(),
                pid: 0,
                origin: None,
                label: None,
                value: None,
            }),
            since: SystemTime::now(),
            attempt: AttemptHandle::new(crate::spi::Wait::Forever),
            waker: None,
        };
        self.locks.lock().entry(name.clone()).or_default().queue.push_front(stranger);
    }

    fn end_holder(
        &self,
        name: &PhysicalName,
        reason: LossReason,
        told: Told,
        which: impl Fn(&Holder) -> bool,
    ) -> Option<()> {
        let mut locks = self.locks.lock();
        let ended = locks.get_mut(name)?.holder.take_if(|holder| which(holder))?;
        *ended.fate.loss.lock() = Some(reason);
        let next = self.promote(&mut locks, name);
        drop(locks);
        if told == Told::AtOnce {
            ended.waiter.attempt.lost(reason);
        }
        wake(next);
        Some(())
    }

    /// Gives a free lock to the head of its queue, or forgets the lock when the queue is empty.
    fn promote(&self, locks: &mut HashMap<PhysicalName, Lock>, name: &PhysicalName) -> Option<Waker> {
        let lock = locks.get_mut(name)?;
        if lock.holder.is_some() {
            return None;
        }
        let Some(mut head) = lock.queue.pop_front() else {
            locks.remove(name);
            return None;
        };
        let waker = head.waker.take();
        lock.holder = Some(self.grant(name, head));
        waker
    }

    fn grant(&self, name: &PhysicalName, waiter: Waiter) -> Holder {
        let token = FencingToken::new(self.next_token.fetch_add(1, Ordering::Relaxed));
        let fate = Arc::new(Fate { token, granted_at: self.clock.now(), loss: Mutex::new(None) });
        let expires_at = self.end_of(waiter.lease);
        let alarm = waiter.lease.map(|_| {
            let alarm = LeaseEnd { server: Weak::clone(&self.this), name: name.clone(), id: waiter.id };
            self.clock.schedule(expires_at, Arc::new(alarm))
        });
        Holder { waiter, fate, expires_at, _alarm: alarm }
    }

    fn end_of(&self, lease: Option<Duration>) -> Moment {
        lease.map_or(Moment::FOREVER, |length| self.clock.now().plus(length))
    }

    fn expiry_of(&self, name: &PhysicalName, id: AttemptId) -> Option<Moment> {
        let locks = self.locks.lock();
        let holder = locks.get(name)?.holder.as_ref()?;
        (holder.waiter.id == id).then_some(holder.expires_at)
    }

    pub(super) fn len(&self) -> usize {
        self.locks.lock().len()
    }

    pub(super) fn waiting_for(&self, name: &PhysicalName) -> usize {
        self.locks.lock().get(name).map_or(0, |lock| lock.queue.len())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Server").finish_non_exhaustive()
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Rings when the lease would end if it were not renewed after the grant, and again if it has been renewed since.
struct LeaseEnd {
    server: Weak<Server>,
    name: PhysicalName,
    id: AttemptId,
}

impl Alarm for LeaseEnd {
    fn ring(&self, now: Moment) -> Option<Moment> {
        let server = self.server.upgrade()?;
        let expires_at = server.expiry_of(&self.name, self.id)?;
        if expires_at > now {
            return Some(expires_at);
        }
        server.end_holder(&self.name, LossReason::Expired, Told::WhenAsked, |holder| {
            holder.waiter.id == self.id
        });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::waker::waker_with_an_end;
    use crate::spi::Wait;

    fn wants(server: &Arc<Server>, id: u128) -> (Requested, Option<Arc<Fate>>) {
        let name = LockName::new("a").unwrap();
        let physical = crate::memory::capabilities().names.apply(&name);
        let holder = Arc::new(HolderInfo::of_this_process());
        let request = AcquireRequest::new(AttemptId::new(id), name, physical.clone(), Wait::Forever, holder);
        let requested = Requested { id: AttemptId::new(id), name: physical, lease: None };
        let fate = server.request(&requested, false, &request);
        (requested, fate)
    }

    #[test]
    fn a_waiters_waker_may_come_back_when_it_is_replaced_and_when_its_waiter_leaves() {
        let server = Server::new(Clock::system());
        assert!(wants(&server, 1).1.is_some());
        let (waiting, none) = wants(&server, 2);
        assert!(none.is_none());
        let looks = || {
            let server = Arc::clone(&server);
            waker_with_an_end(move || assert_eq!(server.len(), 1))
        };
        for waker in [looks(), looks()] {
            assert!(server.poll_granted(&waiting, &Context::from_waker(&waker)).is_pending());
        }
        assert!(!server.withdraw(&waiting));
    }
}
