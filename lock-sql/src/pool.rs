//! The pool of connections: what it has to know of the server, and what is asked of it for a lock.

use std::sync::Arc;

use lock_core::{AttemptId, BackendContext, GroupId, LockError, Operation};
use lock_kit::{PoolLimits, PooledServer};

use crate::claim::Claim;
use crate::connection::Connection;
use crate::control::Control;
use crate::dialect::Dialect;
use crate::link::{Asked, Command, GivenBack, Link};
use crate::session::Session;
use crate::settings::Settings;
use crate::task::work;

/// The connections of a client on which locks are held.
pub(crate) type Pool<D> = lock_kit::Pool<Server<D>>;

/// A connection without holds, for one that is to wait.
pub(crate) type OwnLink<D> = lock_kit::OwnLink<Server<D>>;

/// What all connections of a client have in common.
pub(crate) struct Server<D: Dialect> {
    /// The settings of the client.
    pub(crate) settings: Arc<Settings<D>>,
    /// Its control connection.
    pub(crate) control: Arc<Control<D>>,
}

impl<D: Dialect> PooledServer for Server<D> {
    type Link = Link<D>;
    type Session = Session<D>;

    fn context(&self) -> &BackendContext {
        &self.settings.context
    }

    fn limits(&self) -> PoolLimits {
        self.settings.limits
    }

    async fn open(&self) -> Result<Session<D>, LockError> {
        self.settings.open().await
    }

    fn failure(&self) -> Option<LockError> {
        self.settings.failure()
    }

    fn driven(
        pool: &Arc<Pool<D>>,
        group: GroupId,
        session: Session<D>,
    ) -> (Arc<Link<D>>, impl Future<Output = ()> + Send + 'static) {
        let (link, mailbox) = Link::new(group, &session);
        (Arc::clone(&link), work(Connection::new(Arc::clone(pool), link, session), mailbox))
    }
}

/// Who has a lock on a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occupant {
    pub(crate) id: AttemptId,
    /// The exclusive attempt whose hold this one continues.
    pub(crate) former: Option<AttemptId>,
}

impl From<AttemptId> for Occupant {
    fn from(id: AttemptId) -> Self {
        Self { id, former: None }
    }
}

impl Occupant {
    pub(crate) fn is(self, id: AttemptId) -> bool {
        self.id == id || self.former == Some(id)
    }
}

/// Releases the hold that an attempt has on that connection, or may get there. If it is not there, it sends nothing: by now the
/// connection may wait for another lock, for as long as that takes.
pub(crate) fn give_back<D: Dialect>(
    pool: &Pool<D>,
    link: &Link<D>,
    key: &D::Key,
    id: AttemptId,
    operation: Operation,
) -> Option<GivenBack> {
    pool.with_occupant(link, key, |occupant| {
        let key = key.clone();
        occupant.is(id).then(|| link.asked(|answer| Command::Release { key, id, operation, answer }))
    })
}

/// Makes the exclusive hold of an attempt a reader's, if it is still there.
pub(crate) fn downgrade<D: Dialect>(
    pool: &Pool<D>,
    link: &Link<D>,
    former: AttemptId,
    claim: Claim<D::Key>,
) -> Option<Asked> {
    let key = claim.key.clone();
    pool.with_occupant(link, &key, |occupant| {
        occupant.is(former).then(|| {
            *occupant = Occupant { id: claim.id, former: Some(former) };
            link.asked(|answer| Command::Downgrade { former, claim, answer })
        })
    })
}
