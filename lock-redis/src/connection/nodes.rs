//! The connections of a client: one; at a cluster one for each node in use, which is opened when a lock there is used for the first
//! time.
//!
//! A connection leads to the server that has one certain hash slot, and follows it. Which connection is used for another slot is a
//! hint, from what the witnesses said last: the connection itself says what is certain (`Link::grants_at`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{BackendContext, LockError, Moment, Operation};
use redis::{Cmd, FromRedisValue};

use super::contact::Connection;
use super::earlier::Earlier;
use super::link::Link;
use super::witnesses::{Witnesses, without_owner};
use crate::failure::{elsewhere, is_elsewhere};
use crate::keys::{Keys, hash_slot};
use crate::messages::Router;
use crate::options::RedisOptions;
use crate::scripts::Script;

/// Between two attempts to send a request to the node that has its hash slot.
const PAUSE: Duration = Duration::from_millis(50);

/// All connections of a client, and what they share.
pub(crate) struct Nodes {
    pub(crate) context: BackendContext,
    pub(crate) options: RedisOptions,
    /// The time between two renewals or heartbeats.
    pub(crate) interval: Duration,
    pub(crate) router: Arc<Router>,
    pub(super) request_timeout: Duration,
    pub(super) witnesses: Option<Arc<Witnesses>>,
    pub(super) earlier: Arc<Mutex<Earlier>>,
    all: Mutex<Vec<Arc<Connection>>>,
}

impl Nodes {
    /// Connects to the only server; at a cluster to one of its nodes, so that what is wrong is said at once.
    pub(crate) async fn start(context: BackendContext, options: RedisOptions) -> Result<Self, LockError> {
        let interval = context.renewal_interval(options.server.lease)?;
        let this = Self {
            interval,
            request_timeout: options.server.timeout_within(interval),
            router: Arc::default(),
            witnesses: Witnesses::of(&options),
            earlier: Arc::default(),
            all: Mutex::default(),
            context,
            options,
        };
        let slot = if this.options.is_cluster() { hash_slot(&this.options.server.prefix) } else { 0 };
        let first = Connection::new(&this, slot, 0)?;
        first.start().await?;
        this.all.lock().push(first);
        Ok(this)
    }

    /// The connection for this hash slot. If there is none, it begins.
    pub(crate) fn of(&self, slot: u16) -> Result<Arc<Connection>, LockError> {
        let said = self.witnesses.as_ref().map(|witnesses| witnesses.said());
        let owner = said.iter().flat_map(|said| said.iter()).find(|primary| primary.has(slot));
        let mut all = self.all.lock();
        let leads_there = |connection: &&Arc<Connection>| {
            connection.slot == slot
                || owner.is_some_and(|owner| owner.has(connection.slot))
                || connection.link(Operation::Ping).is_ok_and(|link| link.from(slot).is_some())
        };
        if let Some(found) = all.iter().find(leads_there) {
            return Ok(Arc::clone(found));
        }
        if owner.is_none() {
            return Err(without_owner(slot));
        }
        let new = Connection::new(self, slot, all.len() as u64)?;
        new.begin(None);
        all.push(Arc::clone(&new));
        Ok(new)
    }

    /// The connection to the node that has this hash slot, if there is one now.
    pub(crate) fn link_now(&self, slot: u16, operation: Operation) -> Result<Arc<Link>, LockError> {
        let link = self.of(slot)?.link(operation)?;
        if link.from(slot).is_some() { Ok(link) } else { Err(elsewhere(operation)) }
    }

    /// The same, once a connection that has just begun is open.
    pub(crate) async fn link(&self, slot: u16, operation: Operation) -> Result<Arc<Link>, LockError> {
        let connection = self.of(slot).map_err(|error| error.during(operation))?;
        connection.opened().await;
        let link = connection.link(operation)?;
        if link.from(slot).is_none() {
            // It may have come to the node since then.
            self.confirm(&connection, &link).await;
        }
        if link.from(slot).is_some() { Ok(link) } else { Err(elsewhere(operation)) }
    }

    /// The same, even if its hash slot is on its way. No search that began at `since` takes long.
    pub(crate) async fn find(
        &self,
        slot: u16,
        operation: Operation,
        since: Moment,
    ) -> Result<Arc<Link>, LockError> {
        loop {
            match self.link(slot, operation).await {
                Err(error) if self.again(slot, &error, since).await => {}
                found => return found,
            }
        }
    }

    /// Calls the script for a lock, at the node that has it.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        keys: &Keys,
        script: &'static Script,
        command: Cmd,
    ) -> Result<T, LockError> {
        let (since, command) = (self.now(), Arc::new(command));
        loop {
            let link = self.find(keys.hash_slot, script.operation(), since).await?;
            match link.call(script, &command).await {
                Err(error) if self.again(keys.hash_slot, &error, since).await => {}
                answer => return answer,
            }
        }
    }

    /// Whether to send a request again that failed with this error: if it was certainly not executed, because its hash slot is
    /// elsewhere, or on its way. Finds out where it is now.
    pub(crate) async fn again(&self, slot: u16, error: &LockError, since: Moment) -> bool {
        if !is_elsewhere(error) || self.now() > since.plus(self.request_timeout) {
            return false;
        }
        let clock = self.context.clock();
        clock.sleep_until(clock.now().plus(PAUSE)).await;
        let asked = self.of(slot).ok();
        let link = asked.as_ref().and_then(|asked| asked.link(error.operation()).ok());
        match (asked, link.filter(|link| link.from(slot).is_some())) {
            // The connection asks again by itself, but with a long lease not soon.
            (Some(asked), Some(link)) => self.confirm(&asked, &link).await,
            _ => self.look_again().await,
        }
        true
    }

    /// Asks the nodes whether the one that a connection leads to is the primary, and what it has.
    async fn confirm(&self, connection: &Connection, link: &Link) {
        if let Err(error) = connection.confirm(link, self.now()).await {
            tracing::debug!(target: "distlock", %error, "the node is not confirmed");
        }
    }

    /// Asks the nodes of the cluster which of them has what.
    pub(crate) async fn look_again(&self) {
        if let Err(error) = self.primaries().await {
            tracing::debug!(target: "distlock", %error, "the nodes of the cluster do not agree");
        }
    }

    /// A hash slot of each primary of the cluster; of the only server, if there is no cluster.
    pub(crate) async fn primaries(&self) -> Result<Vec<u16>, LockError> {
        let Some(witnesses) = self.witnesses.as_ref().filter(|all| all.are_nodes()) else {
            return Ok(vec![0]);
        };
        let (_, all) = witnesses.primaries(&self.context, self.request_timeout, self.now()).await?;
        Ok(all
            .iter()
            .filter_map(|primary| primary.slots.first())
            .map(RangeInclusive::start)
            .copied()
            .collect())
    }

    /// A hash slot for each connection.
    pub(crate) fn in_use(&self) -> Vec<u16> {
        self.all.lock().iter().map(|connection| connection.slot).collect()
    }

    /// Ends all connections for good.
    pub(crate) fn close(&self) {
        self.all.lock().iter().for_each(|connection| connection.close());
    }

    fn now(&self) -> Moment {
        self.context.clock().now()
    }
}
