//! The server of the memory backend: its table of locks.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::future::poll_fn;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use lock_core::spi::{Mutex, with_waker};
use lock_core::{
    AcquireRequest, AttemptId, Broken, Clock, FencingToken, HolderId, HolderInfo, InspectRequest, LeaseState,
    LockError, LockKind, LockStatus, LossReason, Mode, Moment, Participant, PhysicalName, Sleep, Updated,
};
use lock_kit::{Asked, Shares};

use crate::faults::{Faults, Outage};
use crate::memos::Memos;

/// How a lock is taken from its holder. Needs the feature `testing`.
#[cfg(feature = "testing")]
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
#[cfg_attr(not(feature = "testing"), allow(unreachable_pub, reason = "it is public for tests"))]
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
    pub(super) mode: Mode,
    pub(super) lease: Option<Duration>,
}

impl Requested {
    fn key(&self) -> Key {
        (self.name.clone(), self.mode.kind())
    }
}

/// What has holders: a lock and a semaphore of one name have nothing to do with each other.
type Key = (PhysicalName, LockKind);

/// What became of a grant.
#[derive(Debug)]
pub(super) struct Fate {
    token: FencingToken,
    /// How many tokens are reserved, from that one on.
    sections: NonZeroU32,
    /// The moment of the grant, if it has a lease.
    granted_at: Option<Moment>,
    loss: Mutex<Option<LossReason>>,
}

impl Fate {
    pub(super) fn token(&self) -> FencingToken {
        self.token
    }

    pub(super) fn sections(&self) -> NonZeroU32 {
        self.sections
    }

    pub(super) fn granted_at(&self) -> Option<Moment> {
        self.granted_at
    }

    pub(super) fn reason(&self) -> LossReason {
        self.loss.lock().unwrap_or(LossReason::Deleted)
    }
}

pub(super) struct Server {
    clock: Clock,
    locks: Mutex<HashMap<Key, Lock>>,
    next_token: AtomicU64,
    faults: Faults,
    pub(super) memos: Memos,
    this: Weak<Self>,
}

type Lock = Shares<Holder, Waiter>;

struct Holder {
    waiter: Waiter,
    fate: Arc<Fate>,
    /// When its lease ends, and what keeps that end scheduled.
    expires: (Moment, Option<Sleep>),
}

struct Waiter {
    id: AttemptId,
    lease: Option<Duration>,
    sections: NonZeroU32,
    info: Arc<HolderInfo>,
    since: SystemTime,
    /// A stranger has none.
    attempt: Option<AcquireRequest>,
    waker: Option<Waker>,
}

impl Waiter {
    fn new(requested: &Requested, request: &AcquireRequest) -> Self {
        Self {
            id: requested.id,
            lease: requested.lease,
            sections: request.sections(),
            info: Arc::clone(request.holder()),
            since: SystemTime::now(),
            attempt: Some(request.clone()),
            waker: None,
        }
    }

    /// One that no client knows.
    #[cfg(any(test, feature = "testing"))]
    fn stranger(id: AttemptId) -> Self {
        let mut info = HolderInfo::of_this_process();
        (info.host, info.pid, info.origin) = ("elsewhere".to_owned(), 0, None);
        Self {
            id,
            lease: None,
            sections: NonZeroU32::MIN,
            info: Arc::new(info),
            since: SystemTime::now(),
            attempt: None,
            waker: None,
        }
    }

