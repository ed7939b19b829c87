//! A small lock server in one process, with one bug at a time, each of which a developer could easily make.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lock_core::{
    AcquireRequest, AttemptId, Broken, HolderId, HolderInfo, LockError, LockName, LockStatus, LossReason,
    Memo, Operation, Participant, Recall, Remembered,
};
use tokio::sync::Notify;

/// As good as for ever, in a test.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// The bug of the server, or of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// A release frees the lock even if another client holds it.
    ReleaseWithoutCompare,
    /// The server answers a release and releases nothing.
    ReleaseDoesNothing,
    /// An acquisition that is sent again waits behind itself.
    RepeatedAcquireQueues,
    /// Now and then the lock has two holders.
    DoubleGrant,
    /// Waiters get the lock last come, first served.
    LastComeFirstServed,
    /// All tokens are the same.
    TokenStandsStill,
    /// The last token that was reserved for sections that follow is given again.
    TokenReservedTwice,
    /// The tokens of a lock start again when it has no holder.
    TokenForgotten,
    /// A lock on a server that cannot be reached counts as held.
    UnreachableIsHeld,
    /// The server answers a cancel and cancels nothing.
    CancelDoesNothing,
    /// A cancel does not undo a grant that has been made.
    CancelLeavesGrant,
    /// An attempt that tries once stays in the queue.
    TryEnqueues,
    /// The next in the queue is not woken.
    LostWakeUp,
    /// The backend never reports that an attempt is queued.
    SilentQueue,
    /// Breaking takes the lock away even if the holder is not the named one.
    BreaksAnyone,
    /// The holder does not learn that its lock was taken away.
    SilentLoss,
    /// Names that differ only in case are the same.
    FoldsCase,
    /// Names are cut off.
    CutsNames,
    /// The queue is shown in reverse order.
    ShowsQueueBackwards,
    /// What the clients say about themselves is not shown.
    ShowsNobody,
    /// A refusal names the client that asked last.
    NamesTheAsker,
    /// A slot may be used as often as asked.
    RemembersNothing,
    /// A slot is remembered for half of its time.
    ForgetsEarly,
    /// All slots of a lock are one.
    RemembersNames,
    /// A slot that is to be forgotten is looked up.
    ForgetsNothing,
    /// The client answers a ping itself.
    PingUnasked,
    /// The holder counts its lease from a moment when the server has been counting for a long time.
    AnchorTooLate,
    /// The server answers renewals and extends nothing.
    RenewsNothing,
    /// The server answers renewals as if the lock were still held.
    RenewsTheLost,
}

pub(crate) struct Table {
    pub(crate) defect: Defect,
    pub(crate) lease: Option<Duration>,
    state: Mutex<State>,
    pub(crate) changed: Notify,
}

#[derive(Default)]
pub(crate) struct State {
    locks: HashMap<String, Lock>,
    tokens: u64,
    grants: u64,
    pub(crate) is_severed: bool,
    pub(crate) replies_to_lose: Vec<Operation>,
    slots: HashMap<(String, String), Instant>,
}

#[derive(Default)]
struct Lock {
    holder: Option<Held>,
    queue: VecDeque<Waiting>,
    tokens: u64,
}

struct Held {
    by: Waiting,
    token: u64,
    until: Option<Instant>,
    /// Whether its attempt knows of the grant.
    is_known: bool,
}

#[derive(Clone)]
pub(crate) struct Waiting {
    pub(crate) id: AttemptId,
    /// How many tokens it reserves.
    pub(crate) sections: u32,
    pub(crate) info: Arc<HolderInfo>,
    pub(crate) attempt: AcquireRequest,
}

/// The result of a request for the lock.
pub(crate) enum Answer {
    Granted(u64),
    Queued,
    Refused,
}

