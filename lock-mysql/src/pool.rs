//! The pool of connections: which exist, which locks are on them, and which attempt may use which.
//!
//! * Attempts that do not wait, and holds, share connections, up to a number of locks. The pool takes the fullest connection with
//!   space, so that the others become empty.
//! * A waiter has a connection of its own, without holds. When the lock is granted it stays there, and the connection becomes a
//!   shared one.
//! * A connection never has a lock twice: the server would count it, and one release would not free it. Nor has it two slots of a lock
//!   for different attempts, or the lock and a slot: a session does not exclude itself.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{AttemptId, BackendContext, ErrorKind, GroupId, LockError, Operation};
use tokio::sync::{Notify, oneshot};

use crate::actor::Actor;
use crate::batch::{Promise, Waiting};
use crate::connector::Connector;
use crate::control::Control;
use crate::failure::gone;
use crate::link::{Asked, Claim, GivenBack, Link, Name, Order};
use crate::session::Session;
use crate::settings::Settings;
use crate::statement::Waiter;

/// How long an order may stay in the queue of a connection before the pool uses or opens another one.
const LONGEST_QUEUE: Duration = Duration::from_millis(250);

pub(crate) struct Pool {
    pub(crate) context: BackendContext,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
    connector: Arc<Connector>,
    inner: Mutex<Inner>,
    /// Notified when something has become free.
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    links: BTreeMap<GroupId, Entry>,
    /// How many connections the pool is opening.
    opening: usize,
    /// The waiters that want a connection of their own, in order.
    wanted: VecDeque<Wanted>,
    /// How many attempts look for space on a shared connection.
    seeking: usize,
    /// How often opening a connection has failed; `failure` is the last reason.
    failures: u64,
    failure: Option<LockError>,
    last_group: u64,
    is_closed: bool,
}

type Wanted = oneshot::Sender<Result<OwnLink, LockError>>;

struct Entry {
    link: Arc<Link>,
    /// The locks that are held there, may be held or are requested, and by which attempt: of readers that share a slot, the one that
    /// sent their wait. Names are those of gates.
    names: HashMap<Name, Occupant>,
    state: State,
}

#[derive(Debug, Clone, Copy)]
struct Occupant {
    id: AttemptId,
    /// The exclusive attempt whose hold this one continues.
    former: Option<AttemptId>,
}

impl Occupant {
    fn new(id: AttemptId) -> Self {
        Self { id, former: None }
    }

