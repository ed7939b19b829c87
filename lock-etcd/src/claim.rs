//! What the client knows about the key of an attempt, from before the first request until certainly nothing is left.
//!
//! **A key belongs to one attempt**: its name ends with the attempt's id. A request that arrives late can so only concern its own
//! attempt. While it is unknown whether a request to create the key may still arrive, the removal also leaves a tombstone, and the
//! creation has the condition that there is none. Tombstones have the client's lease, and end with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use lock_core::spi::Mutex;
use lock_core::{AttemptId, LockError, Operation};

use crate::failure::{Failure, Outcome};
use crate::link::Link;
use crate::messages::{Compare, Put, Range, Step, Txn, TxnAnswer};
use crate::session::Session;

/// What is sent to have everything in a range: in the order of creation.
pub(crate) const RISING: i32 = 1;
pub(crate) const FALLING: i32 = 2;
pub(crate) const BY_CREATION: i32 = 2;

/// The keys of a lock, or of a semaphore: those that begin with this, which ends with a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Directory(String);

impl Directory {
    pub(crate) fn new(path: String) -> Self {
        Self(path + "/")
    }

    pub(crate) fn start(&self) -> &str {
        &self.0
    }

    /// The first key after those of the directory.
    pub(crate) fn end(&self) -> String {
        let mut end = self.0.clone();
        end.pop();
        end.push('0'); // what follows the slash
        end
    }

    /// All entries in their order, or this many of the first.
    pub(crate) fn range(&self, limit: i64) -> Range {
        Range {
            key: self.0.clone(),
            end: self.end(),
            limit,
            order: RISING,
            order_by: BY_CREATION,
            ..Range::default()
        }
    }
}

/// The state of an attempt's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    /// The client has not sent a request, or the last one has certainly created nothing.
    None,
    /// The client has sent a request to create it, with an unknown outcome.
    Perhaps,
    /// It was created by this revision, and exists unless another program has removed it.
    Made(i64),
    /// It is gone, and does not appear any more.
    Gone,
}

/// One attempt under one lease.
pub(crate) struct Claim {
    pub(crate) link: Arc<Link>,
    pub(crate) session: Arc<Session>,
    pub(crate) directory: Directory,
    pub(crate) key: String,
    tombstone: String,
    state: Mutex<State>,
    /// The revision of the last change of the key that the client knows.
    changed: AtomicI64,
}

#[derive(Debug)]
struct State {
    key: Key,
    /// Whether a request with an unknown outcome may still arrive.
    is_doubtful: bool,
}

impl Claim {
    pub(crate) fn new(link: Arc<Link>, session: Arc<Session>, directory: Directory, id: AttemptId) -> Self {
        let name = format!("{:x}-{id}", session.lease);
        Self {
            key: format!("{}{name}", directory.start()),
            tombstone: link.options.special("undone", &name),
            link,
            session,
            directory,
            state: Mutex::new(State { key: Key::None, is_doubtful: false }),
            changed: AtomicI64::new(0),
        }
    }

    /// The name of the key in its directory.
    pub(crate) fn name(&self) -> &str {
        self.key.get(self.directory.start().len()..).unwrap_or_default()
    }

    /// The revision that created the key, if it exists as far as the client knows.
    pub(crate) fn place(&self) -> Option<i64> {
        match self.state.lock().key {
            Key::Made(place) => Some(place),
            _ => None,
        }
    }

    pub(crate) fn made(&self, place: i64) {
        self.state.lock().key = Key::Made(place);
        self.changed.fetch_max(place, Ordering::Relaxed);
    }

    pub(crate) fn changed(&self) -> i64 {
        self.changed.load(Ordering::Relaxed)
    }

    pub(crate) fn has_changed(&self, revision: i64) {
        self.changed.store(revision, Ordering::Relaxed);
    }

