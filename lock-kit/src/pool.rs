//! A pool of connections on which locks are held.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{ErrorKind, GroupId, LockError, Operation};
use tokio::sync::{Notify, oneshot};

use crate::pooled_server::{PoolLimits, PooledLink, PooledServer};

/// How long a request may wait in the queue of a connection before the pool uses or opens another one.
const LONGEST_QUEUE: Duration = Duration::from_millis(250);

/// Which connections exist, which locks are on them, and which attempt may use which.
///
/// * Attempts that do not wait, and holds, share connections, up to a number of locks. The pool takes the fullest
///   connection with space, so that the others become empty.
/// * A waiter has a connection of its own, without holds. When the lock is granted it stays there, and the connection
///   becomes a shared one.
/// * A connection never has two locks of one key: a session does not exclude itself.
pub struct Pool<S: PooledServer> {
    server: S,
    limits: PoolLimits,
    inner: Mutex<Inner<S>>,
    /// Notified when something has become free.
    changed: Notify,
}

struct Inner<S: PooledServer> {
    links: BTreeMap<GroupId, Entry<S::Link>>,
    /// How many connections the pool is opening.
    opening: usize,
    /// The waiters that want a connection of their own, in order.
    requests: VecDeque<ConnectionRequest<S>>,
    /// How many attempts look for space on a shared connection.
    seeking: usize,
    /// How often opening a connection has failed; `failure` is the last reason.
    failures: u64,
    failure: Option<LockError>,
    last_group: u64,
    is_closed: bool,
}

type ConnectionRequest<S> = oneshot::Sender<Result<OwnLink<S>, LockError>>;

struct Entry<L: PooledLink> {
    link: Arc<L>,
    /// The locks that are held there, may be held or are requested, and by which attempt.
    keys: HashMap<L::Key, L::Occupant>,
    state: Sharing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    /// The connection carries out short statements at once.
    Shared,
    /// A waiter has the connection.
    Own,
}

/// A connection that no other attempt uses and on which nothing is held. It goes back to the pool when it is dropped
/// unused.
pub struct OwnLink<S: PooledServer> {
    pool: Arc<Pool<S>>,
    link: Arc<S::Link>,
    is_unused: bool,
}

impl<S: PooledServer> OwnLink<S> {
    /// Uses the connection for a claim, which it may wait for. The connection stays its own until [`Pool::share`].
    pub fn occupy(mut self, claim: &<S::Link as PooledLink>::Claim) -> Arc<S::Link> {
        self.is_unused = false;
        self.pool.update(self.link.group(), |entry| entry.occupy(claim));
        Arc::clone(&self.link)
    }
}

impl<S: PooledServer> Drop for OwnLink<S> {
    fn drop(&mut self) {
        if self.is_unused {
            self.pool.share(self.link.group());
        }
    }
}

/// A connection on which a claim was sent, and what becomes the answer.
type Taken<S> = (Arc<<S as PooledServer>::Link>, <<S as PooledServer>::Link as PooledLink>::Answer);

impl<S: PooledServer> Pool<S> {
    /// Creates a pool without connections.
    pub fn new(server: S) -> Arc<Self> {
        Arc::new(Self { limits: server.limits(), server, inner: Mutex::default(), changed: Notify::new() })
    }

    /// Returns the server.
    pub fn server(&self) -> &S {
        &self.server
    }

    fn update(&self, group: GroupId, change: impl FnOnce(&mut Entry<S::Link>)) {
        if let Some(entry) = self.inner.lock().links.get_mut(&group) {
            change(entry);
        }
    }

    /// Returns a connection, if it has not ended.
    pub fn link(&self, group: GroupId) -> Option<Arc<S::Link>> {
        self.inner.lock().links.get(&group).map(|entry| Arc::clone(&entry.link))
    }

    /// Returns how many connections there are.
    pub fn connections(&self) -> usize {
        self.inner.lock().links.len()
    }

    /// Returns the connections on which something is held.
    pub fn groups_in_use(&self) -> Vec<GroupId> {
        let inner = self.inner.lock();
        let in_use = inner.links.iter().filter(|(_, entry)| !entry.keys.is_empty());
        in_use.map(|(group, _)| *group).collect()
    }

