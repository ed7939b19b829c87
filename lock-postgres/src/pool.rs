//! The pool of connections: what it has to know of the server, and what is asked of it for a lock.
//!
//! A connection never has a lock twice, not even a shared one: the server would count it, and grant it without a look at those that
//! wait. Only so many waits of a client are in the server's queues: a long queue costs every user of the server.

use std::sync::Arc;

use lock_core::{AttemptId, BackendContext, GroupId, LockError, Operation};
use lock_kit::{PoolLimits, PooledServer};
use tokio::sync::Notify;

use crate::actor::Actor;
use crate::budget::Budget;
use crate::control::Control;
use crate::key::Key;
use crate::link::{Asked, Claim, Downgraded, GivenBack, Link};
use crate::session::Session;
use crate::settings::Settings;

pub(crate) type Pool = lock_kit::Pool<Server>;

pub(crate) type OwnLink = lock_kit::OwnLink<Server>;

pub(crate) struct Server {
    pub(crate) context: BackendContext,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
    /// What the client may still take of the server's table of locks.
    pub(crate) budget: Arc<Budget>,
    /// Notified when permits have been given back.
    pub(crate) permits: Notify,
}

impl Server {
    pub(crate) fn new(context: BackendContext, settings: Arc<Settings>, control: Arc<Control>) -> Self {
        Self {
            budget: Budget::new(context.clock().clone()),
            permits: Notify::new(),
            context,
            settings,
            control,
        }
    }
}

impl PooledServer for Server {
    type Link = Link;
    type Session = Session;

    fn context(&self) -> &BackendContext {
        &self.context
    }

    fn limits(&self) -> PoolLimits {
        let settings = &self.settings;
        PoolLimits {
            connections: settings.max_connections,
            locks_per_connection: settings.locks_per_connection,
            waiting: settings.max_waiting,
            search: settings.time_to_connect() + settings.request_timeout,
            silence: settings.request_timeout / 2,
        }
    }

    async fn open(&self) -> Result<Session, LockError> {
        self.settings.open(&self.context).await
    }

    fn failure(&self) -> Option<LockError> {
        self.settings.failure()
    }

    fn driven(
        pool: &Arc<Pool>,
        group: GroupId,
        session: Session,
    ) -> (Arc<Link>, impl Future<Output = ()> + Send + 'static) {
        let (link, mailbox) = Link::new(group, &session);
        (Arc::clone(&link), Actor::new(Arc::clone(pool), link, session).work(mailbox))
    }
}

/// A pending request on a connection.
pub(crate) type Started = (Arc<Link>, Asked);

/// Releases a lock if this attempt has it on that connection, or may get it there. Otherwise it sends nothing: by now the connection
/// may wait for another lock, for as long as that takes.
pub(crate) fn give_back(
    pool: &Pool,
    link: &Link,
    key: Key,
    id: AttemptId,
    operation: Operation,
) -> Option<GivenBack> {
    pool.with_occupant(link, &key, |occupant| (*occupant == id).then(|| link.release(key, id, operation)))
}

/// Makes an exclusive hold of this attempt a shared one of the claim's, if it is that of either. Otherwise it sends nothing.
pub(crate) fn downgrade(pool: &Pool, link: &Link, former: AttemptId, claim: &Claim) -> Option<Downgraded> {
    pool.with_occupant(link, &claim.key, |occupant| {
        (*occupant == former || *occupant == claim.id).then(|| link.downgrade(former, claim.clone()))
    })
}

/// Records that another attempt has the lock now.
pub(crate) fn pass_on(pool: &Pool, link: &Link, key: Key, to: AttemptId) {
    pool.with_occupant(link, &key, |occupant| {
        *occupant = to;
        Some(())
    });
}