    fn is(&self, id: AttemptId) -> bool {
        self.id == id || self.former == Some(id)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The connection carries out short statements at once.
    Shared,
    /// A waiter has the connection.
    Own,
}

/// A connection that no other attempt uses and on which nothing is held. It goes back to the pool when it is dropped unused.
pub(crate) struct OwnLink {
    pool: Arc<Pool>,
    link: Arc<Link>,
    is_unused: bool,
}

/// A pending request on a connection.
pub(crate) struct Started {
    pub(crate) link: Arc<Link>,
    /// The attempt by whose id the connection knows what it has for this request.
    pub(crate) hold: AttemptId,
    pub(crate) asked: Asked,
}

impl OwnLink {
    /// Waits for a lock until its callers have gone.
    pub(crate) fn wait(mut self, claim: Claim, waiter: Waiter, waiting: &Arc<Waiting>) -> Arc<Link> {
        self.is_unused = false;
        self.pool.update(self.link.group, |entry| {
            entry.names.insert(Arc::clone(&claim.parts.gate), Occupant::new(claim.id));
        });
        self.link.wait(claim, waiter, Promise(Arc::clone(waiting)));
        Arc::clone(&self.link)
    }
}

impl Drop for OwnLink {
    fn drop(&mut self) {
        if self.is_unused {
            self.pool.share(self.link.group);
        }
    }
}

impl Pool {
    pub(crate) fn new(
        context: BackendContext,
        settings: Arc<Settings>,
        control: Arc<Control>,
        connector: Arc<Connector>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            settings,
            control,
            connector,
            inner: Mutex::default(),
            changed: Notify::new(),
        })
    }

    fn update(&self, group: GroupId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.inner.lock().links.get_mut(&group) {
            change(entry);
        }
    }

    pub(crate) fn link(&self, group: GroupId) -> Option<Arc<Link>> {
        self.inner.lock().links.get(&group).map(|entry| Arc::clone(&entry.link))
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.inner.lock().links.len()
    }

    /// The connections on which something is held.
    pub(crate) fn groups_in_use(&self) -> Vec<GroupId> {
        let inner = self.inner.lock();
        let in_use = inner.links.iter().filter(|(_, entry)| !entry.names.is_empty());
        in_use.map(|(group, _)| *group).collect()
    }

    /// Takes a lock, if it is free, on a shared connection. `None` if no connection has space, or if all of them will be busy for
    /// long and the pool may open another one.
    pub(crate) fn take(&self, claim: &Claim) -> Option<Started> {
        let (clock, long) = (self.context.clock(), self.settings.request_timeout / 2);
        let mut inner = self.inner.lock();
        let has_room = |entry: &Entry| {
            entry.state == State::Shared
                && entry.names.len() < self.settings.locks_per_connection
                && !entry.names.contains_key(&claim.parts.gate)
                && !entry.link.is_slow(clock, long)
        };
        let with_room = || inner.links.iter().filter(|(_, entry)| has_room(entry));
        let round_trip = inner.round_trip();
        let queueing_time = |entry: &Entry| entry.link.queueing_time(round_trip);
        let prompt = with_room().filter(|(_, entry)| queueing_time(entry) <= LONGEST_QUEUE);
        let mut chosen = prompt.max_by_key(|(_, entry)| entry.names.len());
        if chosen.is_none() && inner.links.len() >= self.settings.max_connections {
            chosen = with_room().min_by_key(|(_, entry)| queueing_time(entry));
        }
        let group = chosen.map(|(group, _)| *group)?;
        let entry = inner.links.get_mut(&group)?;
        entry.names.insert(Arc::clone(&claim.parts.gate), Occupant::new(claim.id));
        // Under the same mutex as the name: later orders on this connection come later.
        let asked = entry.link.take(claim.clone());
        Some(Started { link: Arc::clone(&entry.link), hold: claim.id, asked })
    }

    /// Releases the part that an attempt has in a hold on that connection, or may get there. If the hold is not there, it orders
    /// nothing: by now the connection may wait for another lock, for as long as that takes.
    pub(crate) fn give_back(
        &self,
        link: &Link,
        name: &Name,
        (hold, id): (AttemptId, AttemptId),
        operation: Operation,
    ) -> Option<GivenBack> {
        let inner = self.inner.lock();
        let entry = inner.links.get(&link.group)?;
        // Under the same mutex: as long as the name is there, the pool gives the connection to no waiter, and the next waiter's
        // order comes after this one.
        let is_there = entry.names.get(name).is_some_and(|occupant| occupant.is(hold));
        is_there.then(|| link.release(Arc::clone(name), id, operation))
    }

    /// Makes the exclusive hold of an attempt a reader's, if it is still there.
    pub(crate) fn downgrade(&self, link: &Link, former: AttemptId, claim: Claim) -> Option<Asked> {
        let mut inner = self.inner.lock();
        let occupant = inner.links.get_mut(&link.group)?.names.get_mut(&claim.parts.gate)?;
        if !occupant.is(former) {
            return None;
        }
        *occupant = Occupant { id: claim.id, former: Some(former) };
        Some(link.downgrade(former, claim))
    }

    /// A connection without holds, if there is one. The last connection is not for waiting.
    pub(crate) fn idle(self: &Arc<Self>) -> Option<OwnLink> {
        let (clock, long) = (self.context.clock(), self.settings.request_timeout / 2);
        let mut inner = self.inner.lock();
        if !inner.has_place_for_waiter(self.settings.max_connections) {
            return None;
        }
        let entry =
            inner.links.values_mut().find(|entry| entry.is_idle() && !entry.link.is_slow(clock, long))?;
        entry.state = State::Own;
        Some(OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true })
    }

    /// Takes a lock, if it is free, on any connection with space, or as soon as one has space.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn take_somewhere(self: &Arc<Self>, claim: &Claim) -> Result<Started, LockError> {
        if let Some(started) = self.take(claim) {
            return Ok(started);
        }
        let clock = self.context.clock();
        let deadline = clock.now().plus(self.settings.time_to_connect() + self.settings.request_timeout);
        let seeking = Seeking::begin(self);
        loop {
            let changed = self.changed.notified();
            if let Some(started) = self.take(claim) {
                return Ok(started);
            }
            seeking.check()?;
            // This attempt cannot use any space that there may be.
            self.open_at_least(1);
            within(clock, deadline, changed).await.ok_or_else(|| self.why_no_room())?;
        }
    }

    /// A connection for a waiter alone: an idle one, or a new one, or the next that becomes free, in order.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue.
    pub(crate) async fn own(self: &Arc<Self>) -> Result<OwnLink, LockError> {
        if let Some(own) = self.idle() {
            return Ok(own);
        }
        let waiting = {
            let mut inner = self.inner.lock();
            inner.refuse_when_closed()?;
            let (given, waiting) = oneshot::channel();
            inner.wanted.push_back(given);
            waiting
        };
        self.open_as_needed();
        waiting.await.unwrap_or_else(|_| Err(gone(Operation::Acquire)))
    }

    fn why_no_room(&self) -> LockError {
        // If no more connections are allowed, an earlier failure to open one is not the reason.
        let is_full = self.connections() >= self.settings.max_connections;
        let failure = if is_full { None } else { self.connector.failure() };
        failure.unwrap_or_else(|| self.no_room())
    }

    fn no_room(&self) -> LockError {
        LockError::new(ErrorKind::Unreachable, Operation::Acquire)
            .because(format!("all of the {} connections are in use", self.settings.max_connections))
            .remedy("raise max_connections, or locks_per_connection")
            .retryable()
    }

    /// Opens a connection that `opening` already counts, for any attempt that wants one then.
    fn open(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.context.spawn(async move {
            match this.connector.open().await {
                Ok(session) => this.opened(session),
                Err(error) => this.not_opened(error),
            }
        });
    }

    /// Adds a connection that `opening` does not count yet.
    pub(crate) fn adopt(self: &Arc<Self>, session: Session) {
        self.inner.lock().opening += 1;
        self.opened(session);
    }

    /// Adds an opened connection. It stays counted throughout, first as opening, then as a link.
    fn opened(self: &Arc<Self>, session: Session) {
        let mut inner = self.inner.lock();
        inner.opening -= 1;
        if inner.is_closed {
            return;
        }
        inner.last_group += 1;
        let group = GroupId::new(inner.last_group);
        let (link, orders) = Link::new(group, &session);
        let entry = Entry { link: Arc::clone(&link), names: HashMap::new(), state: State::Own };
        inner.links.insert(group, entry);
        drop(inner);
        self.context.spawn(Actor::new(Arc::clone(self), link, session).work(orders));
        self.share(group);
    }

    fn not_opened(self: &Arc<Self>, error: LockError) {
        let error = error.during(Operation::Acquire);
        let wanted = {
            let mut inner = self.inner.lock();
            inner.opening -= 1;
            inner.forget_those_who_left();
            let wanted = inner.wanted.pop_front();
            if wanted.is_none() || inner.opening == 0 {
                inner.failures += 1;
                inner.failure = Some(error.clone());
            }
            wanted
        };
        if let Some(wanted) = wanted {
            // Sending fails if the waiter has gone.
            let _ = wanted.send(Err(error));
        }
        self.changed.notify_waiters();
        self.open_as_needed();
    }

    /// Called when an order has been carried out, which makes the queue of its connection shorter.
    pub(crate) fn progresses(&self, link: &Link) {
        link.has_carried_out_one();
        self.changed.notify_waiters();
    }

    /// Opens as many connections as the waiting attempts need, within the limit.
    fn open_as_needed(self: &Arc<Self>) {
        self.open_at_least(0);
    }

    fn open_at_least(self: &Arc<Self>, least: usize) {
        let mut inner = self.inner.lock();
        inner.forget_those_who_left();
        let needed = inner.needed(&self.settings).max(least);
        while inner.opening < needed
            && inner.links.len() + inner.opening < self.settings.max_connections
            && !inner.is_closed
        {
            inner.opening += 1;
            self.open();
        }
    }

    /// Turns a waiter's connection into a shared one. It keeps what is held on it, if anything.
    pub(crate) fn share(self: &Arc<Self>, group: GroupId) {
        self.update(group, |entry| entry.state = State::Shared);
        self.offer();
    }

    /// Records that the lock is neither held nor asked for on this connection.
    pub(crate) fn vacate(self: &Arc<Self>, group: GroupId, name: &Name) {
        self.update(group, |entry| {
            entry.names.remove(name);
        });
        self.offer();
    }

    /// Gives idle connections to waiters that want one.
    fn offer(self: &Arc<Self>) {
        self.changed.notify_waiters();
        loop {
            let (wanted, own) = {
                let mut inner = self.inner.lock();
                if inner.wanted.is_empty() {
                    return;
                }
                inner.forget_those_who_left();
                if !inner.has_place_for_waiter(self.settings.max_connections) {
                    return;
                }
                let Inner { links, wanted, .. } = &mut *inner;
                let Some(entry) = links.values_mut().find(|entry| entry.is_idle()) else { return };
                let Some(wanted) = wanted.pop_front() else { return };
                entry.state = State::Own;
                let own = OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true };
                (wanted, own)
            };
            // If the waiter has gone, the connection comes back by being dropped, and is offered to the next.
            drop(wanted.send(Ok(own)));
        }
    }

    /// Drops a connection from the pool if nothing is on it. Returns whether that was so.
    pub(crate) fn retire(&self, group: GroupId) -> bool {
        let mut inner = self.inner.lock();
        let is_idle = inner.links.get(&group).is_none_or(Entry::is_idle);
        if is_idle {
            inner.links.remove(&group);
        }
        is_idle
    }

    /// Removes a connection that has ended.
    pub(crate) fn remove(self: &Arc<Self>, group: GroupId) {
        self.inner.lock().links.remove(&group);
        self.changed.notify_waiters();
        self.open_as_needed();
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        inner.is_closed = true;
        inner.wanted.clear();
        self.changed.notify_waiters();
        for entry in inner.links.values() {
            // One that has already ended needs nothing more.
            let _ = entry.link.order(Order::Close);
        }
    }
}

