//! The handle of a connection that can hold locks, and the commands to its task.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::Released;
use lock_core::{
    AttemptId, Clock, FencingToken, GroupId, LeaseState, LockError, LockName, Mode, Moment, Operation,
};
use lock_kit::PooledLink;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::key::Key;
use crate::permits::Permits;
use crate::server::SessionId;
use crate::session::Session;
use crate::statement::Waiter;
use crate::table::Holder;

/// An attempt's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    /// The name of the lock, for people who look at the table of tokens.
    pub(crate) name: LockName,
    pub(crate) id: AttemptId,
    pub(crate) wanted: Wanted,
    /// What the table is to say of the holder, if there is a table and the lock is exclusive.
    pub(crate) holder: Option<Holder>,
    /// How many tokens the grant reserves, its own included.
    pub(crate) sections: NonZeroU32,
}

/// How a lock is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Exclusive,
    Shared,
    Permits(Permits),
}

impl Wanted {
    pub(crate) fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Exclusive => Some(Self::Exclusive),
            Mode::Shared => Some(Self::Shared),
            Mode::Permits { take, of } => Some(Self::Permits(Permits { take: take.get(), of: of.get() })),
            _ => None,
        }
    }

    /// How many of the server's locks it takes.
    pub(crate) fn locks(self) -> u64 {
        match self {
            Self::Exclusive | Self::Shared => 1,
            Self::Permits(permits) => permits.locks(),
        }
    }
}

/// What a session has of a lock or a semaphore, or may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Has {
    Exclusive,
    Shared,
    /// The one, the other, or both: the session was about to turn one into the other.
    Either,
    /// These permits of a semaphore of this size.
    Permits {
        of: u32,
        numbers: Vec<u32>,
    },
    /// Some of the locks of a semaphore.
    PartOfSemaphore,
}

impl Has {
    /// What a session may have after a request whose outcome is not known.
    pub(crate) fn at_most(wanted: Wanted) -> Self {
        match wanted {
            Wanted::Exclusive => Self::Exclusive,
            Wanted::Shared => Self::Shared,
            Wanted::Permits(_) => Self::PartOfSemaphore,
        }
    }
}

/// The outcome of a request for a lock.
#[derive(Debug)]
pub(crate) enum Taken {
    Granted {
        token: Option<FencingToken>,
        anchor: Moment,
    },
    /// Others hold it, perhaps this one.
    Refused,
    /// Others take permits of the semaphore, or wait for some.
    AtGate,
    /// Nothing is known, and nothing is held.
    Interrupted,
}

/// A wait that is under way at the server.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Notified when the wait has to end, for good or to begin anew.
    end: Notify,
    is_stopped: AtomicBool,
    gives_way: AtomicBool,
    rounds: AtomicU64,
    is_answered: AtomicBool,
    is_at_head: AtomicBool,
}

impl Waiting {
    /// Ends the wait: the lock's callers have gone.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    /// Ends the wait so that it begins anew; returns how often it has done so.
    pub(crate) fn give_way(&self) -> u64 {
        let rounds = self.rounds();
        self.gives_way.store(true, Ordering::Relaxed);
        self.end.notify_one();
        rounds
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits until the wait has to end.
    pub(crate) async fn ended(&self) {
        while !self.is_stopped.load(Ordering::Relaxed) && !self.gives_way.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }

    /// Waits until the lock's callers have gone.
    pub(crate) async fn stopped(&self) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }

