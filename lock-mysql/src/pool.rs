//! Which connections there are, what is on them, and who may use which.
//!
//! * A lock that is tried, and whatever is held, shares a connection with others, up to a number. The fullest that has room
//!   is taken, so that the others become empty.
//! * Whoever waits has a connection of its own, on which nothing is held; what is granted stays there, and makes it a
//!   shared one.
//! * One connection never has a lock twice: the server would count it, and one release would not free it.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::{ErrorKind, GroupId, Host, LockError, Operation};
use tokio::sync::{Notify, oneshot};

use crate::actor::Actor;
use crate::control::Control;
use crate::link::{Asked, Claim, Link, Name, Order};
use crate::session::{Session, within};
use crate::settings::Settings;
use crate::trouble::gone;

pub(crate) struct Pool {
    pub(crate) host: Host,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
    inner: Mutex<Inner>,
    /// Something has become free.
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    links: BTreeMap<GroupId, Entry>,
    /// How many connections are being opened.
    opening: usize,
    /// Those who want a connection of their own, in order.
    wanted: VecDeque<Wanted>,
    last_group: u64,
    is_closed: bool,
}

struct Entry {
    link: Arc<Link>,
    /// What is held there, or may be, or is asked for.
    names: HashSet<Name>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Short statements are carried out at once.
    Shared,
    /// Somebody has it for a wait.
    Own,
}

/// For what a connection is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Try,
    Wait,
}

struct Wanted {
    purpose: Purpose,
    given: oneshot::Sender<Result<OwnLink, LockError>>,
}

/// A connection that nobody else uses and on which nothing is held. Goes back when it is dropped unused.
pub(crate) struct OwnLink {
    pool: Arc<Pool>,
    link: Arc<Link>,
    is_unused: bool,
}

/// A request that is under way on a connection.
pub(crate) struct Started {
    pub(crate) link: Arc<Link>,
    pub(crate) asked: Asked,
}

impl OwnLink {
    /// Takes a lock if it is free; the connection is a shared one from now on.
    pub(crate) fn take(mut self, claim: Claim) -> Started {
        self.is_unused = false;
        self.pool.update(self.link.group, |entry| {
            entry.state = State::Shared;
            entry.names.insert(Arc::clone(&claim.name));
        });
        Started { link: Arc::clone(&self.link), asked: self.link.take(claim) }
    }

