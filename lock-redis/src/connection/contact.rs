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
use redis::{RedisResult, Value};
use tokio::sync::{Notify, watch};

use super::earlier::Earlier;
use super::link::Link;
use super::nodes::Nodes;
use super::server::Facts;
use super::witnesses::{Witnesses, cluster_nodes, common, itself};
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
    /// It connects, for the first time or to the next primary, and no attempt has failed yet.
    Opening,
    Good(Arc<Link>),
    Lost(LockError),
}

/// The connection of a client, whichever it is at the moment, and what depends on it. At a cluster there is one for each node in use.
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
    pub(super) witnesses: Option<Arc<Witnesses>>,
    /// The connection leads to the server that has this hash slot.
    pub(super) slot: u16,
    /// The client's earlier connections, to any server.
    pub(super) earlier: Arc<Mutex<Earlier>>,
    /// Held while it is found out whether the server is still that.
    confirming: tokio::sync::Mutex<()>,
    contact: watch::Sender<Contact>,
    /// Ends the connection for good.
    closing: Notify,
    /// Warnings that were logged: each is logged once.
    warned: Mutex<HashSet<String>>,
}

impl Connection {
    /// A connection, not yet opened, to the server that has this hash slot; the number tells it from the client's others.
    pub(super) fn new(nodes: &Nodes, slot: u16, number: u64) -> Result<Arc<Self>, LockError> {
        let (context, options) = (nodes.context.clone(), nodes.options.clone());
        let channel = u128::from_ne_bytes(random_bytes(Operation::Connect)?);
        Ok(Arc::new(Self {
            channels: format!("{}:c:{channel:032x}", options.server.prefix),
            connections: AtomicU64::new(0),
            // Shorter than the interval in which a renewal has to succeed, so that a silent server ends the connection before
            // the core gives up the renewal.
            request_timeout: nodes.request_timeout,
            contact: watch::Sender::new(Contact::Opening),
            closing: Notify::new(),
            router: Arc::clone(&nodes.router),
            groups: Groups::numbered(number),
            warned: Mutex::default(),
            witnesses: nodes.witnesses.clone(),
            slot,
            earlier: Arc::clone(&nodes.earlier),
            confirming: tokio::sync::Mutex::default(),
            context,
            options,
            interval: nodes.interval,
        }))
    }

    /// Connects, and from then on keeps the client connected.
    pub(super) async fn start(self: &Arc<Self>) -> Result<(), LockError> {
        let link = self.open().await?;
        self.begin(Some(link));
        Ok(())
    }

    /// Keeps the client connected from now on, beginning with this connection if there is one.
    pub(super) fn begin(self: &Arc<Self>, link: Option<Arc<Link>>) {
        if let Some(link) = &link {
            self.contact.send_replace(Contact::Good(Arc::clone(link)));
        }
        self.context.spawn(Arc::clone(self).stay_connected(link));
    }

    /// Waits until it is connected, or there is a reason why it is not.
    pub(super) async fn opened(&self) {
        let is_known = |contact: &Contact| match contact {
            Contact::Opening => false,
            Contact::Good(link) => !link.is_left(),
            Contact::Lost(_) => true,
        };
        if !is_known(&self.contact.borrow()) {
            // The channel lives as long as this.
            let _ = self.contact.subscribe().wait_for(is_known).await;
        }
    }

