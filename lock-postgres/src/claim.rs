//! What an attempt asks for, what a session has of it, and a wait.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lock_core::{AttemptId, LockError, LockName, Mode};
use lock_kit::ClientRecord;
use tokio::sync::{Notify, oneshot};

use crate::dialect::Taken;
use crate::key::Key;
use crate::permits::Permits;
use crate::statement::Waiter;

/// An attempt's request for a lock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) key: Key,
    /// The name of the lock, for people who look at the table of tokens.
    pub(crate) name: LockName,
    pub(crate) id: AttemptId,
    pub(crate) wanted: Wanted,
    /// What the table is to say of the holder, if there is a table and the lock is exclusive.
    pub(crate) holder: Option<ClientRecord>,
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

/// What a refusal says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Others hold it, perhaps this one.
    Held,
    /// Others take permits of the semaphore, or wait for some.
    AtGate,
}

/// What a connection's task gets for a wait besides the claim.
pub(crate) struct Wait {
    pub(crate) waiter: Waiter,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) answer: oneshot::Sender<Result<Taken, LockError>>,
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