    /// Takes a lock, if it is free, on a shared connection. Returns none if no connection has space, or if all of them
    /// will be busy for long and the pool may open another one.
    pub fn take(&self, claim: &<S::Link as PooledLink>::Claim) -> Option<Taken<S>> {
        let (clock, limits, key) = (self.server.context().clock(), &self.limits, S::Link::key(claim));
        let mut inner = self.inner.lock();
        let has_room = |entry: &Entry<S::Link>| {
            entry.state == Sharing::Shared
                && entry.keys.len() < limits.locks_per_connection
                && !entry.keys.contains_key(&key)
                && !entry.link.is_slow(clock, limits.silence)
        };
        let with_room = || inner.links.iter().filter(|(_, entry)| has_room(entry));
        let round_trip = inner.round_trip();
        let queueing_time = |entry: &Entry<S::Link>| entry.link.queueing_time(round_trip);
        let prompt = with_room().filter(|(_, entry)| queueing_time(entry) <= LONGEST_QUEUE);
        let mut chosen = prompt.max_by_key(|(_, entry)| entry.keys.len());
        if chosen.is_none() && inner.links.len() >= limits.connections {
            chosen = with_room().min_by_key(|(_, entry)| queueing_time(entry));
        }
        let group = chosen.map(|(group, _)| *group)?;
        let entry = inner.links.get_mut(&group)?;
        entry.occupy(claim);
        // Under the same mutex as the key: later requests on this connection come later.
        let answer = entry.link.take(claim.clone());
        Some((Arc::clone(&entry.link), answer))
    }

    /// Calls `act` with the one that has a lock on this connection, or may have it; returns none if there is no such
    /// one. Until `act` returns, the pool gives the connection to no waiter: what it sends comes before the next
    /// waiter's request.
    pub fn with_occupant<T>(
        &self,
        link: &S::Link,
        key: &<S::Link as PooledLink>::Key,
        act: impl FnOnce(&mut <S::Link as PooledLink>::Occupant) -> Option<T>,
    ) -> Option<T> {
        let mut inner = self.inner.lock();
        act(inner.links.get_mut(&link.group())?.keys.get_mut(key)?)
    }