    /// Records that only permits are missing: the session has the gate of the semaphore, and looks for permits itself.
    pub(crate) fn reaches_head(&self) {
        self.is_at_head.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_at_head(&self) -> bool {
        self.is_at_head.load(Ordering::Relaxed)
    }

    /// Whether the wait, which has ended, is to begin anew.
    pub(crate) fn begins_anew(&self) -> bool {
        self.gives_way.swap(false, Ordering::Relaxed) && !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Records that the wait is about to begin anew.
    pub(crate) fn has_begun_anew(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the server has answered the wait. The actor may need a while for what follows.
    pub(crate) fn is_over(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }
}

pub(crate) type Asked = oneshot::Receiver<Result<Taken, LockError>>;

pub(crate) type GivenBack = oneshot::Receiver<Result<Released, LockError>>;

pub(crate) type Downgraded = oneshot::Receiver<Result<Option<Taken>, LockError>>;

/// What a connection's task has to do, one command after the other.
pub(crate) enum Command {
    /// Take a lock if it is free.
    Take { claim: Claim, answer: oneshot::Sender<Result<Taken, LockError>> },
    /// Wait for a lock until it is granted, or until its callers have gone.
    Wait {
        claim: Claim,
        waiter: Waiter,
        waiting: Arc<Waiting>,
        answer: oneshot::Sender<Result<Taken, LockError>>,
    },
    /// Release a lock, if this attempt has it.
    Release {
        key: Key,
        id: AttemptId,
        operation: Operation,
        answer: oneshot::Sender<Result<Released, LockError>>,
    },
    /// Make an exclusive hold a shared one, of the attempt in the claim.
    Downgrade { former: AttemptId, claim: Claim, answer: oneshot::Sender<Result<Option<Taken>, LockError>> },
    /// Check which locks are still held.
    Check { leases: Vec<(Key, AttemptId)>, answer: oneshot::Sender<Result<Vec<LeaseState>, LockError>> },
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
    pub(crate) session: SessionId,
    commands: mpsc::UnboundedSender<Command>,
    checks: mpsc::UnboundedSender<Command>,
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
            session: session.id,
            commands,
            checks,
            busy_since: AtomicU64::new(0),
            state: watch::Sender::new(LinkState::Alive),
        };
        (Arc::new(link), Mailbox { commands: received, checks: to_check })
    }

    /// Puts a command at the end of its queue.
    pub(crate) fn send(&self, command: Command) -> Result<(), Gone> {
        let queue = if matches!(command, Command::Check { .. }) { &self.checks } else { &self.commands };
        queue.send(command).map_err(|_| Gone)
    }

    /// Records that a statement was sent at this moment.
    pub(crate) fn is_asking(&self, since: Moment) {
        self.busy_since.store(since.as_nanoseconds(), Ordering::Relaxed);
    }

    /// Records that the statement is over.
    pub(crate) fn has_asked(&self) {
        self.busy_since.store(0, Ordering::Relaxed);
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

    pub(crate) fn wait(&self, claim: Claim, waiter: Waiter, waiting: Arc<Waiting>) -> Asked {
        let (answer, asked) = oneshot::channel();
        let _ = self.send(Command::Wait { claim, waiter, waiting, answer });
        asked
    }

    /// Releases a lock, if this attempt has it.
    pub(crate) fn release(&self, key: Key, id: AttemptId, operation: Operation) -> GivenBack {
        let (answer, asked) = oneshot::channel();
        let _ = self.send(Command::Release { key, id, operation, answer });
        asked
    }

    /// Makes an exclusive hold a shared one. The answer is `None` if the session does not have it.
    pub(crate) fn downgrade(&self, former: AttemptId, claim: Claim) -> Downgraded {
        let (answer, asked) = oneshot::channel();
        let _ = self.send(Command::Downgrade { former, claim, answer });
        asked
    }

    pub(crate) async fn check(
        &self,
        leases: Vec<(Key, AttemptId)>,
    ) -> Result<Result<Vec<LeaseState>, LockError>, Gone> {
        let (answer, asked) = oneshot::channel();
        self.send(Command::Check { leases, answer })?;
        asked.await.map_err(|_| Gone)
    }
}

impl PooledLink for Link {
    type Key = Key;
    type Claim = Claim;
    type Occupant = AttemptId;
    type Answer = Asked;

    fn group(&self) -> GroupId {
        self.group
    }

    fn key(claim: &Claim) -> Key {
        claim.key
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
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Link")
            .field("group", &self.group)
            .field("session", &self.session)
            .field("state", &*self.state.borrow())
            .finish_non_exhaustive()
    }
}
