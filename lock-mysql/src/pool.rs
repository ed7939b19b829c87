//! The pool of connections: what it has to know of the server, and what is asked of it for a lock.
//!
//! A connection never has two slots of a lock for different attempts, or the lock and a slot: a session does not exclude itself. So
//! the pool tells locks apart by their gates.

use std::sync::Arc;

use lock_core::{AttemptId, BackendContext, GroupId, LockError, Operation};
use lock_kit::{PoolLimits, PooledServer};

use crate::actor::Actor;
use crate::control::Control;
use crate::link::{Asked, Claim, GivenBack, Link, Name};
use crate::session::Session;
use crate::settings::Settings;

/// How many waits of a client may be at the server, each on a connection of its own. By default a server has 151 connections for all.
const MOST_WAITING: usize = 16;

pub(crate) type Pool = lock_kit::Pool<Server>;

pub(crate) type OwnLink = lock_kit::OwnLink<Server>;

pub(crate) struct Server {
    pub(crate) context: BackendContext,
    pub(crate) settings: Arc<Settings>,
    pub(crate) control: Arc<Control>,
}

/// Who has a lock on a connection: of readers that share a slot, the one that sent their wait.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant {
    id: AttemptId,
    /// The exclusive attempt whose hold this one continues.
    former: Option<AttemptId>,
}

impl From<AttemptId> for Occupant {
    fn from(id: AttemptId) -> Self {
        Self { id, former: None }
    }
}

impl Occupant {
    fn is(&self, id: AttemptId) -> bool {
        self.id == id || self.former == Some(id)
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
            waiting: MOST_WAITING,
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
pub(crate) struct Started {
    pub(crate) link: Arc<Link>,
    /// The attempt by whose id the connection knows what it has for this request.
    pub(crate) hold: AttemptId,
    pub(crate) asked: Asked,
}

/// Takes a lock, if it is free, as soon as a connection has space.
///
/// # Cancel safety
/// Dropping the future gives up the place in the queue for a connection.
pub(crate) async fn take_somewhere(pool: &Arc<Pool>, claim: &Claim) -> Result<Started, LockError> {
    let (link, asked) = pool.take_somewhere(claim).await?;
    Ok(Started { link, hold: claim.id, asked })
}

/// Takes a lock, if it is free, on a shared connection with space.
pub(crate) fn take(pool: &Pool, claim: &Claim) -> Option<Started> {
    let (link, asked) = pool.take(claim)?;
    Some(Started { link, hold: claim.id, asked })
}

/// Releases the part that an attempt has in a hold on that connection, or may get there. If the hold is not there, it sends nothing:
/// by now the connection may wait for another lock, for as long as that takes.
pub(crate) fn give_back(
    pool: &Pool,
    link: &Link,
    key: &Name,
    (hold, id): (AttemptId, AttemptId),
    operation: Operation,
) -> Option<GivenBack> {
    pool.with_occupant(link, key, |occupant| {
        occupant.is(hold).then(|| link.release(Arc::clone(key), id, operation))
    })
}

/// Makes the exclusive hold of an attempt a reader's, if it is still there.
pub(crate) fn downgrade(pool: &Pool, link: &Link, former: AttemptId, claim: Claim) -> Option<Asked> {
    let gate = Arc::clone(&claim.parts.gate);
    pool.with_occupant(link, &gate, |occupant| {
        occupant.is(former).then(|| {
            *occupant = Occupant { id: claim.id, former: Some(former) };
            link.downgrade(former, claim)
        })
    })
}
