//! Keeps a client connected: watches its one connection, and replaces it when it breaks.
//!
//! **A lost connection becomes a loss in two steps.** [`Connection::keep_contact`] notices it, and reports to the core that all groups
//! of holds are suspect. The core ends each of them at its deadline, unless a renewal on a new connection succeeds before.
//!
//! The client uses a new connection for locks only when all earlier ones are certain to do nothing more. Otherwise the server
//! could carry out a request that the client gave up on an earlier connection and has undone on the new one. The client asks the
//! server to close the earlier connections that belong to this run of the server (`CLIENT KILL ID`). It remembers the others,
//! because an address may lead to another server for a while, and then back.
//!
//! One connection for each client: requests and messages end together, so a client without a connection gets no grant, and the
//! server sees from it that a waiter is dead. The client crate's `ConnectionManager` replaces a connection without a word, and keeps
//! one that has gone silent. Silence breaks a connection, a late reply does not: replies come in order, so as long as any arrive, the
//! others are on their way. A client that asked for 8,000 locks at once mistook its own queue for a silent server.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lock_core::spi::{Mutex, random_bytes};
use lock_core::{BackendContext, Backoff, ErrorKind, LockError, Moment, Operation};
use lock_kit::{gone, unreachable};
use tokio::sync::{Notify, watch};

use super::earlier::Earlier;
use super::link::Link;
use super::sentinels::{Primary, Sentinels};
use super::server::Facts;
use crate::failure::explain;
use crate::groups::Groups;
use crate::messages::Router;
use crate::options::RedisOptions;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A half-open connection is noticed after this time, however long the lease is.
const LONGEST_SILENCE: Duration = Duration::from_secs(10);

/// Whether the client is connected.
#[derive(Clone)]
pub(crate) enum Contact {
    Good(Arc<Link>),
    Lost(LockError),
}

/// The connection of a client, whichever it is at the moment, and what depends on it.
pub(crate) struct Connection {
    pub(crate) context: BackendContext,
    pub(crate) options: RedisOptions,
    /// The time between two renewals or heartbeats.
    pub(crate) interval: Duration,
    pub(crate) router: Arc<Router>,
    pub(crate) groups: Arc<Groups>,
    /// The prefix of the client's channels; the number of the connection completes the name.
    pub(super) channels: String,
    pub(super) connections: AtomicU64,
    pub(super) request_timeout: Duration,
    /// Those that know the primary; without them the server is the one that the options name.
    pub(super) sentinels: Option<Arc<Sentinels>>,
    contact: watch::Sender<Contact>,
    /// Ends the connection for good.
    closing: Notify,
    /// Warnings that were logged: each is logged once.
    warned: Mutex<HashSet<String>>,
}

impl Connection {
    /// Connects, and from then on keeps the client connected.
    pub(crate) async fn start(
        context: BackendContext,
        options: RedisOptions,
    ) -> Result<Arc<Self>, LockError> {
        let interval = context.renewal_interval(options.server.lease)?;
        let channel = u128::from_ne_bytes(random_bytes(Operation::Connect)?);
        let this = Arc::new(Self {
            channels: format!("{}:c:{channel:032x}", options.server.prefix),
            connections: AtomicU64::new(0),
            // Shorter than the interval in which a renewal has to succeed, so that a silent server ends the connection before
            // the core gives up the renewal.
            request_timeout: options.server.timeout_within(interval),
            contact: watch::Sender::new(Contact::Lost(gone(Operation::Connect))),
            closing: Notify::new(),
            router: Arc::default(),
            groups: Arc::default(),
            warned: Mutex::default(),
            sentinels: Sentinels::of(&options),
            context,
            options,
            interval,
        });
        let link = this.open(&Earlier::default()).await?;
        this.contact.send_replace(Contact::Good(Arc::clone(&link)));
        this.context.spawn(Arc::clone(&this).stay_connected(link));
        Ok(this)
    }

    /// The connection, if there is one.
    pub(crate) fn link(&self, operation: Operation) -> Result<Arc<Link>, LockError> {
        match &*self.contact.borrow() {
            Contact::Good(link) if link.is_trusted_at(self.context.clock().now()) => Ok(Arc::clone(link)),
            Contact::Good(_) => Err(gone(operation)),
            Contact::Lost(error) => Err(error.clone().during(operation)),
        }
    }

    /// Subscribes to the loss and the return of contact.
    pub(crate) fn watch(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        self.let_go();
        self.closing.notify_one();
    }

    /// Lets the connection end with its last pending request.
    fn let_go(&self) {
        let closed = LockError::new(ErrorKind::Closed, Operation::Close);
        self.contact.send_replace(Contact::Lost(closed));
    }