    fn participant(&self, mode: Mode) -> Participant {
        Participant::new(holder_id(self.id)).with_mode(mode).with_info(&self.info).with_since(self.since)
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
    ) -> Result<Option<Arc<Fate>>, LockError> {
        let Requested { id, mode, .. } = *requested;
        let (mut locks, key) = (self.locks.lock(), requested.key());
        let lock = locks.entry(key.clone()).or_default();
        match (lock.ask(id, mode), mode) {
            (Asked::Holds, _) => return Ok(lock.holder(id).map(|holder| Arc::clone(&holder.fate))),
            (Asked::Free, _) => {
                let holder = self.grant(&key, Waiter::new(requested, request));
                return Ok(Some(Arc::clone(&lock.hold(id, mode, holder).fate)));
            }
            (Asked::OtherPermits(is), Mode::Permits { of, .. }) => {
                return Err(LockError::other_permits(request.name(), of.get(), is));
            }
            (Asked::Behind, _) if !tries_once => lock.wait(id, mode, Waiter::new(requested, request)),
            _ => {}
        }
        Ok(None)
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
            let Some(lock) = locks.get_mut(&requested.key()) else { return Poll::Ready(None) };
            if let Some(holder) = lock.holder(requested.id) {
                return Poll::Ready(Some(Arc::clone(&holder.fate)));
            }
            match lock.waiter_mut(requested.id) {
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
        let key = requested.key();
        let mut locks = self.locks.lock();
        let Entry::Occupied(mut lock) = locks.entry(key.clone()) else { return false };
        let mut next = Vec::new();
        let removed =
            lock.get_mut().remove(requested.id, |_, _, waiter| self.promote(&key, waiter, &mut next));
        if lock.get().is_empty() {
            lock.remove();
        }
        drop(locks);
        let was_held = removed.held.is_some();
        drop(removed);
        wake(next);
        was_held
    }

    pub(super) fn renew(&self, requested: &Requested, fate: &Fate) -> LeaseState {
        let mut locks = self.locks.lock();
        let key = requested.key();
        match locks.get_mut(&key).and_then(|lock| lock.holder_mut(requested.id)) {
            Some(holder) => {
                holder.expires = self.end_of_lease(&key, &holder.waiter);
                LeaseState::Held
            }
            None => LeaseState::Lost(fate.reason()),
        }
    }

    /// Turns an exclusive hold into a shared one with the id of `requested`. Returns what becomes of it; `None` when
    /// neither exists any more.
    pub(super) fn downgrade(
        &self,
        held: &Requested,
        requested: &Requested,
        request: &AcquireRequest,
    ) -> Option<Arc<Fate>> {
        let key = requested.key();
        let mut locks = self.locks.lock();
        let lock = locks.get_mut(&key)?;
        let (mut former, mut next) = (None, Vec::new());
        lock.share(
            held.id,
            requested.id,
            |holder| {
                former = Some(holder);
                self.grant(&key, Waiter::new(requested, request))
            },
            |_, _, waiter| self.promote(&key, waiter, &mut next),
        );
        // A repeated request finds its own hold.
        let fate = lock.holder(requested.id).map(|holder| Arc::clone(&holder.fate));
        drop(locks);
        drop(former);
        wake(next);
        fate
    }

    pub(super) fn update_holder(&self, requested: &Requested, fate: &Fate, info: &HolderInfo) -> Updated {
        let mut locks = self.locks.lock();
        match locks.get_mut(&requested.key()).and_then(|lock| lock.holder_mut(requested.id)) {
            Some(holder) => {
                holder.waiter.info = Arc::new(info.clone());
                Updated::Done
            }
            None => Updated::Lost(fate.reason()),
        }
    }

    pub(super) fn inspect(&self, request: &InspectRequest) -> LockStatus {
        let mut status = LockStatus::free(request.name().clone());
        let locks = self.locks.lock();
        let Some(lock) = locks.get(&(request.physical().clone(), request.kind())) else {
            return status;
        };
        status
            .holders
            .extend(lock.holders().map(|(_, mode, holder)| {
                holder.waiter.participant(mode).with_token(Some(holder.fate.token))
            }));
        status.holders.sort_by_key(|holder| holder.token);
        let leased = lock.holders().filter(|(_, _, holder)| holder.waiter.lease.is_some());
        let ends = leased.map(|(_, _, holder)| holder.expires.0);
        status.remaining = ends.max().map(|end| end.since(self.clock.now()));
        status.waiters.extend(lock.waiters().map(|(_, mode, waiter)| waiter.participant(mode)));
        status
    }

    pub(super) fn list(&self) -> Vec<InspectRequest> {
        let locks = self.locks.lock();
        let in_use = locks.iter().filter(|(_, lock)| !lock.is_empty());
        in_use.filter_map(|((name, kind), _)| InspectRequest::found(name.as_str(), *kind).ok()).collect()
    }

    /// Returns one of the holders.
    pub(super) fn holder(&self, requested: &Requested) -> Option<Participant> {
        let locks = self.locks.lock();
        locks.get(&requested.key())?.holders().next().map(|(_, mode, holder)| holder.waiter.participant(mode))
    }

    pub(super) fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Broken {
        let key = (request.physical().clone(), request.kind());
        let is_that_one = |held: &Holder| holder_id(held.waiter.id) == *holder;
        match self.end_holder(&key, LossReason::Broken, Told::AtOnce, is_that_one) {
            Some(()) => Broken::taken_away(),
            None => Broken::not_held(),
        }
    }

    /// Ends the hold of the first of these holders.
    fn end_holder(
        &self,
        key: &Key,
        reason: LossReason,
        told: Told,
        which: impl Fn(&Holder) -> bool,
    ) -> Option<()> {
        let mut locks = self.locks.lock();
        let lock = locks.get_mut(key)?;
        let (id, _, _) = lock
            .holders()
            .filter(|(_, _, holder)| which(holder))
            .min_by_key(|(_, _, holder)| holder.fate.token)?;
        let mut next = Vec::new();
        let ended = lock.remove(id, |_, _, waiter| self.promote(key, waiter, &mut next)).held?;
        forget_unused(&mut locks, key);
        *ended.fate.loss.lock() = Some(reason);
        drop(locks);
        if let Some(attempt) = ended.waiter.attempt.as_ref().filter(|_| told == Told::AtOnce) {
            attempt.lost(reason);
        }
        wake(next);
        Some(())
    }

    /// Lets a waiter hold the lock, and adds its waker to those to be woken.
    fn promote(&self, key: &Key, mut waiter: Waiter, wakers: &mut Vec<Waker>) -> Holder {
        wakers.extend(waiter.waker.take());
        self.grant(key, waiter)
    }

    fn grant(&self, key: &Key, waiter: Waiter) -> Holder {
        let sections = waiter.sections;
        let token = self.next_token.fetch_add(u64::from(sections.get()), Ordering::Relaxed);
        let token = FencingToken::new(token);
        let granted_at = waiter.lease.map(|_| self.clock.now());
        let fate = Arc::new(Fate { token, sections, granted_at, loss: Mutex::new(None) });
        let expires = self.end_of_lease(key, &waiter);
        Holder { waiter, fate, expires }
    }

    /// Returns when a lease ends that begins now, and what ends it then.
    fn end_of_lease(&self, key: &Key, waiter: &Waiter) -> (Moment, Option<Sleep>) {
        let Some(length) = waiter.lease else { return (Moment::FOREVER, None) };
        let end =
            Arc::new(LeaseEnd { server: Weak::clone(&self.this), key: key.clone(), id: waiter.id }).into();
        // A lease that is over before its end is scheduled begins anew.
        loop {
            let expires_at = self.clock.now().plus(length);
            let mut until = self.clock.sleep_until(expires_at);
            if Pin::new(&mut until).poll(&mut Context::from_waker(&end)).is_pending() {
                return (expires_at, Some(until));
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.locks.lock().len()
    }

    pub(super) fn waiting_for(&self, name: &PhysicalName) -> usize {
        let key = (name.clone(), LockKind::Lock);
        self.locks.lock().get(&key).map_or(0, |lock| lock.waiters().len())
    }
}

#[cfg(feature = "testing")]
impl Server {
    pub(super) fn lose(&self, name: &PhysicalName, loss: Loss, told: Told) -> bool {
        let key = (name.clone(), LockKind::Lock);
        let reason = match loss {
            Loss::Expire => LossReason::Expired,
            Loss::Delete => LossReason::Deleted,
            Loss::Steal => {
                self.put_stranger_first(&key);
                LossReason::Taken
            }
        };
        self.end_holder(&key, reason, told, |_| true).is_some()
    }

    /// Puts a foreign waiter, which never releases, at the head of the queue.
    fn put_stranger_first(&self, key: &Key) {
        let stranger = Waiter::stranger(AttemptId::new(u128::MAX));
        let mut locks = self.locks.lock();
        locks.entry(key.clone()).or_default().wait_first(stranger.id, Mode::Exclusive, stranger);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Forgets a lock that has neither holders nor waiters.
fn forget_unused(locks: &mut HashMap<Key, Lock>, key: &Key) {
    if locks.get(key).is_some_and(Shares::is_empty) {
        locks.remove(key);
    }
}

fn wake(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

/// Ends a lease that has not been renewed meanwhile.
struct LeaseEnd {
    server: Weak<Server>,
    key: Key,
    id: AttemptId,
}

impl Wake for LeaseEnd {
    fn wake(self: Arc<Self>) {
        let Some(server) = self.server.upgrade() else { return };
        let now = server.clock.now();
        server.end_holder(&self.key, LossReason::Expired, Told::WhenAsked, |holder| {
            holder.waiter.id == self.id && holder.expires.0 <= now
        });
    }
}

#[cfg(test)]
mod tests {
    use lock_core::LockName;

    use super::*;
    use crate::wakers::waker_with_an_end;

    fn waits(server: &Arc<Server>, id: u128) -> Requested {
        let name = crate::capabilities().names.apply(&LockName::new("a").unwrap());
        let (id, mode) = (AttemptId::new(id), Mode::Exclusive);
        let requested = Requested { id, name, mode, lease: None };
        server.locks.lock().entry(requested.key()).or_default().wait(id, mode, Waiter::stranger(id));
        requested
    }

    #[test]
    fn a_waiters_waker_may_come_back_when_it_is_replaced_and_when_its_waiter_leaves() {
        let server = Server::new(Clock::system());
        let _first = waits(&server, 1);
        let waiting = waits(&server, 2);
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
