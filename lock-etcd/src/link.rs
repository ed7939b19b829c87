//! Keeps a client connected, and its lease alive.
//!
//! A connection that breaks, falls silent or loses its leader is replaced by one with the next server; the lease goes on there. A
//! lease that the servers do not have any more is replaced by another one, and what it kept is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::spi::within;
use lock_core::{BackendContext, Backoff, ErrorKind, GroupId, LockError, LossReason, Moment, Operation};
use lock_entries::Failed;
use tokio::sync::watch;

use crate::connection::Connection;
use crate::failure::Failure;
use crate::messages::{Call, LeaseRevoke};
use crate::options::EtcdOptions;
use crate::session::{Session, whole_seconds};
use crate::version::check_version;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long closing a client waits for the end of its lease.
const TIME_TO_CLOSE: Duration = Duration::from_millis(900);

/// The contact of a client with the servers.
#[derive(Clone)]
enum Contact {
    Good(Arc<Connection>, Arc<Session>),
    Lost(Failure),
    Closed,
}

pub(crate) struct Link {
    pub(crate) context: BackendContext,
    pub(crate) options: EtcdOptions,
    /// How long the servers may take for one answer.
    pub(crate) timeout: Duration,
    contact: watch::Sender<Contact>,
    /// Which of the servers to connect to next.
    next_host: AtomicUsize,
    next_group: AtomicU64,
}

impl Link {
    /// Connects to the first server that answers, gets a lease, and keeps both from then on.
    pub(crate) async fn start(context: BackendContext, options: EtcdOptions) -> Result<Arc<Self>, LockError> {
        let timeout = options.timeout_within(context.renewal_interval(options.lease)?);
        let link = Arc::new(Self {
            context,
            options,
            timeout,
            contact: watch::Sender::new(Contact::Lost(Failure::Silence)),
            next_host: AtomicUsize::new(0),
            next_group: AtomicU64::new(0),
        });
        let mut others = 1..link.options.hosts().len();
        let (connection, session) = loop {
            match link.open(None).await {
                // The others would refuse a wrong login, too.
                Err(error) if error.is_retryable() && others.next().is_some() => {}
                opened => break opened?,
            }
        };
        link.contact.send_replace(Contact::Good(Arc::clone(&connection), Arc::clone(&session)));
        link.context.spawn(Arc::clone(&link).keep(connection, session));
        Ok(link)
    }

    /// Sends a request and waits for its answer; once more with the next login if this one has expired, which a server only says
    /// when it is asked. Without contact nothing is sent.
    pub(crate) async fn ask<C: Call + Clone>(&self, call: C) -> Result<C::Answer, Failure> {
        self.asked(|connection| {
            let call = call.clone();
            async move { connection.ask(call).await }
        })
        .await
    }

    /// Renews a lease, as a [connection](Connection::renew) does, and with the next login if this one has expired.
    pub(crate) async fn renew(&self, lease: i64) -> Result<(bool, Moment), Failure> {
        self.asked(|connection| async move { connection.renew(lease).await }).await
    }