    /// Returns a connection without holds, if there is one. The last connection is not for waiting.
    pub fn idle(self: &Arc<Self>) -> Option<OwnLink<S>> {
        let clock = self.server.context().clock();
        let mut inner = self.inner.lock();
        if inner.places_for_waiters(&self.limits) == 0 {
            return None;
        }
        let silence = self.limits.silence;
        let entry =
            inner.links.values_mut().find(|entry| entry.is_idle() && !entry.link.is_slow(clock, silence))?;
        entry.state = Sharing::Own;
        Some(OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true })
    }

    /// Takes a lock, if it is free, on any connection with space, or as soon as one has space.
    ///
    /// # Errors
    /// That there is no space within the limits, or why no connection could be opened.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub async fn take_somewhere(
        self: &Arc<Self>,
        claim: &<S::Link as PooledLink>::Claim,
    ) -> Result<Taken<S>, LockError> {
        if let Some(taken) = self.take(claim) {
            return Ok(taken);
        }
        let clock = self.server.context().clock();
        let deadline = clock.now().plus(self.limits.search);
        let seeking = Seeking::begin(self);
        loop {
            let changed = self.changed.notified();
            if let Some(taken) = self.take(claim) {
                return Ok(taken);
            }
            seeking.check()?;
            // This attempt cannot use any space that there may be.
            self.open_at_least(1);
            within(clock, deadline, changed).await.ok_or_else(|| self.why_no_room())?;
        }
    }

    /// Returns a connection for a waiter alone: an idle one, or a new one, or the next that becomes free, in order.
    ///
    /// # Errors
    /// Why no connection could be opened.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub async fn own(self: &Arc<Self>) -> Result<OwnLink<S>, LockError> {
        if let Some(own) = self.idle() {
            return Ok(own);
        }
        let waiting = {
            let mut inner = self.inner.lock();
            inner.refuse_when_closed()?;
            let (given, waiting) = oneshot::channel();
            inner.requests.push_back(given);
            waiting
        };
        self.open_as_needed();
        waiting.await.unwrap_or_else(|_| Err(LockError::new(ErrorKind::Closed, Operation::Acquire)))
    }

    fn why_no_room(&self) -> LockError {
        // If no more connections are allowed, an earlier failure to open one is not the reason.
        let is_full = self.connections() >= self.limits.connections;
        let failure = if is_full { None } else { self.server.failure() };
        failure.unwrap_or_else(|| self.no_room())
    }

    fn no_room(&self) -> LockError {
        LockError::new(ErrorKind::Unreachable, Operation::Acquire)
            .because(format!("all of the {} connections are in use", self.limits.connections))
            .remedy("raise max_connections, or locks_per_connection")
            .retryable()
    }

    /// Opens a connection that `opening` already counts, for any attempt that wants one then.
    fn open(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.server.context().spawn(async move {
            match this.server.open().await {
                Ok(session) => this.opened(session),
                Err(error) => this.not_opened(error),
            }
        });
    }

    /// Adds a connection that was opened elsewhere.
    pub fn adopt(self: &Arc<Self>, session: S::Session) {
        self.inner.lock().opening += 1;
        self.opened(session);
    }

    /// Adds an opened connection. It stays counted throughout, first as opening, then as a link.
    fn opened(self: &Arc<Self>, session: S::Session) {
        let mut inner = self.inner.lock();
        inner.opening -= 1;
        if inner.is_closed {
            return;
        }
        inner.last_group += 1;
        let group = GroupId::new(inner.last_group);
        let (link, task) = S::driven(self, group, session);
        inner.links.insert(group, Entry { link, keys: HashMap::new(), state: Sharing::Own });
        drop(inner);
        self.server.context().spawn(task);
        self.share(group);
    }

    fn not_opened(self: &Arc<Self>, error: LockError) {
        let error = error.during(Operation::Acquire);
        let request = {
            let mut inner = self.inner.lock();
            inner.opening -= 1;
            inner.forget_those_who_left();
            let request = inner.requests.pop_front();
            if request.is_none() || inner.opening == 0 {
                inner.failures += 1;
                inner.failure = Some(error.clone());
            }
            request
        };
        if let Some(request) = request {
            // Sending fails if the waiter has gone.
            let _ = request.send(Err(error));
        }
        self.changed.notify_waiters();
        self.open_as_needed();
    }

    /// Notes that the queue of a connection has become shorter.
    pub fn progresses(&self) {
        self.changed.notify_waiters();
    }

    /// Opens as many connections as the waiting attempts need, within the limit.
    fn open_as_needed(self: &Arc<Self>) {
        self.open_at_least(0);
    }

    fn open_at_least(self: &Arc<Self>, least: usize) {
        let mut inner = self.inner.lock();
        inner.forget_those_who_left();
        let needed = inner.needed(&self.limits).max(least);
        while inner.opening < needed
            && inner.links.len() + inner.opening < self.limits.connections
            && !inner.is_closed
        {
            inner.opening += 1;
            self.open();
        }
    }

    /// Turns a waiter's connection into a shared one. It keeps what is held on it, if anything.
    pub fn share(self: &Arc<Self>, group: GroupId) {
        self.update(group, |entry| entry.state = Sharing::Shared);
        self.offer();
    }

    /// Records that a lock is neither held nor asked for on this connection.
    pub fn vacate(self: &Arc<Self>, group: GroupId, key: &<S::Link as PooledLink>::Key) {
        self.update(group, |entry| {
            entry.keys.remove(key);
        });
        self.offer();
    }

    /// Gives idle connections to waiters that want one, and opens others for those that may wait now.
    fn offer(self: &Arc<Self>) {
        self.changed.notify_waiters();
        while let Some((request, own)) = self.matched() {
            // If the waiter has gone, the connection comes back by being dropped, and is offered to the next.
            drop(request.send(Ok(own)));
        }
        if !self.inner.lock().requests.is_empty() {
            self.open_as_needed();
        }
    }

    /// Returns the first waiter that wants a connection, and an idle one.
    fn matched(self: &Arc<Self>) -> Option<(ConnectionRequest<S>, OwnLink<S>)> {
        let mut inner = self.inner.lock();
        inner.forget_those_who_left();
        if inner.requests.is_empty() || inner.places_for_waiters(&self.limits) == 0 {
            return None;
        }
        let Inner { links, requests, .. } = &mut *inner;
        let entry = links.values_mut().find(|entry| entry.is_idle())?;
        let request = requests.pop_front()?;
        entry.state = Sharing::Own;
        Some((request, OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true }))
    }

    /// Drops a connection from the pool if nothing is on it. Returns whether that was so.
    pub fn retire(&self, group: GroupId) -> bool {
        let mut inner = self.inner.lock();
        let is_idle = inner.links.get(&group).is_none_or(Entry::is_idle);
        if is_idle {
            inner.links.remove(&group);
        }
        is_idle
    }

    /// Removes a connection that has ended.
    pub fn remove(self: &Arc<Self>, group: GroupId) {
        self.inner.lock().links.remove(&group);
        self.changed.notify_waiters();
        self.open_as_needed();
    }

    /// Ends all connections.
    pub fn close(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        inner.requests.clear();
        self.changed.notify_waiters();
        for entry in inner.links.values() {
            entry.link.close();
        }
    }
}

