//! The handle of a connection that can hold locks, and the commands to its task.

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

/// What a connection's task has to do, one command after the other.
pub(crate) enum Command {
    /// Take a lock if it is free.
    Take { claim: Claim, answer: oneshot::Sender<Result<Taken, LockError>> },
    /// Wait for a lock until it is granted, or until its callers have gone.
    Wait { claim: Claim, waiter: Waiter, promise: Promise },
    /// Release a lock, if this attempt has it.
    Release {
        key: Name,
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
pub(crate) enum LinkState {
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
    commands: mpsc::UnboundedSender<Command>,
    checks: mpsc::UnboundedSender<Command>,
    /// How many commands have not been carried out yet.
    pending: AtomicUsize,
    /// About the shortest time that a recent statement took, in nanoseconds.
    round_trip: AtomicU64,
    /// When the current statement was sent, unless it waits for a lock, in nanoseconds of the clock; zero if there is none.
    busy_since: AtomicU64,
    state: watch::Sender<LinkState>,
}

/// The commands that wait for execution. Checks come first, because the holds of others depend on them.
pub(crate) struct Mailbox {
    commands: mpsc::UnboundedReceiver<Command>,
    checks: mpsc::UnboundedReceiver<Command>,
}

impl Mailbox {
    /// The next command; `None` when nothing is left that can send one.
    ///
    /// # Cancel safety
    /// No command is lost.
    pub(crate) async fn next(&mut self) -> Option<Command> {
        tokio::select! {
            biased;
            Some(check) = self.checks.recv() => Some(check),
            command = self.commands.recv() => command,
        }
    }
}

/// The connection has ended.
#[derive(Debug)]
pub(crate) struct Gone;

impl Link {
    pub(crate) fn new(group: GroupId, session: &Session) -> (Arc<Self>, Mailbox) {
        let (commands, received) = mpsc::unbounded_channel();
        let (checks, to_check) = mpsc::unbounded_channel();
        let link = Self {
            group,
            connection: session.number,
            tag: session.tag,
            run: session.run.clone(),
            commands,
            checks,
            pending: AtomicUsize::new(0),
            round_trip: AtomicU64::new(u64::try_from(session.round_trip.as_nanos()).unwrap_or(u64::MAX)),
            busy_since: AtomicU64::new(0),
            state: watch::Sender::new(LinkState::Alive),
        };
        (Arc::new(link), Mailbox { commands: received, checks: to_check })
    }

    /// Puts a command at the end of its queue.
    pub(crate) fn send(&self, command: Command) -> Result<(), Gone> {
        let queue = if matches!(command, Command::Check { .. }) { &self.checks } else { &self.commands };
        self.pending.fetch_add(1, Ordering::Relaxed);
        queue.send(command).map_err(|_| Gone)
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

    pub(crate) fn reaches(&self, state: LinkState) {
        self.state.send_modify(|reached| *reached = state.max(*reached));
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.state.borrow() > LinkState::Alive
    }

    pub(crate) fn is_terminated(&self) -> bool {
        *self.state.borrow() == LinkState::Terminated
    }

    /// Waits until the server has freed everything that was held or waited for on this connection.
    pub(crate) async fn terminated(&self) {
        // `self` keeps the sender alive.
        let _ = self.state.subscribe().wait_for(|state| *state == LinkState::Terminated).await;
    }

    pub(crate) fn wait(&self, claim: Claim, waiter: Waiter, promise: Promise) {
        let _ = self.send(Command::Wait { claim, waiter, promise });
    }

    pub(crate) fn downgrade(&self, former: AttemptId, claim: Claim) -> Asked {
        let (answer, asked) = oneshot::channel();
        let _ = self.send(Command::Downgrade { former, claim, answer });
        asked
    }

    /// Releases a lock, if this attempt has it.
    pub(crate) fn release(&self, key: Name, id: AttemptId, operation: Operation) -> GivenBack {
        let (answer, asked) = oneshot::channel();
        let _ = self.send(Command::Release { key, id, operation, answer });
        asked
    }

    pub(crate) async fn check(
        &self,
        leases: Vec<(Name, AttemptId)>,
    ) -> Result<Result<Vec<LeaseState>, LockError>, Gone> {
        let (answer, asked) = oneshot::channel();
        self.send(Command::Check { leases, answer })?;
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
        // If the connection has ended, the answer's sender is dropped with the command, which reports this.
        let _ = self.send(Command::Take { claim, answer });
        asked
    }

    fn close(&self) {
        // One that has already ended needs nothing more.
        let _ = self.send(Command::Close);
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
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
