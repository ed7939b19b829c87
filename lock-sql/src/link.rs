//! The handle of a connection that can hold locks, and the commands to its task.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lock_core::{AttemptId, Clock, GroupId, LeaseState, LockError, Moment, Operation, Participant, Released};
use lock_kit::PooledLink;
use tokio::sync::{mpsc, oneshot, watch};

use crate::claim::Claim;
use crate::dialect::Dialect;
use crate::pool::Occupant;
use crate::session::Session;
use crate::waiting::Waiting;

/// The outcome of a request for a lock.
#[derive(Debug)]
pub(crate) enum Taken {
    /// The session holds it.
    Granted {
        /// The token, if tokens are minted.
        token: Option<u64>,
        /// The moment from which the lease counts.
        anchor: Moment,
    },
    /// It is not free.
    Refused {
        /// Who has it, if the answer says so.
        holder: Option<Box<Participant>>,
        /// Whether others pass the gate of the lock.
        is_passing: bool,
    },
    /// Nothing is known, and nothing is held.
    Interrupted,
}

/// What becomes the outcome; an error if the connection has ended.
pub(crate) type Asked = oneshot::Receiver<Result<Taken, LockError>>;

/// Where the outcome goes.
pub(crate) type Answers = oneshot::Sender<Result<Taken, LockError>>;

/// What becomes the outcome of a release; an error if the connection has ended.
pub(crate) type GivenBack = oneshot::Receiver<Result<Released, LockError>>;

/// What a connection's task has to do, one command after the other.
pub(crate) enum Command<D: Dialect> {
    /// Take a lock if it is free, or wait for it until it is granted, or until its caller has gone.
    Acquire {
        /// The lock.
        claim: Claim<D::Key>,
        /// The wait, if it is one.
        waiting: Option<Arc<Waiting>>,
        /// Where the outcome goes.
        answer: Answers,
    },
    /// Release a lock, if this attempt has it.
    Release {
        /// The lock.
        key: D::Key,
        /// The attempt.
        id: AttemptId,
        /// What the release is for.
        operation: Operation,
        /// Where the outcome goes.
        answer: oneshot::Sender<Result<Released, LockError>>,
    },
    /// Make an exclusive hold that of a reader. The outcome is [`Taken::Interrupted`] if the session does not have it.
    Downgrade {
        /// The attempt that has it.
        former: AttemptId,
        /// The reader's request.
        claim: Claim<D::Key>,
        /// Where the outcome goes.
        answer: Answers,
    },
    /// Check which locks are still held.
    Check {
        /// The locks, and the attempts that have them.
        leases: Vec<(D::Key, AttemptId)>,
        /// Gets the state of each.
        answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>>,
    },
    /// Close the connection properly.
    Close,
}

/// How far the end of a connection has progressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkState {
    /// It has not begun.
    Alive,
    /// This side no longer receives anything from it; the server may not know that yet.
    Ended,
    /// The server has freed everything that was held or waited for on it.
    Terminated,
}

/// A connection, for tasks that do not own it. It never comes back: the next connection is another link.
pub(crate) struct Link<D: Dialect> {
    /// The number of the connection.
    pub(crate) group: GroupId,
    /// The session at the server.
    pub(crate) session: D::Id,
    commands: mpsc::UnboundedSender<Command<D>>,
    checks: mpsc::UnboundedSender<Command<D>>,
    /// How many commands have not been carried out yet.
    pending: AtomicUsize,
    /// About the shortest time that a recent statement took, in nanoseconds.
    round_trip: AtomicU64,
    /// When the current statement was sent, unless it waits for a lock, in nanoseconds of the clock; zero if there is none.
    busy_since: AtomicU64,
    /// Whether a cancellation may reach the server late, and hit any statement.
    is_doubtful: AtomicBool,
    state: watch::Sender<LinkState>,
}

/// The commands that wait for execution. Checks come first, because the holds of others depend on them.
pub(crate) struct Mailbox<D: Dialect> {
    commands: mpsc::UnboundedReceiver<Command<D>>,
    checks: mpsc::UnboundedReceiver<Command<D>>,
}

impl<D: Dialect> Mailbox<D> {
    /// Returns the next command; `None` when nothing is left that can send one.
    ///
    /// # Cancel safety
    /// No command is lost.
    pub(crate) async fn next(&mut self) -> Option<Command<D>> {
        tokio::select! {
            biased;
            Some(check) = self.checks.recv() => Some(check),
            command = self.commands.recv() => command,
        }
    }
}

