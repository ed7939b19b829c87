//! What a client knows about the entry of an attempt, from before the first request until certainly nothing is left.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use lock_core::spi::Mutex;
use lock_core::{AttemptId, ErrorKind, GroupId, LockError, LossReason, Operation, Term};

use crate::record::{Record, Told};

/// How often the value of an entry may change while a client replaces it.
const MOST_ROUNDS: usize = 8;

/// Why a request has not succeeded.
pub trait Failed: Send + Sized {
    /// Returns what became of the request. A failure that is not known to be harmless counts as unknown.
    fn outcome(&self) -> Outcome;

    /// Returns the error for users.
    fn explain(self, operation: Operation) -> LockError;
}

/// What became of a request that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The request did nothing, and sending it again will not help.
    Refused,
    /// The request did nothing; the client may send it again later.
    Postponed,
    /// Unknown: the servers may have carried it out, or may still do so.
    Unknown,
    /// The session is over, and what the request did ends with it.
    EndsWithSession,
}

/// The state of an attempt's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State<T> {
    /// The client has not sent a request, or the last one has certainly created nothing.
    None,
    /// The client has sent a request to create it, with an unknown outcome.
    Perhaps,
    /// It exists, unless another program has removed it.
    Made(T),
    /// It is gone, and does not appear any more.
    Gone,
}

/// What an attempt has left at the store: `T` says where to find its entry.
#[derive(Debug)]
pub struct Traces<T>(Mutex<(State<T>, IsDoubtful)>);

/// Whether a request with an unknown outcome may still arrive, or may have been carried out twice.
type IsDoubtful = bool;

/// What the undoing of an attempt has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Nothing is left, and nothing will appear.
    Nothing,
    /// An entry that is known.
    Known,
    /// It is not known what is left, or may still appear.
    Unknown,
}

impl<T> Default for Traces<T> {
    fn default() -> Self {
        Self(Mutex::new((State::None, false)))
    }
}

impl<T: Clone + PartialEq> Traces<T> {
    /// Call this before each request to create the entry: from here on it may exist, whatever becomes of the request.
    pub fn about_to_create(&self) {
        let (state, is_doubtful) = &mut *self.0.lock();
        *is_doubtful |= *state != State::None;
        *state = State::Perhaps;
    }

    /// The last request has certainly created nothing.
    pub fn created_nothing(&self) {
        self.0.lock().0 = State::None;
    }

    /// The entry exists.
    pub fn made(&self, entry: T) {
        self.0.lock().0 = State::Made(entry);
    }

    /// A request may have been carried out twice.
    pub fn doubt(&self) {
        self.0.lock().1 = true;
    }

    /// Nothing is left, and nothing will appear.
    pub fn gone(&self) {
        self.0.lock().0 = State::Gone;
    }

    /// Returns the entry that was created, as long as it exists as far as the client knows.
    pub fn entry(&self) -> Option<T> {
        match &self.0.lock().0 {
            State::Made(entry) => Some(entry.clone()),
            State::None | State::Perhaps | State::Gone => None,
        }
    }

    /// Returns whether a request has created an entry, or perhaps has.
    pub fn has_left_something(&self) -> bool {
        matches!(self.0.lock().0, State::Perhaps | State::Made(_))
    }

    /// Returns whether more may be left than the entry that is known.
    pub fn is_doubtful(&self) -> bool {
        self.0.lock().1
    }

    /// Returns what the undoing has to do.
    pub fn rest(&self) -> Rest {
        match &*self.0.lock() {
            (State::Gone, _) | (State::None, false) => Rest::Nothing,
            (State::Made(_), false) => Rest::Known,
            _ => Rest::Unknown,
        }
    }
}