    async fn asked<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        ask: impl Fn(Arc<Connection>) -> F,
    ) -> Result<T, Failure> {
        let (connection, _) = self.now()?;
        let clock = self.context.clock();
        let until = clock.now().plus(self.timeout);
        match ask(Arc::clone(&connection)).await {
            Err(failure) if failure.needs_login() => {
                let mut contact = self.contact.subscribe();
                let is_other = |contact: &Contact| match contact {
                    Contact::Good(other, _) => !Arc::ptr_eq(other, &connection),
                    Contact::Lost(_) => false,
                    Contact::Closed => true,
                };
                if within(clock, until, contact.wait_for(is_other)).await.is_none() {
                    return Err(failure);
                }
                let (other, _) = self.now()?;
                within(clock, until, ask(other)).await.unwrap_or(Err(Failure::Silence))
            }
            answer => answer,
        }
    }

    /// Renews the lease.
    pub(crate) async fn beat(&self, session: &Session) -> Result<(), Failure> {
        session.beat(&self.now()?.0).await
    }

    /// The connection and the lease, if there is contact now.
    pub(crate) fn now(&self) -> Result<(Arc<Connection>, Arc<Session>), Failure> {
        match &*self.contact.borrow() {
            Contact::Good(connection, session) => Ok((Arc::clone(connection), Arc::clone(session))),
            Contact::Lost(failure) => Err(Failure::Unsent(failure.clone().explain(Operation::Connect))),
            Contact::Closed => Err(Failure::Refused(closed())),
        }
    }

    /// The same when there is contact again, which may take for ever.
    pub(crate) async fn in_contact(&self) -> Result<(Arc<Connection>, Arc<Session>), Failure> {
        let mut contact = self.contact.subscribe();
        // This keeps the sender.
        let _ = contact.wait_for(|contact| !matches!(contact, Contact::Lost(_))).await;
        self.now()
    }

    /// The same for a request that may take as long as an answer.
    pub(crate) async fn soon(&self) -> Result<(Arc<Connection>, Arc<Session>), Failure> {
        let clock = self.context.clock();
        let found = within(clock, clock.now().plus(self.timeout), self.in_contact()).await;
        found.unwrap_or_else(|| self.now())
    }

    /// The lease of this group, if it is the client's.
    pub(crate) fn session_of(&self, group: GroupId) -> Option<Arc<Session>> {
        match &*self.contact.borrow() {
            Contact::Good(_, session) if session.group == group => Some(Arc::clone(session)),
            _ => None,
        }
    }

    /// Opens a connection with the next server, looks at its version, and renews the lease on it; asks for a new lease if it is gone.
    async fn open(
        &self,
        session: Option<&Arc<Session>>,
    ) -> Result<(Arc<Connection>, Arc<Session>), LockError> {
        let hosts = self.options.hosts();
        let host = self.next_host.fetch_add(1, Ordering::Relaxed) % hosts.len().max(1);
        let host = hosts.get(host).map_or("", String::as_str);
        let connection = Connection::open(&self.context, &self.options, host, self.timeout).await?;
        let leased = async {
            check_version(&connection, self.options.is_strict).await?;
            if let Some(session) = session {
                // An earlier request may have found out meanwhile.
                let beaten =
                    if session.is_over() { Err(Failure::LeaseOver) } else { session.beat(&connection).await };
                match beaten {
                    Ok(()) => return Ok(Arc::clone(session)),
                    Err(Failure::LeaseOver) => {
                        self.context.group_lost(session.group, LossReason::SessionClosed);
                    }
                    Err(failure) => return Err(failure),
                }
            }
            let group = GroupId::new(self.next_group.fetch_add(1, Ordering::Relaxed));
            let ttl = whole_seconds(self.options.lease);
            Ok(Arc::new(Session::grant(&connection, &self.context, group, ttl).await?))
        };
        match leased.await {
            Ok(session) => Ok((connection, session)),
            Err(failure) => {
                connection.end(failure.clone());
                Err(failure.explain(Operation::Connect))
            }
        }
    }

    /// Replaces each connection that breaks, and the lease when it is gone.
    async fn keep(self: Arc<Self>, mut connection: Arc<Connection>, mut session: Arc<Session>) {
        let clock = self.context.clock();
        while !self.is_closed() {
            let failure = tokio::select! {
                biased;
                () = session.ended() => Failure::LeaseOver,
                failure = connection.broken() => failure,
                () = self.keep_alive(&connection, &session) => Failure::LeaseOver,
            };
            connection.end(failure.clone());
            if self.is_closed() {
                return;
            }
            let error = failure.clone().explain(Operation::Connect);
            self.set(Contact::Lost(failure));
            tracing::warn!(target: "distlock", server = %connection.host, %error, "contact lost");
            if session.is_over() {
                self.context.group_lost(session.group, LossReason::SessionClosed);
            } else {
                self.context.group_suspect(session.group);
            }
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            // At once at first, and then after pauses that grow.
            while !self.is_closed() {
                match self.open(Some(&session)).await {
                    Ok(opened) => {
                        (connection, session) = opened;
                        break;
                    }
                    Err(error) => {
                        self.set(Contact::Lost(Failure::Unsent(error)));
                        clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
                    }
                }
            }
            if !self.set(Contact::Good(Arc::clone(&connection), Arc::clone(&session))) {
                // `close` has not seen a connection that was opened meanwhile.
                return connection.end(Failure::Refused(closed()));
            }
            tracing::info!(target: "distlock", server = %connection.host, "contact restored");
            self.context.group_restored(session.group);
        }
    }

    /// Sends a sign of life while the renewals of holds do not. Ends when the lease is over.
    async fn keep_alive(&self, connection: &Connection, session: &Session) {
        let clock = self.context.clock();
        let interval = session.interval;
        loop {
            // A little later than the next renewal, if there is one.
            let due = session.anchor().plus(interval + interval / 4);
            clock.sleep_until(due).await;
            if session.anchor().plus(interval) <= clock.now() {
                match session.beat(connection).await {
                    Ok(()) => {}
                    Err(Failure::LeaseOver) => return,
                    // What ends the connection ends this.
                    Err(_) => clock.sleep_until(clock.now().plus(interval / 4)).await,
                }
            }
        }
    }

    /// A closed client stays closed. Returns whether it was open.
    fn set(&self, contact: Contact) -> bool {
        self.contact.send_if_modified(|current| {
            let is_open = !matches!(current, Contact::Closed);
            if is_open {
                *current = contact;
            }
            is_open
        })
    }

    fn is_closed(&self) -> bool {
        matches!(*self.contact.borrow(), Contact::Closed)
    }

    /// Gives the lease back, and all that it keeps with it.
    pub(crate) async fn close(&self) {
        let found = self.now();
        self.contact.send_replace(Contact::Closed);
        let Ok((connection, session)) = found else { return };
        let clock = self.context.clock();
        let revoking = connection.ask(LeaseRevoke { id: session.lease });
        let _ = within(clock, clock.now().plus(TIME_TO_CLOSE), revoking).await;
        connection.end(Failure::Refused(closed()));
        session.end();
    }
}

fn closed() -> LockError {
    LockError::new(ErrorKind::Closed, Operation::Connect).remedy("make a new client")
}