impl<D: Dialect> Link<D> {
    pub(crate) fn new(group: GroupId, session: &Session<D>) -> (Arc<Self>, Mailbox<D>) {
        let (commands, received) = mpsc::unbounded_channel();
        let (checks, to_check) = mpsc::unbounded_channel();
        let link = Self {
            group,
            session: session.id.clone(),
            commands,
            checks,
            pending: AtomicUsize::new(0),
            round_trip: AtomicU64::new(u64::try_from(session.round_trip.as_nanos()).unwrap_or(u64::MAX)),
            busy_since: AtomicU64::new(0),
            is_doubtful: AtomicBool::new(false),
            state: watch::Sender::new(LinkState::Alive),
        };
        (Arc::new(link), Mailbox { commands: received, checks: to_check })
    }

    /// Puts a command at the end of its queue.
    fn send(&self, command: Command<D>) {
        let queue = if matches!(command, Command::Check { .. }) { &self.checks } else { &self.commands };
        self.pending.fetch_add(1, Ordering::Relaxed);
        // If the connection has ended, the answer's sender is dropped with the command, which reports this.
        let _ = queue.send(command);
    }

    /// The same, for an answer; an error if the connection has ended.
    pub(crate) fn asked<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command<D>,
    ) -> oneshot::Receiver<T> {
        let (answer, asked) = oneshot::channel();
        self.send(command(answer));
        asked
    }

    /// Records that the task has carried out a command.
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
        if self.is_doubtful() {
            // It may have refused the statement without asking, which took no time.
            return;
        }
        let took = now.as_nanoseconds().saturating_sub(since);
        // Falls at once and rises slowly, as a server that has moved away shows in every statement, and a stall in one.
        let lately = self.round_trip.load(Ordering::Relaxed);
        self.round_trip.store(took.min(lately.saturating_add(lately / 8 + 1_000)), Ordering::Relaxed);
    }

    /// Records that a cancellation may come late.
    pub(crate) fn becomes_doubtful(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    /// Returns whether a cancellation may come late.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.is_doubtful.load(Ordering::Relaxed)
    }

    /// Records how far the end of the connection has progressed.
    pub(crate) fn reaches(&self, state: LinkState) {
        self.state.send_modify(|reached| *reached = state.max(*reached));
    }

    /// Returns whether this side no longer receives anything from it.
    pub(crate) fn has_ended(&self) -> bool {
        *self.state.borrow() > LinkState::Alive
    }

    /// Returns whether the server has freed everything that was on it.
    pub(crate) fn is_terminated(&self) -> bool {
        *self.state.borrow() == LinkState::Terminated
    }

    /// Waits until the server has freed everything that was held or waited for on this connection.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub(crate) async fn terminated(&self) {
        // `self` keeps the sender alive.
        let _ = self.state.subscribe().wait_for(|state| *state == LinkState::Terminated).await;
    }
}

impl<D: Dialect> PooledLink for Link<D> {
    type Key = D::Key;
    type Claim = Claim<D::Key>;
    type Occupant = Occupant;
    type Answer = Asked;

    fn group(&self) -> GroupId {
        self.group
    }

    fn key(claim: &Claim<D::Key>) -> D::Key {
        claim.key.clone()
    }

    fn attempt(claim: &Claim<D::Key>) -> AttemptId {
        claim.id
    }

    fn take(&self, claim: Claim<D::Key>) -> Asked {
        self.asked(|answer| Command::Acquire { claim, waiting: None, answer })
    }

    fn close(&self) {
        self.send(Command::Close);
    }

    fn is_slow(&self, clock: &Clock, long: Duration) -> bool {
        let since = self.busy_since.load(Ordering::Relaxed);
        self.is_doubtful() || since != 0 && clock.now().since(Moment::from_nanoseconds(since)) > long
    }

    fn round_trip(&self) -> Duration {
        Duration::from_nanos(self.round_trip.load(Ordering::Relaxed))
    }

    fn queueing_time(&self, round_trip: Duration) -> Duration {
        let pending = u32::try_from(self.pending.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        round_trip.saturating_mul(pending)
    }
}

impl<D: Dialect> fmt::Debug for Link<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("group", &self.group)
            .field("session", &format_args!("{}", self.session))
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