/// One attempt in one session: what it takes to remove and to watch its entry.
///
/// All futures may be dropped at every await; what was sent may then be carried out or not, and the [`Traces`] know it.
pub trait Claim: fmt::Debug + Send + Sync + 'static {
    /// Why a request fails.
    type Failure: Failed;

    /// What says where the entry is.
    type Made: Clone + PartialEq + Send;

    /// Returns what the attempt has left.
    fn traces(&self) -> &Traces<Self::Made>;

    /// Returns whether the session is over, and with it the entry.
    fn is_over(&self) -> bool;

    /// Returns the group of the session, in which the core renews its holds.
    fn group(&self) -> GroupId;

    /// Returns how long a hold in the session is valid now.
    fn term(&self) -> Term;

    /// Removes the entry that is known, once, and notes that it is gone. Returns whether it existed.
    fn remove(&self) -> impl Future<Output = Result<bool, Self::Failure>> + Send;

    /// Removes whatever the attempt may have left, once, and makes sure that nothing appears later.
    fn sweep(&self) -> impl Future<Output = Result<(), Self::Failure>> + Send;

    /// Nothing is left.
    fn gone(&self) {
        self.traces().gone();
    }

    /// Returns when the attempt began, in milliseconds since the epoch; zero by default, for a store that knows when an entry was created.
    fn since(&self) -> u64 {
        0
    }

    /// The store refuses to remove the entry: takes care of it some other way. By default it ends with the session.
    fn leave(&self) {}

    /// Replaces the value of the entry, if it is still the one that the client knows.
    fn replace(&self, value: &[u8]) -> impl Future<Output = Result<Replaced, Self::Failure>> + Send;

    /// Watches the entry of a hold until it is gone or marked as broken; `None` if its session is over, which the core learns
    /// otherwise, or if nothing can be watched.
    fn until_lost(claim: Weak<Self>) -> impl Future<Output = Option<LossReason>> + Send;

    /// Makes sure that nothing is left, once.
    fn undo(&self) -> impl Future<Output = Result<(), LockError>> + Send {
        async {
            let undone = match self.traces().rest() {
                _ if self.is_over() => Ok(()),
                Rest::Nothing => Ok(()),
                Rest::Known => self.remove().await.map(drop),
                Rest::Unknown => self.sweep().await,
            };
            match undone {
                Err(failure) if failure.outcome() != Outcome::EndsWithSession => {
                    let error = failure.explain(Operation::Cancel);
                    if !error.is_retryable() {
                        self.leave();
                    }
                    Err(error)
                }
                _ => {
                    self.gone();
                    Ok(())
                }
            }
        }
    }
}

/// The answer to a request to replace the value of an entry.
#[derive(Debug)]
pub enum Replaced {
    /// It was replaced.
    Done,
    /// There is no such entry.
    Gone,
    /// It was not replaced, because it is this one, which the client now knows.
    Found(Vec<u8>),
}

/// Gives the entry of a hold this record, unless the hold is broken: the mark of a break must not be overwritten. Returns how the hold
/// was lost, if it was.
pub(crate) async fn rewrite(
    operation: Operation,
    claim: &impl Claim,
    record: Record,
) -> Result<Option<LossReason>, LockError> {
    let value = &record.begun(claim.since()).text()?;
    for _ in 0..MOST_ROUNDS {
        match claim.replace(value).await {
            Ok(Replaced::Done) => return Ok(None),
            // An earlier request has done it, and its answer was lost.
            Ok(Replaced::Found(found)) if found == *value => return Ok(None),
            Ok(Replaced::Found(found)) if Told::read(&found).is_broken() => {
                return Ok(Some(LossReason::Broken));
            }
            Ok(Replaced::Found(_)) => {}
            Ok(Replaced::Gone) => return Ok(Some(LossReason::Deleted)),
            Err(failure) if failure.outcome() == Outcome::EndsWithSession => {
                return Ok(Some(LossReason::SessionClosed));
            }
            Err(failure) => return Err(failure.explain(operation)),
        }
    }
    Err(LockError::new(ErrorKind::Server, operation)
        .because("another program changes the entry again and again")
        .remedy("find out who changes entries of locks"))
}

/// The claims of a client's attempts of which something may be left.
#[derive(Debug)]
pub struct Claims<C>(Mutex<HashMap<AttemptId, Vec<Arc<C>>>>);

impl<C> Default for Claims<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C: Claim> Claims<C> {
    /// Adds a claim. Call this before its first request: whatever becomes of that, the entry can be found.
    pub fn add(&self, id: AttemptId, claim: &Arc<C>) {
        self.0.lock().entry(id).or_default().push(Arc::clone(claim));
    }

    /// Returns the claim of an earlier call for the same attempt, in a session that is not over.
    pub fn living(&self, id: AttemptId) -> Option<Arc<C>> {
        self.0.lock().get(&id)?.iter().find(|claim| !claim.is_over()).cloned()
    }

    /// Returns all claims of an attempt.
    pub fn all(&self, id: AttemptId) -> Vec<Arc<C>> {
        self.0.lock().get(&id).cloned().unwrap_or_default()
    }

    /// Drops an attempt's claims.
    pub fn forget(&self, id: AttemptId) {
        let forgotten = self.0.lock().remove(&id);
        // Outside of the mutex: a claim may do something when it is dropped.
        drop(forgotten);
    }
}
