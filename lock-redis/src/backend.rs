//! The Redis implementation of the core's `Backend`: one short function for each operation.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, Backend, BackendContext, Breaking, Broken, Capabilities, CharacterSet, Downgraded,
    Failover, Fairness, Fencing, Grant, GroupId, HolderId, HolderInfo, InspectRequest, Inspection,
    LeaseState, Leasing, LockError, LockKind, LockStatus, Memo, Mode, Moment, NameRules, Operation,
    PermitLimits, PhysicalName, Reach, Recall, Released, Remembered, Reserving, Updated,
};
use redis::{ToRedisArgs, Value};

use crate::attempt::Attempt;
use crate::connection::{Link, Nodes, Reign};
use crate::failure::{explain, is_refused};
use crate::groups::Membership;
use crate::keys::{self, IdAtServer, Keys};
use crate::messages::Address;
use crate::options::{RedisOptions, SHORTEST_LEASE};
use crate::record::{self, handed_over, holder_text, loss};
use crate::renewals::renew;
use crate::scripts::{BREAK, CANCEL, DESCRIBE, INSPECT, RELEASE, RELEASE_SHARED, REMEMBER};

/// A brace would end the hash tag; a control character is unreadable.
pub(crate) const NAMES: NameRules = NameRules::new(
    CharacterSet::of(|character| !matches!(character, '{' | '}') && !character.is_control()),
    512,
);

/// What is left of a time where another machine's clock is fast.
const WITHOUT_DRIFT: f64 = 0.98;

/// How long the server remembers that a hold was broken.
const BROKEN_IS_REMEMBERED: Duration = Duration::from_secs(60 * 60);

/// The most tokens of one grant. They follow the server's clock, and so many last for a millisecond: those of a grant after the
/// fence was lost are above them.
const MOST_TOKENS: NonZeroU32 = NonZeroU32::new(1000).unwrap();

/// How many keys one request of a list looks at. Others at the server wait for it: of 500, 1% took more than 3.7 ms.
const SCANNED_AT_ONCE: u32 = 200;

/// The server refuses a time to live whose end is no 64-bit number of milliseconds.
const LONGEST_MEMORY: Duration = Duration::from_secs(1000 * 366 * 24 * 60 * 60);

pub(crate) struct RedisBackend {
    pub(crate) nodes: Nodes,
    /// How this client describes itself to the server.
    pub(crate) holder: Box<str>,
    capabilities: Capabilities,
}

/// What it takes to renew and release a hold.
pub(crate) struct Lease {
    pub(crate) keys: Keys,
    pub(crate) id: IdAtServer,
    pub(crate) length: Duration,
    /// How many of the tokens after the first one were used.
    pub(crate) passes: Arc<AtomicU32>,
    /// Where the client has acquired or renewed it last, and how long its record lasts there at least.
    pub(crate) record: Mutex<(Option<Arc<Reign>>, Moment)>,
    pub(crate) _address: Address,
    pub(crate) _membership: Membership,
}

impl Lease {
    /// Whether what is sent on this connection may keep the hold. A primary that is replaced may grant something for as long as any client
    /// relies on it, and one that restarts until it ends: what its own record of the hold did not outlast may be another client's by then.
    pub(crate) fn may_go_on(&self, link: &Link, sent: Moment, nodes: &Nodes) -> bool {
        let (reign, until) = &*self.record.lock();
        if *reign == link.reign {
            return true;
        }
        if *until < sent {
            return false;
        }
        if let (Some(was), Some(is)) = (reign, &link.reign)
            && was.is_of_the_same_server(is)
        {
            return true;
        }
        // The first client came to a new primary the longest lease and the longest reliance before `from`. Clients relied on the old
        // one for that reliance after it, and the hold's record kept the lock from them if it lasted as long.
        let from = link.from(self.keys.hash_slot).unwrap_or(Moment::FOREVER);
        until.plus(nodes.client.options.longest_lease()) >= from
    }