    /// The connection, if there is one.
    pub(crate) fn link(&self, operation: Operation) -> Result<Arc<Link>, LockError> {
        match &*self.contact.borrow() {
            Contact::Good(link) if link.is_trusted_at(self.context.clock().now()) => Ok(Arc::clone(link)),
            Contact::Good(_) | Contact::Opening => Err(gone(operation)),
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

    async fn stay_connected(self: Arc<Self>, link: Option<Arc<Link>>) {
        tokio::select! {
            () = self.closing.notified() => {}
            () = self.keep_contact(link) => {}
        }
        // There may be another connection since the last moment.
        self.let_go();
    }

    async fn keep_contact(&self, link: Option<Arc<Link>>) {
        let clock = self.context.clock();
        let mut backoff = new_backoff();
        let mut link = if let Some(link) = link {
            link
        } else {
            let link = self.reconnect(&mut backoff).await;
            self.contact.send_replace(Contact::Good(Arc::clone(&link)));
            link
        };
        loop {
            let since = clock.now();
            self.watch_over(&link).await;
            let lost = || Contact::Lost(gone(Operation::Connect));
            self.contact.send_replace(if link.is_left() { Contact::Opening } else { lost() });
            tracing::warn!(target: "distlock", server = %link.address, "contact lost");
            self.groups.all().for_each(|group| self.context.group_suspect(group));
            if clock.now().since(since) > LONGEST_PAUSE {
                backoff = new_backoff();
            } else {
                // The connection broke as soon as it was used, and the next may be no better.
                clock.sleep_until(clock.now().plus(backoff.next_pause())).await;
            }
            if let Some(identity) = &link.identity {
                self.earlier.lock().remember(identity.clone());
            }
            link = self.reconnect(&mut backoff).await;
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

    /// Returns when another server is the primary, or no majority of the witnesses has named this one for too long.
    async fn follow(&self, link: &Link) {
        if self.witnesses.is_none() {
            return std::future::pending().await;
        }
        let clock = self.context.clock();
        while link.is_trusted_at(clock.now()) {
            let since = clock.now().plus(self.interval / 4);
            clock.sleep_until(since.plus(self.interval / 4)).await;
            if let Err(error) = self.confirm(link, since).await {
                tracing::debug!(target: "distlock", server = %link.address, %error, "the primary is not confirmed");
            }
        }
    }

    /// How long a client relies on a server after the witnesses have named it: a process that stands still for an interval, or
    /// witnesses that do not answer for as long, cost it no connection.
    pub(super) fn reliance(&self) -> Duration {
        self.interval * 2
    }

    /// Relies on the server from now on, if a majority of the witnesses, asked after `since`, names it as the primary, and it has
    /// been that ever since the connection was opened. A node of a cluster has to say the same of itself.
    pub(super) async fn confirm(&self, link: &Link, since: Moment) -> Result<(), LockError> {
        let Some(witnesses) = &self.witnesses else { return Ok(()) };
        let _alone = self.confirming.lock().await;
        if link.is_confirmed_after(since, self.reliance()) {
            return Ok(());
        }
        let (asked, primary) =
            witnesses.primary(&self.context, self.request_timeout, self.slot, since).await?;
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("replication");
        if witnesses.are_nodes() {
            questions.add_command(cluster_nodes());
        }
        let failed = |error| explain(Operation::Connect, error);
        let answers: RedisResult<Vec<_>> =
            link.send_all(&mut questions).await.map_err(failed)?.into_iter().collect();
        let texts: Vec<String> = redis::from_redis_value(Value::Array(answers.map_err(failed)?))
            .map_err(|error| failed(error.into()))?;
        let its = match texts.get(1) {
            Some(nodes) => itself(nodes, &link.address).filter(|itself| itself.epoch == link.epoch),
            None => Some(primary.clone()),
        };
        let info = texts.first().map(|info| Facts::read(info));
        let is_same = (&primary.address, primary.epoch) == (&link.address, link.epoch)
            && info.as_ref().and_then(Facts::replication) == link.replication.as_deref();
        let Some(its) = its.filter(|_| is_same) else {
            link.leave();
            let (was, is) = (&link.address, &primary.address);
            let (before, now) = (link.epoch, primary.epoch);
            let cause = format!(
                "{was}, the primary in epoch {before}, is that no more: {is} is named, in epoch {now}"
            );
            return Err(unreachable(Operation::Connect, cause));
        };
        let slots = common(&primary.slots, &its.slots);
        if slots != link.slots() {
            self.greet(link, &slots).await?;
        }
        link.trust_until(asked.plus(self.reliance()));
        Ok(())
    }

    async fn reconnect(&self, backoff: &mut Backoff) -> Arc<Link> {
        let mut told = String::new();
        loop {
            match self.open().await {
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