impl Table {
    pub(crate) fn new(defect: Defect, lease: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { defect, lease, state: Mutex::default(), changed: Notify::new() })
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// Returns the state after removing what has expired.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_over = |held: &Held| held.until.is_some_and(|until| until <= now);
        let over: Vec<_> = state
            .locks
            .iter()
            .filter(|(_, lock)| lock.holder.as_ref().is_some_and(is_over))
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            self.free(&mut state, &key);
        }
        state
    }

    pub(crate) fn key(&self, name: &str) -> String {
        match self.defect {
            Defect::FoldsCase => name.to_lowercase(),
            Defect::CutsNames => name.chars().take(64).collect(),
            _ => name.to_owned(),
        }
    }

    pub(crate) fn request(&self, key: &str, who: Waiting, tries_once: bool) -> Answer {
        let mut state = self.state();
        state.grants += 1;
        let generous = self.has(Defect::DoubleGrant) && state.grants.is_multiple_of(7);
        let lock = state.locks.entry(key.to_owned()).or_default();
        let knows_attempts = !self.has(Defect::RepeatedAcquireQueues);
        match &lock.holder {
            Some(held) if held.by.id == who.id && knows_attempts => return Answer::Granted(held.token),
            Some(held) if generous => return Answer::Granted(held.token + 1_000_000),
            None if lock.queue.is_empty() => {
                let token = self.give(&mut state, key, who);
                know(&mut state, key);
                return Answer::Granted(token);
            }
            _ => {}
        }
        let keeps_place = !tries_once || self.has(Defect::TryEnqueues);
        if keeps_place && !lock.queue.iter().any(|waiting| waiting.id == who.id) {
            lock.queue.push_back(who);
        }
        if tries_once { Answer::Refused } else { Answer::Queued }
    }

    /// Who holds the lock, for a refusal.
    pub(crate) fn holder(&self, key: &str, asker: &HolderInfo) -> Option<Participant> {
        let state = self.state();
        let held = state.locks.get(key)?.holder.as_ref()?;
        let info = if self.has(Defect::NamesTheAsker) { asker } else { &held.by.info };
        Some(Participant::new(holder_id(held.by.id)).with_info(info))
    }

    pub(crate) fn remember(&self, memo: &Memo, keep: Duration) -> Remembered {
        let slot = if self.has(Defect::RemembersNames) { "" } else { memo.slot() };
        let key = (memo.name().as_str().to_owned(), slot.to_owned());
        let mut state = self.state();
        // Read here, so that no slot is from a later moment.
        let now = Instant::now();
        if let Some(until) = state.slots.get(&key).filter(|until| **until > now)
            && !self.has(Defect::RemembersNothing)
        {
            return Remembered::Already { remaining: *until - now };
        }
        let keep = if self.has(Defect::ForgetsEarly) { keep / 2 } else { keep };
        state.slots.insert(key, now + keep.min(FOR_EVER));
        Remembered::Now
    }

    pub(crate) fn recall(&self, memo: &Memo, recall: Recall) -> Option<Duration> {
        let key = (memo.name().as_str().to_owned(), memo.slot().to_owned());
        let mut state = self.state();
        let until = match recall {
            Recall::Forget if !self.has(Defect::ForgetsNothing) => state.slots.remove(&key),
            _ => state.slots.get(&key).copied(),
        };
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    fn give(&self, state: &mut State, key: &str, to: Waiting) -> u64 {
        let of_all = state.tokens + 1;
        state.tokens += u64::from(to.sections);
        if self.has(Defect::TokenReservedTwice) && to.sections > 1 {
            state.tokens -= 1;
        }
        let lock = state.locks.entry(key.to_owned()).or_default();
        lock.tokens += 1;
        let token = match self.defect {
            Defect::TokenStandsStill => 1,
            Defect::TokenForgotten => lock.tokens,
            _ => of_all,
        };
        let until = self.lease.map(|lease| Instant::now() + lease);
        lock.holder = Some(Held { by: to, token, until, is_known: false });
        token
    }

    /// Takes the lock from its holder and gives it to the next.
    fn free(&self, state: &mut State, key: &str) -> Option<Waiting> {
        let lock = state.locks.get_mut(key)?;
        let former = lock.holder.take();
        let next = if self.has(Defect::LastComeFirstServed) {
            lock.queue.pop_back()
        } else {
            lock.queue.pop_front()
        };
        match next {
            Some(next) => drop(self.give(state, key, next)),
            None => drop(state.locks.remove(key)),
        }
        if !self.has(Defect::LostWakeUp) {
            self.changed.notify_waiters();
        }
        former.map(|held| held.by)
    }

    pub(crate) fn token_of(&self, key: &str, id: AttemptId) -> Option<u64> {
        let mut state = self.state();
        let held = state.locks.get_mut(key)?.holder.as_mut().filter(|held| held.by.id == id)?;
        held.is_known = true;
        Some(held.token)
    }

    /// Whether there is no holder whose attempt does not know of the grant yet. A release without a compare does harm
    /// where it arrives late, so it waits for this.
    pub(crate) fn is_settled(&self, key: &str) -> bool {
        let holder_is_known = |lock: &Lock| lock.holder.as_ref().is_none_or(|held| held.is_known);
        !self.has(Defect::ReleaseWithoutCompare) || self.state().locks.get(key).is_none_or(holder_is_known)
    }

    /// Removes the grant or the place of the attempt. Returns whether it held the lock.
    pub(crate) fn release(&self, key: &str, id: AttemptId) -> bool {
        let mut state = self.state();
        let Some(lock) = state.locks.get(key) else { return self.has(Defect::DoubleGrant) };
        let is_holder = lock.holder.as_ref().is_some_and(|held| held.by.id == id);
        if self.has(Defect::ReleaseDoesNothing) {
            return is_holder;
        }
        if is_holder || self.has(Defect::ReleaseWithoutCompare) {
            self.free(&mut state, key);
        }
        is_holder || self.has(Defect::DoubleGrant)
    }

    pub(crate) fn cancel(&self, key: &str, id: AttemptId) {
        if self.has(Defect::CancelDoesNothing) {
            return;
        }
        let mut state = self.state();
        let Some(lock) = state.locks.get_mut(key) else { return };
        lock.queue.retain(|waiting| waiting.id != id);
        let is_holder = lock.holder.as_ref().is_some_and(|held| held.by.id == id);
        if is_holder && !self.has(Defect::CancelLeavesGrant) {
            self.free(&mut state, key);
        }
    }

    /// Returns whether the lease is still held.
    pub(crate) fn renew(&self, key: &str, id: AttemptId) -> bool {
        let mut state = self.state();
        let until = self.lease.map(|lease| Instant::now() + lease);
        let held = state.locks.get_mut(key).and_then(|lock| lock.holder.as_mut());
        match held {
            Some(held) if held.by.id == id => {
                if !self.has(Defect::RenewsNothing) {
                    held.until = until;
                }
                true
            }
            _ => self.has(Defect::RenewsTheLost),
        }
    }

    pub(crate) fn status(&self, name: &LockName, key: &str) -> LockStatus {
        let mut status = LockStatus::free(name.clone());
        let state = self.state();
        let Some(lock) = state.locks.get(key) else { return status };
        let show = |who: &Waiting| {
            let participant = Participant::new(holder_id(who.id));
            if self.has(Defect::ShowsNobody) { participant } else { participant.with_info(&who.info) }
        };
        if let Some(held) = &lock.holder {
            let token = lock_core::FencingToken::new(held.token);
            status.holders.push(show(&held.by).with_token(Some(token)));
        }
        status.waiters.extend(lock.queue.iter().map(show));
        if self.has(Defect::ShowsQueueBackwards) {
            status.waiters.reverse();
        }
        status
    }

    pub(crate) fn break_holder(&self, key: &str, holder: &HolderId) -> Broken {
        let names_it = |held: &Held| holder_id(held.by.id) == *holder;
        let mut state = self.state();
        let held = state.locks.get(key).and_then(|lock| lock.holder.as_ref());
        if held.is_some_and(|held| self.has(Defect::BreaksAnyone) || names_it(held)) {
            let former = self.free(&mut state, key);
            drop(state);
            self.tell(former, LossReason::Broken);
            return Broken::taken_away();
        }
        Broken::not_held()
    }

    /// Deletes the holder of the lock. Returns whether there was one.
    pub(crate) fn delete(&self, key: &str) -> bool {
        let mut state = self.state();
        let former = self.free(&mut state, key);
        drop(state);
        let was_held = former.is_some();
        self.tell(former, LossReason::Deleted);
        was_held
    }

    fn tell(&self, former: Option<Waiting>, reason: LossReason) {
        if let Some(former) = former.filter(|_| !self.has(Defect::SilentLoss) && self.lease.is_none()) {
            former.attempt.lost(reason);
        }
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        self.state().locks.keys().cloned().collect()
    }

    /// Fails when the server is unreachable.
    pub(crate) fn reach(&self, operation: Operation) -> Result<(), LockError> {
        if self.state().is_severed { Err(unreachable(operation)) } else { Ok(()) }
    }

    /// Fails when the reply is to be lost.
    pub(crate) fn reply(&self, operation: Operation) -> Result<(), LockError> {
        let mut state = self.state();
        match state.replies_to_lose.iter().position(|lost| *lost == operation) {
            Some(position) => {
                state.replies_to_lose.remove(position);
                Err(unreachable(operation))
            }
            None => Ok(()),
        }
    }
}

fn unreachable(operation: Operation) -> LockError {
    LockError::new(lock_core::ErrorKind::Unreachable, operation).because("the table is away").retryable()
}

fn holder_id(id: AttemptId) -> HolderId {
    HolderId::new(id.to_string())
}

fn know(state: &mut State, key: &str) {
    if let Some(held) = state.locks.get_mut(key).and_then(|lock| lock.holder.as_mut()) {
        held.is_known = true;
    }
}