impl Entry {
    fn is_idle(&self) -> bool {
        self.state == State::Shared && self.names.is_empty()
    }
}

impl Inner {
    /// How long a statement takes when nothing delays it: the best of all connections. Another connection shortens a queue that is
    /// long because the server is far away or its disk is slow, but not one on a busy machine.
    fn round_trip(&self) -> Duration {
        self.links.values().map(|entry| entry.link.round_trip()).min().unwrap_or_default()
    }

    fn waiting(&self) -> usize {
        self.links.values().filter(|entry| entry.state == State::Own).count()
    }

    /// Whether one more attempt may wait: one connection stays free for those that do not wait.
    fn has_place_for_waiter(&self, max: usize) -> bool {
        self.waiting() + 1 < max
    }

    fn forget_those_who_left(&mut self) {
        self.wanted.retain(|wanted| !wanted.is_closed());
    }

    /// How many connections the attempts without one need: each waiter one, and the others together as few as have space for them.
    fn needed(&self, settings: &Settings) -> usize {
        let may_wait = settings.max_connections.saturating_sub(self.waiting() + 1);
        let shared = self.links.values().filter(|entry| entry.state == State::Shared);
        let room: usize =
            shared.map(|entry| settings.locks_per_connection.saturating_sub(entry.names.len())).sum();
        // Seekers for which there is space may just not have checked again yet, unless the space is only on a connection that they
        // cannot use.
        let without =
            self.seeking.saturating_sub(room).max(usize::from(self.seeking > 0 && self.opening == 0));
        self.wanted.len().min(may_wait) + without.div_ceil(settings.locks_per_connection)
    }

    fn refuse_when_closed(&self) -> Result<(), LockError> {
        if self.is_closed {
            return Err(LockError::new(ErrorKind::Closed, Operation::Acquire));
        }
        Ok(())
    }
}

/// An attempt that looks for space, counted for as long as it looks.
struct Seeking<'a> {
    pool: &'a Pool,
    /// How often opening a connection had failed before.
    failures: u64,
}

impl<'a> Seeking<'a> {
    fn begin(pool: &'a Pool) -> Self {
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

impl Drop for Seeking<'_> {
    fn drop(&mut self) {
        self.pool.inner.lock().seeking -= 1;
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.inner.lock();
        formatter
            .debug_struct("Pool")
            .field("server", &self.settings.endpoint)
            .field("connections", &inner.links.len())
            .field("opening", &inner.opening)
            .field("wanted", &inner.wanted.len())
            .finish_non_exhaustive()
    }
}