    async fn stay_connected(self: Arc<Self>, link: Arc<Link>) {
        tokio::select! {
            () = self.closing.notified() => {}
            () = self.keep_contact(link) => {}
        }
        // There may be another connection since the last moment.
        self.let_go();
    }

    async fn keep_contact(&self, mut link: Arc<Link>) {
        let clock = self.context.clock();
        let mut backoff = new_backoff();
        let mut earlier = Earlier::default();
        loop {
            let since = clock.now();
            self.watch_over(&link).await;
            self.contact.send_replace(Contact::Lost(gone(Operation::Connect)));
            tracing::warn!(target: "distlock", server = %link.address, "contact lost");
            self.groups.all().for_each(|group| self.context.group_suspect(group));
            if clock.now().since(since) > LONGEST_PAUSE {
                backoff = new_backoff();
            } else {
                // The connection broke as soon as it was used, and the next may be no better.
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            if let Some(identity) = &link.identity {
                earlier.remember(identity.clone());
            }
            link = self.reconnect(&earlier, &mut backoff).await;
            // The server has closed them now. Connections of another run stay remembered until the address leads to it again.
            if let Some(identity) = &link.identity {
                earlier.forget_run(&identity.run);
            }
            self.contact.send_replace(Contact::Good(Arc::clone(&link)));
            tracing::info!(target: "distlock", server = %link.address, "contact restored");
            self.groups.all().for_each(|group| self.context.group_restored(group));
        }
    }

    /// Returns when the connection is broken. A half-open connection does not report that itself, so this sends a `PING`,
    /// unless the server answered something else meanwhile.
    async fn watch_over(&self, link: &Link) {
        let clock = self.context.clock();
        // Longer than between two renewals or heartbeats, unless those are rare.
        let longest_silence = self.interval.mul_f64(1.25).min(LONGEST_SILENCE);
        let ask = async {
            loop {
                let quiet_since = link.last_heard();
                clock.sleep_until(quiet_since.plus(longest_silence)).await;
                if link.last_heard() == quiet_since && !link.is_alive().await {
                    return;
                }
            }
        };
        tokio::select! {
            () = link.broken() => {}
            () = ask => {}
            () = self.follow(link) => {}
        }
    }

    /// Returns when the sentinels name another primary, or no majority of them has named this one for too long.
    async fn follow(&self, link: &Link) {
        if self.sentinels.is_none() {
            return std::future::pending().await;
        }
        let clock = self.context.clock();
        while link.is_trusted_at(clock.now()) {
            clock.sleep_until(clock.now().plus(self.interval / 2)).await;
            if let Err(error) = self.confirm(link).await {
                tracing::debug!(target: "distlock", server = %link.address, %error, "the primary is not confirmed");
            }
        }
    }

    /// How long a client relies on a server after the sentinels have named it: a process that stands still for an interval, or
    /// sentinels that do not answer for as long, cost it no connection.
    pub(super) fn reliance(&self) -> Duration {
        self.interval * 2
    }

    /// Relies on the server from now on, if a majority of the sentinels names it as the primary, and it has been that ever since
    /// the connection was opened.
    pub(super) async fn confirm(&self, link: &Link) -> Result<(), LockError> {
        let Some(sentinels) = &self.sentinels else { return Ok(()) };
        let asked = self.context.clock().now();
        let Primary { address, epoch } = sentinels.primary(&self.context, self.request_timeout).await?;
        let info = link.send::<String>(redis::cmd("INFO").arg("replication")).await;
        let info = info.map_err(|error| explain(Operation::Connect, error))?;
        let is_same = (&address, epoch) == (&link.address, link.epoch)
            && Facts::read(&info).replication() == link.replication.as_deref();
        link.trust_until(if is_same { asked.plus(self.reliance()) } else { Moment::from_nanoseconds(0) });
        if is_same {
            return Ok(());
        }
        let cause = format!("{} is not the primary that it was; the sentinels name {address}", link.address);
        Err(unreachable(Operation::Connect, cause))
    }

    async fn reconnect(&self, earlier: &Earlier, backoff: &mut Backoff) -> Arc<Link> {
        let mut told = String::new();
        loop {
            match self.open(earlier).await {
                Ok(link) => return link,
                Err(error) => {
                    let reason = error.to_string();
                    if reason != told {
                        tracing::warn!(target: "distlock", server = %self.options.server(), %error, "no contact yet");
                        told = reason;
                    }
                    // A request in the meantime fails with this reason, as an error that may be retried.
                    self.contact.send_replace(Contact::Lost(error.retryable()));
                }
            }
            let clock = self.context.clock();
            clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
        }
    }

    pub(super) fn warn(&self, text: String) {
        let mut warned = self.warned.lock();
        if !warned.contains(&text) {
            tracing::warn!(target: "distlock", server = %self.options.server(), "{text}");
            warned.insert(text);
        }
    }
}

fn new_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}