    /// Creates the key with this value, if the condition holds; in any case reads the directory in the same step, in its order and up
    /// to `limit` entries. Whatever becomes of the request, and if the future is dropped, the claim knows that the key may exist.
    pub(crate) async fn create(
        &self,
        condition: Compare,
        value: Vec<u8>,
        limit: i64,
    ) -> Result<TxnAnswer, Failure> {
        let before = {
            let mut state = self.state.lock();
            state.is_doubtful |= state.key == Key::Perhaps;
            std::mem::replace(&mut state.key, Key::Perhaps)
        };
        let put = Put { key: self.key.clone(), value, lease: self.session.lease, keeps_lease: false };
        let read = Step::from(self.directory.range(limit));
        let txn = Txn {
            conditions: vec![condition, Compare::created_by(&self.tombstone, 0)],
            then: vec![put.into(), read.clone()],
            otherwise: vec![read],
        };
        let answer = self.ask(txn).await;
        match &answer {
            Ok(answer) if answer.held => self.made(answer.revision()),
            Ok(_) => self.state.lock().key = Key::None,
            Err(failure) if failure.outcome() != Outcome::Unknown => self.state.lock().key = before,
            Err(_) => {}
        }
        answer
    }

    /// Sends a transaction, and notes if the lease turns out to be gone.
    async fn ask(&self, txn: Txn) -> Result<TxnAnswer, Failure> {
        let answer = self.link.ask(txn).await;
        if let Err(Failure::LeaseOver) = &answer {
            self.session.end();
        }
        answer
    }

    /// Removes the key, once, if it exists and has this place. Returns whether it did.
    pub(crate) async fn remove(&self) -> Result<bool, Failure> {
        let Some(place) = self.place() else { return Ok(false) };
        let is_doubtful = self.state.lock().is_doubtful;
        let mut txn = Txn {
            conditions: vec![Compare::created_by(&self.key, place)],
            then: vec![Step::delete(&self.key)],
            otherwise: Vec::new(),
        };
        if is_doubtful {
            txn.then.push(self.bury());
            // Another program may have deleted the key, and a late request created it again: at another place it is no hold.
            txn.otherwise = vec![Step::delete(&self.key), self.bury()];
        }
        let was_there = self.ask(txn).await?.held;
        self.state.lock().key = Key::Gone;
        Ok(was_there)
    }

    fn bury(&self) -> Step {
        let lease = self.session.lease;
        Put { key: self.tombstone.clone(), value: Vec::new(), lease, keeps_lease: false }.into()
    }

    /// Makes sure that nothing is left, and that nothing appears later.
    pub(crate) async fn undo(&self) -> Result<(), LockError> {
        let (key, is_doubtful) = {
            let state = self.state.lock();
            (state.key, state.is_doubtful)
        };
        let undone = match key {
            _ if self.session.is_over() => Ok(()),
            Key::Gone => Ok(()),
            Key::None if !is_doubtful => Ok(()),
            Key::Made(_) => self.remove().await.map(drop),
            Key::None | Key::Perhaps => {
                let then = vec![Step::delete(&self.key), self.bury()];
                self.ask(Txn { then, ..Txn::default() }).await.map(drop)
            }
        };
        match undone {
            // The lease took everything.
            Ok(()) | Err(Failure::LeaseOver) => {
                self.state.lock().key = Key::Gone;
                Ok(())
            }
            Err(failure) => Err(failure.explain(Operation::Cancel)),
        }
    }
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        formatter
            .debug_struct("Claim")
            .field("key", &self.key)
            .field("state", &*state)
            .finish_non_exhaustive()
    }
}

/// The claims of a client's attempts of which something may be left.
#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<AttemptId, Arc<Claim>>>);

impl Claims {
    pub(crate) fn add(&self, id: AttemptId, claim: &Arc<Claim>) {
        self.0.lock().insert(id, Arc::clone(claim));
    }

    pub(crate) fn of(&self, id: AttemptId) -> Option<Arc<Claim>> {
        self.0.lock().get(&id).cloned()
    }

    pub(crate) fn forget(&self, id: AttemptId) {
        self.0.lock().remove(&id);
    }
}
