//! One lock, as one client knows it: its object, and what the client has seen of it.
//!
//! # When a lease is over
//! A holder stops to rely on its lease (of length V) at `a + V·(1 − 2 %)`, where `a` is before it **sent** the last beat that was
//! confirmed. Who else looks at the object removes the entry when the beat has been the same for V·(1 + 2 %) since `r`, when it
//! **received** the first answer that showed that beat, with a write on the condition that the object still shows it. As
//! `a ≤ carried out ≤ read ≤ r`, and no later beat was written before the removal, the holder has stopped by then: it does not
//! matter what any other clock shows, as long as no two clocks drift apart by more than 2 %.
//!
//! # Writes of unknown outcome
//! A write that was not answered may be carried out as long as the object has the content that it was to replace. So **the mark of
//! that content is remembered**, and who has to be certain writes once more if the object still has it. No content returns, because
//! no two are the same and no object is deleted.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::{Mutex, within};
use lock_core::{AttemptId, Backoff, Clock, ErrorKind, GroupId, LockError, Moment, Operation};
use lock_kit::no_answer;

use crate::register::{Register, Stored, Written};
use crate::state::{Entry, Mark, State};

/// The pauses of a client whose writes others forestall.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(400);

/// After so many writes in vain there are pauses.
const WRITES_WITHOUT_PAUSE: u32 = 2;

/// A store may refuse a write for another one that it is about to carry out; if it does so for this long, and the object stays the
/// same, it contradicts itself.
const REFUSES_THE_SAME_FOR: Duration = Duration::from_secs(10);

/// The store, and how to ask it.
#[derive(Debug)]
pub(crate) struct Store<R> {
    pub(crate) register: R,
    pub(crate) clock: Clock,
    /// How long a request may take.
    pub(crate) timeout: Duration,
}

impl<R: Register> Store<R> {
    pub(crate) async fn read(
        &self,
        operation: Operation,
        key: &str,
    ) -> Result<Option<Stored<R::Version>>, LockError> {
        let deadline = self.clock.now().plus(self.timeout);
        let read = within(&self.clock, deadline, self.register.read(key)).await;
        read.unwrap_or_else(|| Err(no_answer(operation))).map_err(|error| error.during(operation))
    }
}

pub(crate) struct Slot<R: Register> {
    store: Arc<Store<R>>,
    key: String,
    group: GroupId,
    /// Attempts, cancels and breaks queue here, so that changes of what this client holds wait for one of them at most.
    queue: tokio::sync::Mutex<()>,
    /// Who writes.
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Known<R::Version>>,
}

struct Known<V> {
    /// The attempts that may have an entry: those that were about to write one, and have not made sure that there is none.
    entered: HashSet<AttemptId>,
    /// What writes were to replace whose outcome is not known.
    doubt: Option<Mark>,
    /// What the last change of this client made, if no other client has an entry there.
    kept: Option<(V, State)>,
    /// Since when each entry shows its beat.
    seen: HashMap<String, Seen>,
    /// Before then the store wants no other write.
    next_write: Moment,
}

struct Seen {
    beat: u64,
    since: Moment,
}

/// What to do with a changed state.
pub(crate) enum Edit<T> {
    /// It is written.
    Write(T),
    /// There is nothing to write.
    Keep(T),
    /// It is written unless the object says nothing else, and no write of unknown outcome can still be carried out.
    Certain(T),
}

/// Where a change begins.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum From {
    /// With the object.
    Store,
    /// With what the last change of this client made, if it is likely that this has not changed. Entries of this client are there
    /// in any case: only its own changes make them.
    Memory,
}

