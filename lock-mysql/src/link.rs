//! The handle of a connection that can hold locks, and the orders to its task.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::Released;
use lock_core::{AttemptId, Clock, FencingToken, GroupId, LeaseState, LockError, Mode, Moment, Operation};
use lock_kit::PooledLink;
use tokio::sync::{mpsc, oneshot, watch};

use crate::batch::Promise;
use crate::parts::Parts;
use crate::pool::Occupant;
use crate::run::Run;
use crate::session::Session;
use crate::session_tag::SessionTag;
use crate::statement::{Holder, Waiter};

/// A lock's name at the server.
pub(crate) type Name = Arc<str>;

/// An attempt's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) parts: Arc<Parts>,
    pub(crate) id: AttemptId,
    pub(crate) mode: Mode,
    /// The record of the holder, if the table of tokens is used.
    pub(crate) holder: Option<Arc<Holder>>,
    /// How many tokens the grant reserves, its own included.
    pub(crate) sections: NonZeroU32,
}

/// The outcome of a request for a lock.
#[derive(Debug, Clone)]
pub(crate) enum Taken {
    Granted {
        token: Option<FencingToken>,
        anchor: Moment,
    },
    /// Another client holds it.
    Refused(Refusal),
    /// The semaphore has holders that use it with this many permits.
    OtherPermits(u32),
    /// Nothing is known, and nothing is held.
    Interrupted,
}

/// What a refusal says about the holder.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refusal {
    /// The connection that has the lock, if the statement asked for it.
    pub(crate) connection: Option<u64>,
    /// What the table says of the last holder.
    pub(crate) record: Option<String>,
}

pub(crate) type Asked = oneshot::Receiver<Result<Taken, LockError>>;

pub(crate) type GivenBack = oneshot::Receiver<Result<Released, LockError>>;

/// What a connection's task has to do, one order after the other.
pub(crate) enum Order {
    /// Take a lock if it is free.
    Take { claim: Claim, answer: oneshot::Sender<Result<Taken, LockError>> },
    /// Wait for a lock until it is granted, or until its callers have gone.
    Wait { claim: Claim, waiter: Waiter, promise: Promise },
    /// Release a lock, if this attempt has it.
    Release {
        name: Name,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    },
    /// Make an exclusive hold that of a reader.
    Downgrade { former: AttemptId, claim: Claim, answer: oneshot::Sender<Result<Taken, LockError>> },
    /// Check which locks are still held.
    Check { leases: Vec<(Name, AttemptId)>, answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>> },
    /// Close the connection properly.
    Close,
}

/// How far the end of a connection has progressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Alive,
    /// This side no longer receives anything from it; the server may not know that yet.
    Ended,
    /// The server has freed everything that was held or waited for on it.
    Terminated,
}

/// A connection, for tasks that do not own it. It never comes back: the next connection is another link.
pub(crate) struct Link {
    pub(crate) group: GroupId,
    /// The number that the server gave it.
    pub(crate) connection: u64,
    pub(crate) tag: SessionTag,
    pub(crate) run: Run,
    orders: mpsc::UnboundedSender<Order>,
    checks: mpsc::UnboundedSender<Order>,
    /// How many orders have not been carried out yet.
    pending: AtomicUsize,
    /// About the shortest time that a recent statement took, in nanoseconds.
    round_trip: AtomicU64,
    /// When the current statement was sent, unless it waits for a lock, in nanoseconds of the clock; zero if there is none.
    busy_since: AtomicU64,
    stage: watch::Sender<Stage>,
}

/// The orders that wait for execution. Checks come first, because the holds of others depend on them.
pub(crate) struct Tray {
    orders: mpsc::UnboundedReceiver<Order>,
    checks: mpsc::UnboundedReceiver<Order>,
}

impl Tray {
    /// The next order; `None` when nothing is left that can send one.
    ///
    /// # Cancel safety
    /// No order is lost.
    pub(crate) async fn next(&mut self) -> Option<Order> {
        tokio::select! {
            biased;
            Some(check) = self.checks.recv() => Some(check),
            order = self.orders.recv() => order,
        }
    }
}

/// The connection has ended.
#[derive(Debug)]
pub(crate) struct Gone;

