//! A client of a SQL server: its connections, and where its attempts may have left something.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, AttemptId, Downgraded, FencingToken, Grant, GroupId, HolderId, LeaseState, LockError,
    LossReason, Moment, Operation, Released, Term,
};
use lock_kit::{ClientRecord, gone};

use crate::claim::Claim;
use crate::control::Control;
use crate::dialect::Dialect;
use crate::link::{Gone, Link, Taken};
use crate::pool::{Pool, Server, downgrade, give_back};
use crate::session::{Answer, Session};
use crate::settings::Settings;
use crate::waiting::Waiting;

/// Longer than the time after which the core reports the server's silence to callers that wait behind this clean-up, because
/// another request would only queue behind this one on the same connection.
const SHORTEST_TIME_TO_UNDO: Duration = Duration::from_millis(1500);

/// Where an attempt is made, or holds its lock: what a client needs to renew and release it.
pub struct Placed<D: Dialect> {
    pub(crate) link: Arc<Link<D>>,
    pub(crate) claim: Claim<D::Key>,
}

impl<D: Dialect> Clone for Placed<D> {
    fn clone(&self) -> Self {
        Self { link: Arc::clone(&self.link), claim: self.claim.clone() }
    }
}

impl<D: Dialect> fmt::Debug for Placed<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Placed")
            .field("id", &self.claim.id)
            .field("link", &self.link)
            .finish_non_exhaustive()
    }
}

/// A client of a SQL server.
pub struct Client<D: Dialect> {
    /// Its settings.
    pub settings: Arc<Settings<D>>,
    /// What cancels waits and looks at them.
    pub control: Arc<Control<D>>,
    /// A second connection of that kind, for tables, which others may block: nothing that is urgent waits behind it.
    pub auxiliary: Arc<Control<D>>,
    /// The connections that hold locks.
    pub(crate) pool: Arc<Pool<D>>,
    /// Where attempts may have left something, and their waits at the server.
    attempts: Mutex<HashMap<AttemptId, Tracked<D>>>,
}

type Tracked<D> = (Placed<D>, Option<Arc<Waiting>>);

impl<D: Dialect> Client<D> {
    /// Starts a client with its first session. It checks its holds so often, if that is more often than the core would.
    pub(crate) fn start(
        settings: Arc<Settings<D>>,
        session: Session<D>,
        check_every: Option<Duration>,
    ) -> Self {
        let (control, auxiliary) = (Control::start(&settings), Control::start(&settings));
        let pool = Pool::new(Server { settings: Arc::clone(&settings), control: Arc::clone(&control) });
        pool.adopt(session);
        if let Some(every) = check_every {
            settings.context.spawn(check_often(Arc::clone(&settings), Arc::downgrade(&pool), every));
        }
        Self { settings, control, auxiliary, pool, attempts: Mutex::default() }
    }

    /// Returns what an attempt asks for.
    pub(crate) fn claim(&self, request: &AcquireRequest) -> Result<Claim<D::Key>, LockError> {
        let (dialect, mode) = (&self.settings.dialect, request.mode());
        let holder = dialect.is_recorded(mode).then(|| Arc::new(ClientRecord::from(&**request.holder())));
        Ok(Claim {
            key: dialect.key(request.name(), request.physical(), mode.kind())?,
            name: request.name().clone(),
            id: request.id(),
            mode,
            holder,
            sections: request.sections(),
        })
    }

    /// Returns what the core gets of a hold.
    pub(crate) fn grant(&self, place: Placed<D>, token: Option<u64>, anchor: Moment) -> Grant<Placed<D>> {
        let (group, sections) = (place.link.group, place.claim.sections);
        // Without a record the server knows only its session.
        let session = place.claim.holder.is_none().then(|| HolderId::new(place.link.session.to_string()));
        let term = Term::Leased { anchor, length: self.settings.server.lease };
        let mut grant = Grant::new(place, group, term).with_sections(sections);
        if let Some(session) = session {
            grant = grant.with_holder(session);
        }
        match token {
            Some(token) => grant.with_token(FencingToken::new(token)),
            None => grant,
        }
    }

    /// Keeps track of where an attempt is made, until nothing of it is left.
    pub(crate) fn track(&self, place: Placed<D>, waiting: Option<&Arc<Waiting>>) {
        self.attempts.lock().insert(place.claim.id, (place, waiting.cloned()));
    }

    /// Records that nothing of an attempt is left.
    pub(crate) fn forget(&self, id: AttemptId) {
        self.attempts.lock().remove(&id);
    }

    /// Makes sure that nothing of an attempt is left, and that nothing of it appears later.
    ///
    /// # Errors
    /// That the server did not answer.
    ///
    /// # Cancel safety
    /// Call it again.
    pub(crate) async fn undo(&self, id: AttemptId, operation: Operation) -> Result<(), LockError> {
        let Some((place, waiting)) = self.attempts.lock().get(&id).cloned() else { return Ok(()) };
        if let Some(waiting) = waiting {
            waiting.stop();
        }
        // Boxed: most attempts have left nothing, and need no space for this.
        match Box::pin(self.given_back(&place, operation)).await {
            Err(_) if place.link.is_terminated() => {}
            released => drop(released?),
        }
        self.forget(id);
        Ok(())
    }