    /// Records that it was acquired or renewed by what was sent at this moment.
    pub(crate) fn goes_on(&self, link: &Link, sent: Moment) {
        *self.record.lock() = (link.reign.clone(), sent.plus(self.length.mul_f64(WITHOUT_DRIFT)));
    }
}

impl RedisBackend {
    pub(crate) async fn connect(context: BackendContext, options: RedisOptions) -> Result<Self, LockError> {
        let holder = holder_text(context.holder())?.into();
        let capabilities = capabilities(&options);
        Ok(Self { nodes: Nodes::start(context, options).await?, holder, capabilities })
    }

    pub(crate) fn keys(&self, name: &PhysicalName, kind: LockKind) -> Keys {
        Keys::of(&self.nodes.client.options, name, kind)
    }

    /// Asks the server for a slot, with the argument of the script. Returns for how much longer it is remembered, if it already was.
    async fn ask_for_slot(&self, memo: &Memo, wish: &str) -> Result<Option<Duration>, LockError> {
        let keys = self.keys(memo.physical(), LockKind::Lock);
        let command = keys.call_for_slot(&REMEMBER, memo.slot()).arg(wish).take();
        let left: u64 = self.nodes.call(&keys, &REMEMBER, command).await?;
        Ok((left > 0).then(|| Duration::from_millis(left)))
    }

    /// Continues to look for live waiters, if one call has not checked all of them.
    async fn hand_on(&self, keys: &Keys, id: impl ToRedisArgs, mut more: i64) -> Result<(), LockError> {
        while more == 1 {
            more = self.nodes.call(keys, &CANCEL, keys.call(&CANCEL).arg(&id).take()).await?;
        }
        Ok(())
    }

    /// Reads the answer of a script that hands the lock off, and continues that. The lock is already free: an error is only logged,
    /// because the waiters also find the free lock by themselves.
    pub(crate) async fn hand_over(
        &self,
        operation: Operation,
        keys: &Keys,
        id: impl ToRedisArgs,
        answer: Value,
    ) -> Result<i64, LockError> {
        let (result, more) = handed_over(operation, answer)?;
        if let Err(error) = self.hand_on(keys, id, more).await {
            tracing::debug!(target: "distlock", %error, "the lock is free and was not handed off");
        }
        Ok(result)
    }
}