impl<R: Register> Slot<R> {
    pub(crate) fn new(store: &Arc<Store<R>>, key: String, group: GroupId) -> Self {
        let known = Known {
            entered: HashSet::new(),
            doubt: None,
            kept: None,
            seen: HashMap::new(),
            next_write: Moment::from_nanoseconds(0),
        };
        Self {
            store: Arc::clone(store),
            key,
            group,
            queue: tokio::sync::Mutex::new(()),
            turn: tokio::sync::Mutex::new(()),
            known: Mutex::new(known),
        }
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Whether a later caller has to know of a write that may still be carried out, or of an entry that may be there.
    pub(crate) fn is_doubtful(&self) -> bool {
        let known = self.known.lock();
        known.doubt.is_some() || !known.entered.is_empty()
    }

    /// An attempt is about to write its entry.
    pub(crate) fn enters(&self, id: AttemptId) {
        self.known.lock().entered.insert(id);
    }

    /// Whether there may be an entry of this attempt.
    pub(crate) fn has_entered(&self, id: AttemptId) -> bool {
        self.known.lock().entered.contains(&id)
    }

    /// There is no entry of this attempt, and there will be none.
    pub(crate) fn has_left(&self, id: AttemptId) {
        self.known.lock().entered.remove(&id);
    }

    fn now(&self) -> Moment {
        self.store.clock.now()
    }

    /// Reads the object, and what follows from it for this client: entries are left out whose lease is over. Returns whether
    /// there were some, or others could have had the lock then.
    pub(crate) async fn look(&self, operation: Operation) -> Result<(State, bool), LockError> {
        let (_, mut state) = self.read(operation).await?;
        let is_settled = self.settle(&mut state);
        Ok((state, is_settled))
    }

    async fn read(&self, operation: Operation) -> Result<(Option<R::Version>, State), LockError> {
        let read = self.store.read(operation, &self.key).await?;
        // The answer may show a beat that was written long after the request was sent.
        let received = self.now();
        let (version, state) = match read {
            Some((content, version)) => {
                (Some(version), State::read(&content).map_err(|error| error.during(operation))?)
            }
            None => (None, State::default()),
        };
        self.known.lock().observe(&state, received);
        Ok((version, state))
    }

    fn settle(&self, state: &mut State) -> bool {
        let (known, now) = (self.known.lock(), self.now());
        state
            .settle(|entry| known.since(entry).is_some_and(|since| now >= since.plus(longest(entry.lease()))))
    }

    /// How long the last of the holders' leases lasts at most, if there is a holder.
    pub(crate) fn remaining(&self, state: &State) -> Option<Duration> {
        let (known, now) = (self.known.lock(), self.now());
        let left = |entry: &Entry| {
            let passed = known.since(entry).map_or(Duration::ZERO, |since| now.since(since));
            entry.lease().saturating_sub(passed)
        };
        state.holders().map(left).max()
    }

    /// Changes the object: `edit` changes what it says now, and is called again when another client was faster. Returns what
    /// it returned, and a moment before the write was sent.
    ///
    /// # Cancel safety
    /// The change may then be made or not, now or later.
    pub(crate) async fn change<T>(
        &self,
        operation: Operation,
        from: From,
        mut edit: impl FnMut(&mut State) -> Edit<T>,
    ) -> Result<(T, Moment), LockError> {
        let _queue = match operation {
            Operation::Acquire | Operation::Cancel | Operation::Break => Some(self.queue.lock().await),
            _ => None,
        };
        let (mut writes, mut pauses) = (0, Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
        let mut refused: Option<(Mark, Moment)> = None;
        loop {
            let turn = self.turn.lock().await;
            let kept = self.known.lock().kept.take().filter(|_| from == From::Memory);
            let (base, mut state) = match kept {
                Some((version, state)) => (Some(version), state),
                None => self.read(operation).await?,
            };
            let replaced = state.mark().clone();
            let is_settled = self.settle(&mut state);
            let value = match edit(&mut state) {
                Edit::Write(value) => value,
                Edit::Certain(value) if is_settled || self.may_replace(&replaced) => value,
                Edit::Keep(value) | Edit::Certain(value) => return Ok((value, self.now())),
            };
            let next_write = self.known.lock().next_write;
            if next_write > self.now() {
                self.store.clock.sleep_until(next_write).await;
            }
            let (content, sent) = (state.content(operation)?, self.now());
            let written = self.write(base, replaced.clone(), content).await;
            if let Some(version) = written.map_err(|error| error.during(operation))? {
                let is_alone = state.entries().nth(1).is_none();
                self.known.lock().kept = is_alone.then_some((version, state));
                return Ok((value, sent));
            }
            drop(turn);
            match &refused {
                Some((same, since)) if *same == replaced => {
                    if self.now() >= since.plus(REFUSES_THE_SAME_FOR) {
                        return Err(contradicts_itself(operation));
                    }
                }
                _ => refused = Some((replaced, sent)),
            }
            writes += 1;
            if writes >= WRITES_WITHOUT_PAUSE {
                self.store.clock.sleep_until(self.now().plus(pauses.next_pause())).await;
            }
        }
    }

    /// Whether a write of unknown outcome can still be carried out if the object has this content.
    fn may_replace(&self, mark: &Mark) -> bool {
        self.known.lock().doubt.as_ref() == Some(mark)
    }

    /// Writes the object if it still has this version, and returns the new one; `None` if it has another.
    async fn write(
        &self,
        base: Option<R::Version>,
        replaced: Mark,
        content: Vec<u8>,
    ) -> Result<Option<R::Version>, LockError> {
        let deadline = self.now().plus(self.store.timeout);
        let earlier = {
            let mut known = self.known.lock();
            known.next_write = self.now().plus(self.store.register.pace());
            // Before the write is sent, because this future may be dropped then. A doubt about another content is over.
            known.doubt.replace(replaced)
        };
        let writing = self.store.register.write(&self.key, content, base.as_ref());
        let written = within(&self.store.clock, deadline, writing).await;
        let written = written.unwrap_or_else(|| Written::Unknown(no_answer(Operation::Acquire)));
        let mut known = self.known.lock();
        known.doubt = match written {
            Written::Done(_) => None,
            Written::Conflict | Written::Refused(_) => earlier,
            Written::Unknown(_) => known.doubt.take(),
        };
        match written {
            Written::Done(version) => Ok(Some(version)),
            Written::Conflict => Ok(None),
            Written::Refused(error) | Written::Unknown(error) => Err(error),
        }
    }
}

fn contradicts_itself(operation: Operation) -> LockError {
    LockError::new(ErrorKind::Server, operation)
        .because("the store refuses each write, as if the object had changed, and shows it unchanged")
        .remedy("use a store that writes on a condition, without a cache or a gateway that changes versions in between")
}

/// The longest time that a lease lasts, by a slow clock.
fn longest(lease: Duration) -> Duration {
    lease.saturating_add(lease / 50)
}

impl<V> Known<V> {
    fn observe(&mut self, state: &State, received: Moment) {
        let before = std::mem::take(&mut self.seen);
        let now = state.entries().map(|entry| {
            let known = before.get(entry.id()).filter(|seen| seen.beat == entry.beat());
            (
                entry.id().to_owned(),
                Seen { beat: entry.beat(), since: known.map_or(received, |seen| seen.since) },
            )
        });
        self.seen = now.collect();
    }

    /// Since when an entry shows its beat, as far as this client knows.
    fn since(&self, entry: &Entry) -> Option<Moment> {
        self.seen.get(entry.id()).filter(|seen| seen.beat == entry.beat()).map(|seen| seen.since)
    }
}

impl<R: Register> fmt::Debug for Slot<R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Slot").field("key", &self.key).finish_non_exhaustive()
    }
}