    /// Releases a hold.
    ///
    /// # Errors
    /// That the server did not answer.
    ///
    /// # Cancel safety
    /// Call it again.
    pub(crate) async fn release(&self, lease: &Placed<D>) -> Result<Released, LockError> {
        let released = self.given_back(lease, Operation::Release).await;
        if released.is_ok() || lease.link.is_terminated() {
            self.forget(lease.claim.id);
        }
        released
    }

    /// Releases a hold on the connection that may have it. If the connection has ended, the server frees the lock by itself.
    async fn given_back(&self, place: &Placed<D>, operation: Operation) -> Result<Released, LockError> {
        let Placed { link, claim: Claim { key, id, .. } } = place;
        let released = async {
            let has_ended = link.has_ended();
            match give_back(&self.pool, link, key, *id, operation) {
                Some(released) => {
                    if let Ok(released) = released.await {
                        return released;
                    }
                }
                None if !link.has_ended() => return Ok(Released::WasLost(LossReason::Deleted)),
                None => {}
            }
            link.terminated().await;
            // If the connection ended during the request, the server may have carried it out.
            if has_ended { Ok(Released::WasLost(LossReason::ConnectionLost)) } else { Err(gone(operation)) }
        };
        let limit = self.settings.request_timeout.max(SHORTEST_TIME_TO_UNDO);
        self.settings.in_time(limit, operation, released).await
    }

    /// Returns the state of each of these holds on one connection.
    ///
    /// # Errors
    /// That the server did not answer.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub(crate) async fn renew(
        &self,
        group: GroupId,
        leases: Vec<(D::Key, AttemptId)>,
    ) -> Result<Vec<LeaseState>, LockError> {
        let lost = vec![LeaseState::Lost(LossReason::ConnectionLost); leases.len()];
        let Some(link) = self.pool.link(group) else { return Ok(lost) };
        let checking = async { link.check(leases).await.unwrap_or_else(|Gone| Ok(lost)) };
        self.settings.in_time(self.settings.request_timeout, Operation::Renew, checking).await
    }

    /// Makes an exclusive hold that of the reader with the claim.
    ///
    /// # Errors
    /// That the server did not answer, or has not done it.
    ///
    /// # Cancel safety
    /// Call it again.
    pub(crate) async fn downgrade(
        &self,
        lease: &Placed<D>,
        claim: Claim<D::Key>,
    ) -> Result<Downgraded<Placed<D>>, LockError> {
        let (link, id, former) = (&lease.link, claim.id, lease.claim.id);
        let place = Placed { link: Arc::clone(link), claim: claim.clone() };
        self.track(place.clone(), None);
        let asked = downgrade(&self.pool, link, former, claim);
        let downgrading = async {
            let reason = match asked {
                Some(asked) => match asked.await {
                    Ok(Ok(Taken::Granted { token, anchor })) => return Ok(Ok((token, anchor))),
                    Ok(Ok(_)) => LossReason::Deleted,
                    Ok(Err(error)) => return Err(error.during(Operation::Downgrade)),
                    Err(_) => LossReason::ConnectionLost,
                },
                None if link.has_ended() => LossReason::ConnectionLost,
                None => LossReason::Deleted,
            };
            Ok(Err(reason))
        };
        let limit = self.settings.request_timeout;
        let downgraded = self.settings.in_time(limit, Operation::Downgrade, downgrading).await?;
        self.forget(if downgraded.is_ok() { former } else { id });
        Ok(match downgraded {
            Ok((token, anchor)) => Downgraded::Shared(self.grant(place, token, anchor)),
            Err(reason) => Downgraded::WasLost(reason),
        })
    }

    /// Asks for a sign of life.
    ///
    /// # Errors
    /// That the server did not answer, or why not.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub(crate) async fn ping(&self) -> Result<Answer, LockError> {
        let asking = self.control.ask(Operation::Ping, D::ping());
        self.settings.in_time(self.settings.time_to_ask(), Operation::Ping, asking).await
    }

    /// Ends all connections.
    ///
    /// # Cancel safety
    /// They end all the same.
    pub(crate) async fn close(&self) {
        self.pool.close();
        tokio::join!(self.auxiliary.close(), self.control.close());
    }
}

impl<D: Dialect> fmt::Debug for Client<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("pool", &self.pool).finish_non_exhaustive()
    }
}

/// Checks all holds more often than the core would.
async fn check_often<D: Dialect>(settings: Arc<Settings<D>>, pool: Weak<Pool<D>>, every: Duration) {
    loop {
        settings.clock().sleep_until(settings.clock().now().plus(every)).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.groups_in_use().into_iter().for_each(|group| settings.context.renew_now(group));
    }
}