pub(crate) fn capabilities(options: &RedisOptions) -> Capabilities {
    Capabilities::new("redis", Reach::Network, NAMES)
        .with_fencing(Fencing::Durable)
        .with_failover(if options.follows_primaries() { Failover::LosesHolds } else { Failover::MayOverlap })
        .with_fairness(Fairness::Fifo)
        .with_answers_within(options.server.longest_request())
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_listing()
        .with_remembering()
        .with_leasing(Leasing::PerHold { shortest: SHORTEST_LEASE, longest: options.longest_lease() })
        .with_leftovers_gone_after(options.server.lease)
        .with_reserving(Reserving::AtMost(MOST_TOKENS))
        .with_pipelining()
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

/// A length of time as the server takes it.
pub(crate) fn milliseconds(length: Duration) -> u64 {
    length.as_millis().try_into().unwrap_or(u64::MAX)
}

impl Backend for RedisBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        Attempt::new(self, request)?.make().await
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        let keys = self.keys(request.physical(), request.mode().kind());
        self.hand_on(&keys, IdAtServer::of(request), 1).await
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        renew(&self.nodes, leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let script = if lease.id.mode == Mode::Exclusive { &RELEASE } else { &RELEASE_SHARED };
        let mut command = lease.keys.call(script);
        command.arg(lease.id);
        if lease.id.sections > NonZeroU32::MIN {
            command.arg(lease.passes.load(Ordering::Acquire));
        }
        let answer = self.nodes.call(&lease.keys, script, command).await?;
        match self.hand_over(Operation::Release, &lease.keys, lease.id, answer).await? {
            1 => Ok(Released::Clean),
            code => Ok(Released::WasLost(loss(Operation::Release, code)?)),
        }
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        Attempt::new(self, request)?.downgrade(lease).await
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let keys = self.keys(request.physical(), request.kind());
        let answer: Vec<String> = self.nodes.call(&keys, &INSPECT, keys.call(&INSPECT)).await?;
        record::status(request.name(), &answer)
    }

    /// In many requests, none of which keeps the server from others for long.
    async fn list(&self) -> Result<Vec<InspectRequest>, LockError> {
        let prefix = &self.nodes.client.options.server.prefix;
        let (pattern, mut found) = (keys::pattern(prefix), BTreeSet::new());
        for slot in self.nodes.primaries().await? {
            let mut last: Option<(Arc<Link>, u64)> = None;
            loop {
                let (_, link) = self.nodes.link(slot, Operation::Inspect).await?;
                // A cursor means something only to the server that has told it.
                let goes_on = last.filter(|(before, _)| Arc::ptr_eq(before, &link));
                let from = goes_on.map_or(0, |(_, cursor)| cursor);
                let mut scan = redis::cmd("SCAN");
                scan.arg(from).arg("MATCH").arg(&pattern).arg("COUNT").arg(SCANNED_AT_ONCE);
                let (next, keys): (u64, Vec<Vec<u8>>) =
                    link.send(&scan).await.map_err(|error| explain(Operation::Inspect, error))?;
                let owner_of = |key| keys::owner_of(prefix, std::str::from_utf8(key).ok()?);
                found.extend(keys.iter().filter_map(|key| owner_of(key)));
                if next == 0 {
                    break;
                }
                last = Some((link, next));
            }
        }
        Ok(found.iter().filter_map(|(name, kind)| InspectRequest::found(name, *kind).ok()).collect())
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let keys = self.keys(request.physical(), request.kind());
        let mut command = keys.call(&BREAK);
        command.arg(holder.as_str()).arg(BROKEN_IS_REMEMBERED.as_millis().to_string());
        let answer = self.nodes.call(&keys, &BREAK, command).await?;
        match self.hand_over(Operation::Break, &keys, holder.as_str(), answer).await? {
            1 => Ok(Broken::taken_away()),
            _ => Ok(Broken::not_held()),
        }
    }

    async fn update_holder(&self, lease: &Lease, holder: &HolderInfo) -> Result<Updated, LockError> {
        let mut command = lease.keys.call(&DESCRIBE);
        command.arg(lease.id).arg(holder_text(holder)?);
        match self.nodes.call::<i64>(&lease.keys, &DESCRIBE, command).await? {
            1 => Ok(Updated::Done),
            code => Ok(Updated::Lost(loss(Operation::Describe, code)?)),
        }
    }

    async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let keep = keep.min(LONGEST_MEMORY).as_nanos().div_ceil(1_000_000).max(1);
        let already = self.ask_for_slot(memo, &keep.to_string()).await?;
        Ok(already.map_or(Remembered::Now, |remaining| Remembered::Already { remaining }))
    }

    async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, LockError> {
        self.ask_for_slot(memo, if recall == Recall::Forget { "forget" } else { "look" }).await
    }

    async fn ping(&self) -> Result<(), LockError> {
        for slot in self.nodes.in_use() {
            let (_, link) = self.nodes.link(slot, Operation::Ping).await?;
            let answer = link.send::<Value>(&redis::cmd("PING")).await;
            // A user may lack the permission for this alone, and the refusal is a sign of life as well.
            if let Err(error) = answer
                && !is_refused(&error)
            {
                return Err(explain(Operation::Ping, error));
            }
        }
        Ok(())
    }

    async fn close(&self) {
        self.nodes.close();
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = &self.nodes.client.options.server;
        formatter.debug_struct("RedisBackend").field("server", server).finish_non_exhaustive()
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Lease").field("id", &self.id).finish_non_exhaustive()
    }
}