impl Link {
    pub(crate) fn new(group: GroupId, session: &Session) -> (Arc<Self>, Tray) {
        let (orders, ordered) = mpsc::unbounded_channel();
        let (checks, to_check) = mpsc::unbounded_channel();
        let link = Self {
            group,
            connection: session.number,
            tag: session.tag,
            run: session.run.clone(),
            orders,
            checks,
            pending: AtomicUsize::new(0),
            round_trip: AtomicU64::new(u64::try_from(session.round_trip.as_nanos()).unwrap_or(u64::MAX)),
            busy_since: AtomicU64::new(0),
            stage: watch::Sender::new(Stage::Alive),
        };
        (Arc::new(link), Tray { orders: ordered, checks: to_check })
    }

    /// Puts an order at the end of its queue.
    pub(crate) fn order(&self, order: Order) -> Result<(), Gone> {
        let queue = if matches!(order, Order::Check { .. }) { &self.checks } else { &self.orders };
        self.pending.fetch_add(1, Ordering::Relaxed);
        queue.send(order).map_err(|_| Gone)
    }

    pub(crate) fn has_carried_out_one(&self) {
        self.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records that a statement was sent at this moment.
    pub(crate) fn is_asking(&self, since: Moment) {
        self.busy_since.store(since.as_nanoseconds(), Ordering::Relaxed);
    }

    /// Records that the statement is over.
    pub(crate) fn has_asked(&self, now: Moment) {
        let since = self.busy_since.swap(0, Ordering::Relaxed);
        let took = now.as_nanoseconds().saturating_sub(since);
        // Falls at once and rises slowly, as a server that has moved away shows in every statement, and a stall in one.
        let lately = self.round_trip.load(Ordering::Relaxed);
        self.round_trip.store(took.min(lately.saturating_add(lately / 8 + 1_000)), Ordering::Relaxed);
    }

    pub(crate) fn reaches(&self, stage: Stage) {
        self.stage.send_modify(|reached| *reached = stage.max(*reached));
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.stage.borrow() > Stage::Alive
    }

    pub(crate) fn is_terminated(&self) -> bool {
        *self.stage.borrow() == Stage::Terminated
    }

    /// Waits until the server has freed everything that was held or waited for on this connection.
    pub(crate) async fn terminated(&self) {
        // `self` keeps the sender alive.
        let _ = self.stage.subscribe().wait_for(|stage| *stage == Stage::Terminated).await;
    }

    pub(crate) fn wait(&self, claim: Claim, waiter: Waiter, promise: Promise) {
        let _ = self.order(Order::Wait { claim, waiter, promise });
    }

    pub(crate) fn downgrade(&self, former: AttemptId, claim: Claim) -> Asked {
        let (answer, asked) = oneshot::channel();
        let _ = self.order(Order::Downgrade { former, claim, answer });
        asked
    }

    /// Releases a lock, if this attempt has it.
    pub(crate) fn release(&self, name: Name, id: AttemptId, operation: Operation) -> GivenBack {
        let (answer, asked) = oneshot::channel();
        let _ = self.order(Order::Release { name, id, operation, answer });
        asked
    }

    pub(crate) async fn check(
        &self,
        leases: Vec<(Name, AttemptId)>,
    ) -> Result<Result<Vec<LeaseState>, LockError>, Gone> {
        let (answer, asked) = oneshot::channel();
        self.order(Order::Check { leases, answer })?;
        asked.await.map_err(|_| Gone)
    }
}

impl PooledLink for Link {
    type Key = Name;
    type Claim = Claim;
    type Occupant = Occupant;
    type Answer = Asked;

    fn group(&self) -> GroupId {
        self.group
    }

    fn key(claim: &Claim) -> Name {
        Arc::clone(&claim.parts.gate)
    }

    fn attempt(claim: &Claim) -> AttemptId {
        claim.id
    }

    fn take(&self, claim: Claim) -> Asked {
        let (answer, asked) = oneshot::channel();
        // If the connection has ended, the answer's sender is dropped with the order, which reports this.
        let _ = self.order(Order::Take { claim, answer });
        asked
    }

    fn close(&self) {
        // One that has already ended needs nothing more.
        let _ = self.order(Order::Close);
    }

    fn is_slow(&self, clock: &Clock, long: Duration) -> bool {
        let since = self.busy_since.load(Ordering::Relaxed);
        since != 0 && clock.now().since(Moment::from_nanoseconds(since)) > long
    }

    fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    fn queueing_time(&self, round_trip: Duration) -> Duration {
        let pending = u32::try_from(self.pending.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        round_trip.saturating_mul(pending)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("group", &self.group)
            .field("connection", &self.connection)
            .field("stage", &*self.stage.borrow())
            .finish_non_exhaustive()
    }
}
