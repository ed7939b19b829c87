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

use lock_core::spi::Mutex;
use lock_core::{Backoff, ErrorKind, LockError, Moment, Operation};
use lock_kit::{gone, unreachable};
use redis::RedisResult;
use tokio::sync::{Notify, watch};

use super::link::Link;
use super::nodes::Client;
use super::server::Facts;
use super::witnesses::{cluster_nodes, common, itself};
use crate::failure::{elsewhere, explain};
use crate::groups::Groups;

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
    pub(super) client: Arc<Client>,
    pub(super) groups: Arc<Groups>,
    /// The connection leads to the server that has this hash slot.
    pub(super) slot: u16,
    /// Held while it is found out whether the server is still that.
    confirming: tokio::sync::Mutex<()>,
    pub(crate) contact: watch::Sender<Contact>,
    /// The most replicas that were in sync.
    pub(super) replicas: Arc<AtomicU64>,
    /// Ends the connection for good.
    closing: Notify,
    /// Warnings that were logged: each is logged once.
    warned: Mutex<HashSet<String>>,
}

impl Connection {
    /// A connection, not yet opened, to the server that has this hash slot; the number tells it from the client's others.
    pub(super) fn new(client: &Arc<Client>, slot: u16, number: u64) -> Arc<Self> {
        Arc::new(Self {
            client: Arc::clone(client),
            groups: Groups::numbered(number),
            slot,
            confirming: tokio::sync::Mutex::default(),
            contact: watch::Sender::new(Contact::Opening),
            replicas: Arc::default(),
            closing: Notify::new(),
            warned: Mutex::default(),
        })
    }

