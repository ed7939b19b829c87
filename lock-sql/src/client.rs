//! A client of a SQL server: its connections, and where its attempts may have left something.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, AttemptId, Capabilities, FencingToken, Grant, HolderId, LockError, LossReason, Moment,
    Operation, Released, Term,
};
use lock_kit::{ClientRecord, gone, is_nearly_full};

use crate::claim::Claim;
use crate::control::Control;
use crate::dialect::Dialect;
use crate::failure::Failure;
use crate::link::Link;
use crate::pool::{Pool, Server, give_back};
use crate::session::Session;
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
    /// What it can do.
    pub(crate) capabilities: Capabilities,
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
    /// Connects, and makes sure that there is what the client needs at the server. It checks its holds so often, if that is more often
    /// than the core would.
    ///
    /// # Errors
    /// Why there is no connection, or why it could not keep the guarantees.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub async fn connect(
        settings: Result<Settings<D>, LockError>,
        capabilities: Capabilities,
        check_every: Option<Duration>,
    ) -> Result<Self, LockError> {
        let settings = Arc::new(settings?);
        let mut session = settings.open().await?;
        let prepared = async {
            D::prepare(&settings, &mut session).await?;
            count_connections(&settings, &mut session).await.map_err(Failure::into_error)
        };
        settings.in_time(settings.time_to_connect(), Operation::Connect, prepared).await?;
        let (control, auxiliary) = (Control::start(&settings), Control::start(&settings));
        let pool = Pool::new(Server { settings: Arc::clone(&settings), control: Arc::clone(&control) });
        pool.adopt(session);
        if let Some(every) = check_every {
            settings.context.spawn(check_often(Arc::clone(&settings), Arc::downgrade(&pool), every));
        }
        Ok(Self { settings, capabilities, control, auxiliary, pool, attempts: Mutex::default() })
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
        let holder = place.claim.holder.is_none().then(|| HolderId::new(place.link.session.to_string()));
        let term = Term::Leased { anchor, length: self.settings.server.lease };
        let token = token.map(FencingToken::new);
        Grant { sections, holder, token, ..Grant::new(place, group, term) }
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

    /// Releases a hold on the connection that may have it. If the connection has ended, the server frees the lock by itself.
    pub(crate) async fn given_back(
        &self,
        place: &Placed<D>,
        operation: Operation,
    ) -> Result<Released, LockError> {
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
}

impl<D: Dialect> fmt::Debug for Client<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

/// Warns when the server has hardly any connections left. That it does not say so is no failure.
async fn count_connections<D: Dialect>(
    settings: &Settings<D>,
    session: &mut Session<D>,
) -> Result<(), Failure> {
    let counted = match session.ask(Operation::Connect, D::CONNECTIONS.to_owned()).await {
        Err(failure @ Failure::Broken(_)) => return Err(failure),
        counted => counted.unwrap_or_default(),
    };
    let mut numbers = counted.rows.iter().flatten().flatten().filter_map(|text| text.parse().ok());
    if let (Some(used), Some(most)) = (numbers.next(), numbers.next())
        && is_nearly_full(used, most)
    {
        tracing::warn!(
            target: "distlock", server = %settings.server.endpoint,
            "{used} of the server's {most} connections are in use, and when all are, no client can connect: raise max_connections \
             at the server, or lower ?max_connections= of the clients"
        );
    }
    Ok(())
}

/// Checks all holds more often than the core would.
async fn check_often<D: Dialect>(settings: Arc<Settings<D>>, pool: Weak<Pool<D>>, every: Duration) {
    loop {
        settings.clock().sleep_until(settings.clock().now().plus(every)).await;
        let Some(pool) = pool.upgrade() else { return };
        pool.groups_in_use().into_iter().for_each(|group| settings.context.renew_now(group));
    }
}
