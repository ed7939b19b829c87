//! The connections of a client: one; at a cluster one for each node in use, which is opened when a lock there is used for the first
//! time.
//!
//! A connection leads to the server that has one certain hash slot, and follows it. Which connection is used for another slot is a
//! hint, from what the witnesses said last: the connection itself says what is certain (`Link::grants_at`).

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{BackendContext, LockError, Moment, Operation};
use redis::{Cmd, FromRedisValue};

use super::contact::Connection;
use super::earlier::Earlier;
use super::link::Link;
use super::witnesses::{Witnesses, gap, without_owner};
use crate::failure::is_elsewhere;
use crate::keys::{Keys, hash_slot};
use crate::messages::Router;
use crate::options::RedisOptions;
use crate::scripts::Script;

/// How long an attempt to connect takes if the server accepts the connection and then says nothing.
const SHORTEST_TIME_TO_CONNECT: Duration = Duration::from_secs(2);

/// Between two attempts to send a request to the node that has its hash slot.
const PAUSE: Duration = Duration::from_millis(50);

/// What all connections of a client share.
pub(crate) struct Client {
    pub(crate) context: BackendContext,
    pub(crate) options: RedisOptions,
    /// The time between two renewals or heartbeats.
    pub(crate) interval: Duration,
    pub(crate) router: Arc<Router>,
    /// Shorter than the interval in which a renewal has to succeed, so that a silent server ends the connection before the core gives
    /// up the renewal.
    pub(crate) request_timeout: Duration,
    /// Those that know the primary; without them the server is the one that the options name.
    pub(super) witnesses: Option<Arc<Witnesses>>,
    /// The client's earlier connections, to any server.
    pub(super) earlier: Mutex<Earlier>,
}

impl Client {
    pub(crate) fn now(&self) -> Moment {
        self.context.clock().now()
    }

    /// How long an attempt to connect may take at each step.
    pub(super) fn time_to_connect(&self) -> Duration {
        self.request_timeout.max(SHORTEST_TIME_TO_CONNECT)
    }

    pub(super) async fn sleep(&self, pause: Duration) {
        self.context.clock().sleep_until(self.now().plus(pause)).await;
    }
}

/// All connections of a client.
pub(crate) struct Nodes {
    pub(crate) client: Arc<Client>,
    all: Mutex<Vec<Arc<Connection>>>,
}

impl Nodes {
    /// Connects to the only server; at a cluster to one of its nodes, so that what is wrong is said at once.
    pub(crate) async fn start(context: BackendContext, options: RedisOptions) -> Result<Self, LockError> {
        let interval = context.renewal_interval(options.server.lease)?;
        let slot = if options.is_cluster() { hash_slot(&options.server.prefix) } else { 0 };
        let client = Arc::new(Client {
            interval,
            request_timeout: options.server.timeout_within(interval),
            router: Arc::default(),
            witnesses: Witnesses::of(&options, &context),
            earlier: Mutex::default(),
            context,
            options,
        });
        let first = Connection::new(&client, slot, 0);
        first.begin(Some(first.open().await?));
        Ok(Self { client, all: Mutex::new(vec![first]) })
    }

    /// The connection for this hash slot. If there is none, it begins.
    pub(crate) fn of(&self, slot: u16) -> Result<Arc<Connection>, LockError> {
        let said = self.client.witnesses.as_ref().map(|witnesses| witnesses.said());
        let owner = said.iter().flat_map(|said| said.iter()).find(|primary| primary.has(slot));
        let mut all = self.all.lock();
        let leads_there = |connection: &&Arc<Connection>| {
            connection.slot == slot
                || owner.is_some_and(|owner| owner.has(connection.slot))
                || connection.any_link(Operation::Ping).is_ok_and(|link| link.from(slot).is_some())
        };
        if let Some(found) = all.iter().find(leads_there) {
            return Ok(Arc::clone(found));
        }
        if owner.is_none() {
            return Err(without_owner(slot));
        }
        let new = Connection::new(&self.client, slot, all.len() as u64);
        new.begin(None);
        all.push(Arc::clone(&new));
        Ok(new)
    }

    /// The connection to the node that has this hash slot, once one that has just begun is open.
    pub(crate) async fn link(
        &self,
        slot: u16,
        operation: Operation,
    ) -> Result<(Arc<Connection>, Arc<Link>), LockError> {
        let connection = self.of(slot).map_err(|error| error.during(operation))?;
        let (clock, limit) = (self.client.context.clock(), self.client.time_to_connect());
        let _ = within(clock, clock.now().plus(limit), connection.opened()).await;
        let link = match connection.link(slot, operation) {
            // It may have come to the node since then.
            Err(error) if is_elsewhere(&error) => {
                connection.look_again().await;
                connection.link(slot, operation).map_err(|_| error)?
            }
            link => link?,
        };
        Ok((connection, link))
    }

    /// Sends something to the node that has this hash slot, also again, while the slot is on its way. The request timeout limits that.
    pub(crate) async fn send<T, F: Future<Output = Result<T, LockError>>>(
        &self,
        slot: u16,
        operation: Operation,
        something: impl Fn(Arc<Connection>, Arc<Link>) -> F,
    ) -> Result<T, LockError> {
        let since = self.client.now();
        loop {
            let answer = match self.link(slot, operation).await {
                Ok((connection, link)) => something(connection, link).await,
                Err(error) => Err(error),
            };
            match answer {
                Err(error) if self.again(slot, &error, since).await => {}
                answer => return answer,
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
        let (command, operation) = (&Arc::new(command), script.operation());
        let call = |_, link: Arc<Link>| async move {
            let turn = link.turn(operation).await?;
            link.call(turn, script, command).await
        };
        self.send(keys.hash_slot, operation, call).await
    }

    /// Whether to send a request again that failed with this error: if it was certainly not executed, because its hash slot is
    /// elsewhere, or on its way. Finds out where it is now.
    async fn again(&self, slot: u16, error: &LockError, since: Moment) -> bool {
        if !is_elsewhere(error) || self.client.now() > since.plus(self.client.request_timeout) {
            return false;
        }
        self.client.sleep(PAUSE).await;
        match self.of(slot) {
            // The connection asks again by itself, but with a long lease not soon.
            Ok(asked) if asked.link(slot, error.operation()).is_ok() => asked.look_again().await,
            _ => self.look_again().await,
        }
        true
    }

    /// Asks the nodes of the cluster which of them has what.
    pub(crate) async fn look_again(&self) {
        if let Err(error) = self.primaries().await {
            tracing::debug!(target: "distlock", %error, "the nodes of the cluster do not agree");
        }
    }

    /// A hash slot of each primary of the cluster; of the only server, if there is no cluster. During a failover there is a gap.
    pub(crate) async fn primaries(&self) -> Result<Vec<u16>, LockError> {
        let client = &self.client;
        let Some(witnesses) = client.witnesses.as_ref().filter(|all| all.are_nodes()) else {
            return Ok(vec![0]);
        };
        let (_, all) = witnesses.primaries(client.request_timeout, client.now()).await?;
        gap(&all).map_or(Ok(()), |slot| Err(without_owner(slot)))?;
        Ok(all.iter().filter_map(|primary| Some(*primary.slots.first()?.start())).collect())
    }

    /// A hash slot for each connection.
    pub(crate) fn in_use(&self) -> Vec<u16> {
        self.all.lock().iter().map(|connection| connection.slot).collect()
    }

    /// Ends all connections for good.
    pub(crate) fn close(&self) {
        self.all.lock().iter().for_each(|connection| connection.close());
    }
}