impl<L: PooledLink> Entry<L> {
    fn occupy(&mut self, claim: &L::Claim) {
        self.keys.insert(L::key(claim), L::attempt(claim).into());
    }

    fn is_idle(&self) -> bool {
        self.state == Sharing::Shared && self.keys.is_empty()
    }
}

impl<S: PooledServer> Default for Inner<S> {
    fn default() -> Self {
        Self {
            links: BTreeMap::new(),
            opening: 0,
            requests: VecDeque::new(),
            seeking: 0,
            failures: 0,
            failure: None,
            last_group: 0,
            is_closed: false,
        }
    }
}

impl<S: PooledServer> Inner<S> {
    /// How long a statement takes when nothing delays it: the best of all connections. Another connection shortens a
    /// queue that is long because the server is far away or its disk is slow, but not one on a busy machine.
    fn round_trip(&self) -> Duration {
        self.links.values().map(|entry| entry.link.round_trip()).min().unwrap_or_default()
    }

    /// How many more attempts may wait.
    fn places_for_waiters(&self, limits: &PoolLimits) -> usize {
        let waiting = self.links.values().filter(|entry| entry.state == Sharing::Own).count();
        limits.waiting.min(limits.connections.saturating_sub(1)).saturating_sub(waiting)
    }

    fn forget_those_who_left(&mut self) {
        self.requests.retain(|request| !request.is_closed());
    }

    /// How many connections the attempts without one need: each waiter one, and the others together as few as have
    /// space for them.
    fn needed(&self, limits: &PoolLimits) -> usize {
        let may_wait = self.places_for_waiters(limits);
        let shared = self.links.values().filter(|entry| entry.state == Sharing::Shared);
        let room: usize =
            shared.map(|entry| limits.locks_per_connection.saturating_sub(entry.keys.len())).sum();
        // Seekers for which there is space may just not have checked again yet, unless the space is only on a connection
        // that they cannot use.
        let without =
            self.seeking.saturating_sub(room).max(usize::from(self.seeking > 0 && self.opening == 0));
        self.requests.len().min(may_wait) + without.div_ceil(limits.locks_per_connection)
    }

    fn refuse_when_closed(&self) -> Result<(), LockError> {
        if self.is_closed {
            return Err(LockError::new(ErrorKind::Closed, Operation::Acquire));
        }
        Ok(())
    }
}

/// An attempt that looks for space, counted for as long as it looks.
struct Seeking<'a, S: PooledServer> {
    pool: &'a Pool<S>,
    /// How often opening a connection had failed before.
    failures: u64,
}

impl<'a, S: PooledServer> Seeking<'a, S> {
    fn begin(pool: &'a Pool<S>) -> Self {
        let mut inner = pool.inner.lock();
        inner.seeking += 1;
        Self { pool, failures: inner.failures }
    }

    /// An error if there will be no space.
    fn check(&self) -> Result<(), LockError> {
        let inner = self.pool.inner.lock();
        inner.refuse_when_closed()?;
        match &inner.failure {
            Some(error) if inner.failures > self.failures => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

impl<S: PooledServer> Drop for Seeking<'_, S> {
    fn drop(&mut self) {
        self.pool.inner.lock().seeking -= 1;
    }
}

impl<S: PooledServer> fmt::Debug for Pool<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        formatter
            .debug_struct("Pool")
            .field("limits", &self.limits)
            .field("connections", &inner.links.len())
            .field("opening", &inner.opening)
            .field("requests", &inner.requests.len())
            .finish_non_exhaustive()
    }
}
