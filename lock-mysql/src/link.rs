//! The handle of a connection that locks live on, and what can be asked of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::Released;
use lock_core::{AttemptId, Clock, FencingToken, GroupId, LeaseState, LockError, Moment, Operation};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::mark::Mark;
use crate::run::Run;
use crate::session::Session;
use crate::statement::Holder;

/// A lock, as the server knows it.
pub(crate) type Name = Arc<str>;

/// Who wants which lock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) name: Name,
    pub(crate) id: AttemptId,
    /// What is written down of whoever gets it, where that is done.
    pub(crate) holder: Option<Arc<Holder>>,
}

/// What came of asking for a lock.
#[derive(Debug)]
pub(crate) enum Taken {
    Granted {
        token: Option<FencingToken>,
        anchor: Moment,
    },
    /// Somebody else holds it.
    Refused,
    /// Nothing is known, and nothing is held.
    Interrupted,
}

/// A wait that is under way at the server.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Nobody wants it any more.
    pub(crate) stop: Notify,
    is_answered: AtomicBool,
}

impl Waiting {
    /// The server has said what came of it. What there is to do then may take a while.
    pub(crate) fn is_over(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }
}

pub(crate) type Asked = oneshot::Receiver<Result<Taken, LockError>>;

pub(crate) type GivenBack = oneshot::Receiver<Result<Released, LockError>>;

/// What a connection is asked to do, one after the other.
pub(crate) enum Order {
    /// Take a lock if it is free.
    Take { claim: Claim, answer: oneshot::Sender<Result<Taken, LockError>> },
    /// Wait for a lock until it is granted, or nobody wants it any more.
    Wait {
        claim: Claim,
        statement: String,
        waiting: Arc<Waiting>,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    },
    /// Give a lock back, if this attempt has it.
    Release {
        name: Name,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    },
    /// See what is still held.
    Check { leases: Vec<(Name, AttemptId)>, answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>> },
    /// End, in good order.
    Close,
}

/// How far a connection has come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Alive,
    /// Nothing is heard of it any more here; the server may not know that yet.
    Ended,
    /// The server has freed whatever was held or waited for on it.
    Buried,
}

/// A connection, for those who do not own it. It never comes back: the next one is another link.
pub(crate) struct Link {
    pub(crate) group: GroupId,
    /// The number that the server gave it.
    pub(crate) connection: u64,
    pub(crate) mark: Mark,
    pub(crate) run: Run,
    orders: mpsc::UnboundedSender<Order>,
    checks: mpsc::UnboundedSender<Order>,
    /// How many orders have not been carried out yet.
    pending: AtomicUsize,
    /// How long the last statement took, in nanoseconds.
    last_took: AtomicU64,
    /// Since when a statement is under way that does not wait for a lock, in nanoseconds of the clock; zero when there is none.
    busy_since: AtomicU64,
    stage: watch::Sender<Stage>,
}

/// Where orders lie until they are carried out. What others hold depends on checks, which come first.
pub(crate) struct Tray {
    orders: mpsc::UnboundedReceiver<Order>,
    checks: mpsc::UnboundedReceiver<Order>,
}

impl Tray {
    /// The next order; `None` when nobody can give any.
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
            mark: session.mark,
            run: session.run.clone(),
            orders,
            checks,
            pending: AtomicUsize::new(0),
            last_took: AtomicU64::new(u64::try_from(session.round_trip.as_nanos()).unwrap_or(u64::MAX)),
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

    /// A statement is under way that was sent at this moment.
    pub(crate) fn is_asking(&self, since: Moment) {
        self.busy_since.store(since.as_nanoseconds(), Ordering::Relaxed);
    }

    /// It is under way no longer.
    pub(crate) fn has_asked(&self, now: Moment) {
        let since = self.busy_since.swap(0, Ordering::Relaxed);
        self.last_took.store(now.as_nanoseconds().saturating_sub(since), Ordering::Relaxed);
    }

    /// How long an order will lie in the queue before it is carried out, as far as can be told.
    pub(crate) fn queueing_time(&self) -> Duration {
        let pending = u64::try_from(self.pending.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
        Duration::from_nanos(self.last_took.load(Ordering::Relaxed).saturating_mul(pending))
    }

    /// Whether a statement has not been answered for `long` already.
    pub(crate) fn is_slow(&self, clock: &Clock, long: Duration) -> bool {
        let since = self.busy_since.load(Ordering::Relaxed);
        since != 0 && clock.now().since(Moment::from_nanoseconds(since)) > long
    }

    pub(crate) fn reaches(&self, stage: Stage) {
        self.stage.send_modify(|reached| *reached = stage.max(*reached));
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.stage.borrow() > Stage::Alive
    }

    pub(crate) fn is_buried(&self) -> bool {
        *self.stage.borrow() == Stage::Buried
    }

    /// Waits until the server has freed whatever was held or waited for on this connection.
    pub(crate) async fn buried(&self) {
        // The other end is here.
        let _ = self.stage.subscribe().wait_for(|stage| *stage == Stage::Buried).await;
    }

    pub(crate) fn take(&self, claim: Claim) -> Asked {
        let (answer, asked) = oneshot::channel();
        // When it has ended, the answer is dropped with the order, which says so.
        let _ = self.order(Order::Take { claim, answer });
        asked
    }

    pub(crate) fn wait(&self, claim: Claim, statement: String, waiting: Arc<Waiting>) -> Asked {
        let (answer, asked) = oneshot::channel();
        let _ = self.order(Order::Wait { claim, statement, waiting, answer });
        asked
    }

    /// Gives a lock back, if this attempt has it.
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