    /// Waits for a lock until `stop` says not to.
    pub(crate) fn wait(mut self, claim: Claim, statement: String, stop: Arc<Notify>) -> Started {
        self.is_unused = false;
        self.pool.update(self.link.group, |entry| {
            entry.names.insert(Arc::clone(&claim.name));
        });
        let asked = self.link.wait(claim, statement, stop);
        Started { link: Arc::clone(&self.link), asked }
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
    pub(crate) fn new(host: Host, settings: Arc<Settings>, control: Arc<Control>) -> Arc<Self> {
        Arc::new(Self { host, settings, control, inner: Mutex::default(), changed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, group: GroupId, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.lock().links.get_mut(&group) {
            change(entry);
        }
    }

    pub(crate) fn link(&self, group: GroupId) -> Option<Arc<Link>> {
        self.lock().links.get(&group).map(|entry| Arc::clone(&entry.link))
    }

    /// The connections on which something is held.
    pub(crate) fn groups_in_use(&self) -> Vec<GroupId> {
        let inner = self.lock();
        let in_use = inner.links.iter().filter(|(_, entry)| !entry.names.is_empty());
        in_use.map(|(group, _)| *group).collect()
    }

    /// Takes a lock, if it is free, on a connection that others use as well; `None` when there is none with room.
    pub(crate) fn take(&self, claim: &Claim) -> Option<Started> {
        let (clock, long) = (self.host.clock(), self.settings.request_timeout / 2);
        let mut inner = self.lock();
        let has_room = |entry: &&mut Entry| {
            entry.state == State::Shared
                && entry.names.len() < self.settings.locks_per_connection
                && !entry.names.contains(&claim.name)
                && !entry.link.is_slow(clock, long)
        };
        let entry = inner.links.values_mut().filter(has_room).max_by_key(|entry| entry.names.len())?;
        entry.names.insert(Arc::clone(&claim.name));
        // In the same moment as the name: what is ordered later on this connection comes later.
        let asked = entry.link.take(claim.clone());
        Some(Started { link: Arc::clone(&entry.link), asked })
    }

    /// A connection on which nothing is held, if there is one. The last is not for waiting.
    pub(crate) fn idle(self: &Arc<Self>, purpose: Purpose) -> Option<OwnLink> {
        let (clock, long) = (self.host.clock(), self.settings.request_timeout / 2);
        let mut inner = self.lock();
        if purpose == Purpose::Wait && inner.waiting() + 1 >= self.settings.max_connections {
            return None;
        }
        let entry =
            inner.links.values_mut().find(|entry| entry.is_idle() && !entry.link.is_slow(clock, long))?;
        entry.state = State::Own;
        Some(OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true })
    }

    /// Whether a waiter would have to wait for a connection.
    pub(crate) fn is_full_of_waiters(&self) -> bool {
        !self.lock().has_place(Purpose::Wait, self.settings.max_connections)
    }

    /// Takes a lock, if it is free, wherever there is room, or as soon as there is.
    ///
    /// # Cancel safety
    /// Dropping it gives the place up.
    pub(crate) async fn take_somewhere(self: &Arc<Self>, claim: &Claim) -> Result<Started, LockError> {
        let clock = self.host.clock();
        let deadline = clock.now().plus(self.settings.request_timeout);
        loop {
            let changed = self.changed.notified();
            if let Some(started) = self.take(claim) {
                return Ok(started);
            }
            if self.lock().has_place(Purpose::Try, self.settings.max_connections) {
                return Ok(self.own(Purpose::Try).await?.take(claim.clone()));
            }
            within(clock, deadline, changed).await.ok_or_else(|| self.no_room())?;
        }
    }

    /// A connection for oneself: one that is idle, or a new one, or the next that becomes free, in order.
    ///
    /// # Cancel safety
    /// Dropping it gives the place up.
    pub(crate) async fn own(self: &Arc<Self>, purpose: Purpose) -> Result<OwnLink, LockError> {
        if let Some(own) = self.idle(purpose) {
            return Ok(own);
        }
        let waiting = {
            let mut inner = self.lock();
            if inner.is_closed {
                return Err(LockError::new(ErrorKind::Closed, Operation::Acquire));
            }
            let (given, waiting) = oneshot::channel();
            inner.wanted.push_back(Wanted { purpose, given });
            if inner.has_place(purpose, self.settings.max_connections) {
                inner.opening += 1;
                self.open();
            }
            waiting
        };
        waiting.await.unwrap_or_else(|_| Err(gone(Operation::Acquire)))
    }

    fn no_room(&self) -> LockError {
        LockError::new(ErrorKind::Unreachable, Operation::Acquire)
            .because(format!("all of the {} connections are in use", self.settings.max_connections))
            .remedy("raise max_connections, or locks_per_connection")
            .retryable()
    }

    /// Opens a connection that has been counted, for whoever wants one then.
    fn open(self: &Arc<Self>) {
        let this = Arc::clone(self);
        self.host.spawn(async move {
            match this.settings.open(&this.host).await {
                Ok(session) => this.opened(session),
                Err(error) => this.not_opened(error),
            }
        });
    }

    fn opened(self: &Arc<Self>, session: Session) {
        self.lock().opening -= 1;
        self.adopt(session);
    }

    /// Takes a connection up.
    pub(crate) fn adopt(self: &Arc<Self>, session: Session) {
        let mut inner = self.lock();
        if inner.is_closed {
            return;
        }
        inner.last_group += 1;
        let group = GroupId::new(inner.last_group);
        let (link, orders) = Link::new(group, session.number, session.run.clone());
        let entry = Entry { link: Arc::clone(&link), names: HashSet::new(), state: State::Own };
        inner.links.insert(group, entry);
        drop(inner);
        self.host.spawn(Actor::new(Arc::clone(self), link, session).work(orders));
        self.share(group);
    }

    fn not_opened(self: &Arc<Self>, error: LockError) {
        let wanted = {
            let mut inner = self.lock();
            inner.opening -= 1;
            inner.wanted.retain(|wanted| !wanted.given.is_closed());
            inner.wanted.pop_front()
        };
        if let Some(wanted) = wanted {
            // Whoever has gone does not want to know.
            let _ = wanted.given.send(Err(error.during(Operation::Acquire)));
        }
        self.open_for_those_who_wait();
    }

    /// After a connection has ended, or could not be opened.
    fn open_for_those_who_wait(self: &Arc<Self>) {
        let mut inner = self.lock();
        while inner.wanted.len() > inner.opening
            && inner.has_place(Purpose::Wait, self.settings.max_connections)
        {
            inner.opening += 1;
            self.open();
        }
    }

    /// A connection of somebody's own has become one for all: what is held there, if anything, it goes on holding.
    pub(crate) fn share(self: &Arc<Self>, group: GroupId) {
        self.update(group, |entry| entry.state = State::Shared);
        self.offer();
    }

    /// The lock is not held on this connection, nor asked for.
    pub(crate) fn vacate(self: &Arc<Self>, group: GroupId, name: &Name) {
        self.update(group, |entry| {
            entry.names.remove(name);
        });
        self.offer();
    }

    /// Gives idle connections to those who want one.
    fn offer(self: &Arc<Self>) {
        self.changed.notify_waiters();
        loop {
            let (wanted, own) = {
                let mut inner = self.lock();
                let Some(wanted) = inner.next_wanted(self.settings.max_connections) else { return };
                let Some(entry) = inner.links.values_mut().find(|entry| entry.is_idle()) else {
                    inner.wanted.push_front(wanted);
                    return;
                };
                entry.state = State::Own;
                let own = OwnLink { pool: Arc::clone(self), link: Arc::clone(&entry.link), is_unused: true };
                (wanted, own)
            };
            // What nobody takes comes back by being dropped, and is offered to the next.
            drop(wanted.given.send(Ok(own)));
        }
    }

    /// Lets go of a connection on which nothing is; answers whether that was so.
    pub(crate) fn retire(&self, group: GroupId) -> bool {
        let mut inner = self.lock();
        let is_idle = inner.links.get(&group).is_none_or(Entry::is_idle);
        if is_idle {
            inner.links.remove(&group);
        }
        is_idle
    }

    /// A connection has ended.
    pub(crate) fn remove(self: &Arc<Self>, group: GroupId) {
        self.lock().links.remove(&group);
        self.changed.notify_waiters();
        self.open_for_those_who_wait();
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        inner.wanted.clear();
        for entry in inner.links.values() {
            // One that has ended needs no more.
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
    fn waiting(&self) -> usize {
        self.links.values().filter(|entry| entry.state == State::Own).count()
    }

    /// Whether one more connection may be opened. One is left for those who do not wait.
    fn has_place(&self, purpose: Purpose, max: usize) -> bool {
        let all = self.links.len() + self.opening;
        match purpose {
            Purpose::Try => all < max,
            Purpose::Wait => all < max && self.waiting() + self.opening + 1 < max,
        }
    }

    /// The first who still wants a connection, and may have one: the last is not for waiting.
    fn next_wanted(&mut self, max: usize) -> Option<Wanted> {
        if self.wanted.is_empty() {
            return None;
        }
        self.wanted.retain(|wanted| !wanted.given.is_closed());
        let may_wait = self.waiting() + 1 < max;
        let next = self.wanted.iter().position(|wanted| may_wait || wanted.purpose == Purpose::Try)?;
        self.wanted.remove(next)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.lock();
        formatter
            .debug_struct("Pool")
            .field("server", &self.settings.place)
            .field("connections", &inner.links.len())
            .field("opening", &inner.opening)
            .field("wanted", &inner.wanted.len())
            .finish_non_exhaustive()
    }
}