    /// Keeps the client connected from now on, beginning with this connection if there is one.
    pub(super) fn begin(self: &Arc<Self>, link: Option<Arc<Link>>) {
        if let Some(link) = &link {
            self.contact.send_replace(Contact::Good(Arc::clone(link)));
        }
        self.client.context.spawn(Arc::clone(self).stay_connected(link));
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

    /// The connection, if there is one, and it leads to this hash slot.
    pub(crate) fn link(&self, slot: u16, operation: Operation) -> Result<Arc<Link>, LockError> {
        let link = self.any_link(operation)?;
        if link.from(slot).is_some() { Ok(link) } else { Err(elsewhere(operation)) }
    }

    pub(super) fn any_link(&self, operation: Operation) -> Result<Arc<Link>, LockError> {
        match &*self.contact.borrow() {
            Contact::Good(link) if link.is_trusted_at(self.client.now()) => Ok(Arc::clone(link)),
            Contact::Good(_) | Contact::Opening => Err(gone(operation)),
            Contact::Lost(error) => Err(error.clone().during(operation)),
        }
    }

    /// Finds out now whether it leads to the primary, and what that has.
    pub(super) async fn look_again(&self) {
        if let Ok(link) = self.any_link(Operation::Ping)
            && let Err(error) = self.confirm(&link, self.client.now()).await
        {
            tracing::debug!(target: "distlock", %error, "the node is not confirmed");
        }
    }

    /// Ends the connection for good.
    pub(crate) fn close(&self) {
        self.let_go();
        self.closing.notify_one();
    }

    /// Lets the connection end with its last pending request.
    fn let_go(&self) {
        self.contact.send_replace(Contact::Lost(LockError::new(ErrorKind::Closed, Operation::Close)));
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
        let (client, mut backoff) = (&self.client, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        let mut link = match link {
            Some(link) => link,
            None => self.reconnect(&mut backoff).await,
        };
        loop {
            let since = client.now();
            self.watch_over(&link).await;
            let lost = || Contact::Lost(gone(Operation::Connect));
            self.contact.send_replace(if link.is_left() { Contact::Opening } else { lost() });
            tracing::warn!(target: "distlock", server = %link.address, "contact lost");
            self.groups.all().into_iter().for_each(|group| client.context.group_suspect(group));
            if client.now().since(since) > LONGEST_PAUSE {
                backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            } else {
                // The connection broke as soon as it was used, and the next may be no better.
                client.sleep(backoff.next_pause()).await;
            }
            if let Some(identity) = &link.identity {
                client.earlier.lock().remember(identity.clone());
            }
            link = self.reconnect(&mut backoff).await;
            tracing::info!(target: "distlock", server = %link.address, "contact restored");
            self.groups.all().into_iter().for_each(|group| client.context.group_restored(group));
        }
    }

    /// Returns when the connection is broken. A half-open connection does not report that itself, so this sends a `PING`,
    /// unless the server answered something else meanwhile.
    async fn watch_over(&self, link: &Link) {
        let clock = self.client.context.clock();
        // Longer than between two renewals or heartbeats, unless those are rare.
        let longest_silence = self.client.interval.mul_f64(1.25).min(LONGEST_SILENCE);
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
        if self.client.witnesses.is_none() {
            return std::future::pending().await;
        }
        let (clock, pause) = (self.client.context.clock(), self.client.interval / 4);
        while link.is_trusted_at(clock.now()) {
            let since = clock.now().plus(pause);
            clock.sleep_until(since.plus(pause)).await;
            if let Err(error) = self.confirm(link, since).await {
                tracing::debug!(target: "distlock", server = %link.address, %error, "the primary is not confirmed");
            }
        }
    }

    /// How long a client relies on a server after the witnesses have named it: a process that stands still for an interval, or
    /// witnesses that do not answer for as long, cost it no connection.
    pub(super) fn reliance(&self) -> Duration {
        self.client.interval * 2
    }

    /// Relies on the server from now on, if a majority of the witnesses, asked after `since`, names it as the primary, and it has
    /// been that ever since the connection was opened. A node of a cluster has to say the same of itself.
    pub(super) async fn confirm(&self, link: &Link, since: Moment) -> Result<(), LockError> {
        let Some(witnesses) = &self.client.witnesses else { return Ok(()) };
        let reign = link.reign.as_ref().ok_or_else(|| gone(Operation::Connect))?;
        let _alone = self.confirming.lock().await;
        if link.is_confirmed_after(since, self.reliance()) {
            return Ok(());
        }
        let (asked, primary) = witnesses.primary(self.client.request_timeout, self.slot, since).await?;
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("replication");
        if witnesses.are_nodes() {
            questions.add_command(cluster_nodes());
        }
        let failed = |error| explain(Operation::Connect, error);
        let answers = link.send_all(&mut questions).await.map_err(failed)?.into_iter();
        let texts: RedisResult<Vec<String>> =
            answers.map(|answer| Ok(redis::from_redis_value(answer?)?)).collect();
        let mut texts = texts.map_err(failed)?.into_iter();
        let info = Facts(texts.next().unwrap_or_default());
        let its = match texts.next() {
            Some(nodes) => itself(&nodes, &link.address).filter(|itself| itself.epoch == reign.epoch),
            None => Some(primary.clone()),
        };
        let is_same = (&primary.address, primary.epoch) == (&reign.address, reign.epoch)
            && info.replication() == Some(&reign.replication);
        let Some(its) = its.filter(|_| is_same) else {
            link.leave();
            let cause = format!(
                "{}, the primary in epoch {}, is that no more: {} is named, in epoch {}",
                reign.address, reign.epoch, primary.address, primary.epoch
            );
            return Err(unreachable(Operation::Connect, cause));
        };
        let slots = common(&primary.slots, &its.slots);
        if slots != link.slots() {
            self.greet(link, reign, &slots).await?;
        }
        link.trust_until(asked.plus(self.reliance()));
        Ok(())
    }

    async fn reconnect(&self, backoff: &mut Backoff) -> Arc<Link> {
        let mut told = String::new();
        loop {
            match self.open().await {
                Ok(link) => {
                    self.contact.send_replace(Contact::Good(Arc::clone(&link)));
                    return link;
                }
                Err(error) => {
                    let reason = error.to_string();
                    if reason != told {
                        tracing::warn!(target: "distlock", server = %self.client.options.server(), %error, "no contact yet");
                        told = reason;
                    }
                    // A request in the meantime fails with this reason, as an error that may be retried.
                    self.contact.send_replace(Contact::Lost(error.retryable()));
                }
            }
            self.client.sleep(backoff.next_pause()).await;
        }
    }

    pub(super) fn warn(&self, text: &str) {
        if self.warned.lock().insert(text.to_owned()) {
            tracing::warn!(target: "distlock", server = %self.client.options.server(), "{text}");
        }
    }
}
