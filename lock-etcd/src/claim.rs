//! What the client knows about the key of an attempt, from before the first request until certainly nothing is left.
//!
//! **A key belongs to one attempt**: its name ends with the attempt's id. A request that arrives late can so only concern its own
//! attempt. While it is unknown whether a request to create the key may still arrive, the removal also leaves a tombstone, and the
//! creation has the condition that there is none. Tombstones have the client's lease, and end with it.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{AttemptId, FencingToken, GroupId, HolderId, LossReason, Term};
use lock_entries::{Claim, Failed, Granted, Outcome, Replaced, Told, Traces};

use crate::failure::Failure;
use crate::link::Link;
use crate::messages::{
    BY_CREATION, Compare, DELETION, Put, RISING, Range, Step, Txn, TxnAnswer, WatchCreate,
};
use crate::session::Session;

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

    /// All entries from now on.
    pub(crate) fn watch(&self) -> WatchCreate {
        WatchCreate { end: self.end(), ..WatchCreate::of(&self.0, 0) }
    }

    /// All entries in their order.
    pub(crate) fn range(&self) -> Range {
        Range { end: self.end(), order: RISING, order_by: BY_CREATION, ..Range::of(&self.0) }
    }
}

/// The pause after a failure before the next try.
const PAUSE: Duration = Duration::from_millis(200);

/// One attempt under one lease.
pub(crate) struct KeyClaim {
    pub(crate) link: Arc<Link>,
    pub(crate) session: Arc<Session>,
    pub(crate) directory: Directory,
    pub(crate) key: String,
    tombstone: String,
    since: u64,
    /// The place of the key: the revision that created it.
    traces: Traces<i64>,
    /// The revision of the last change of the key that the client knows.
    changed: AtomicI64,
}

impl KeyClaim {
    pub(crate) fn new(link: Arc<Link>, session: Arc<Session>, directory: Directory, id: AttemptId) -> Self {
        let name = format!("{:x}-{id}", session.lease);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            key: format!("{}{name}", directory.start()),
            tombstone: link.options.special("undone", &name),
            link,
            session,
            directory,
            since: since.as_millis().try_into().unwrap_or(0),
            traces: Traces::default(),
            changed: AtomicI64::new(0),
        }
    }

    /// The name of the key in its directory.
    pub(crate) fn name(&self) -> &str {
        self.key.get(self.directory.start().len()..).unwrap_or_default()
    }

    /// The revision that created the key, if it exists as far as the client knows.
    pub(crate) fn place(&self) -> Option<i64> {
        self.traces.entry()
    }

    pub(crate) fn made(&self, place: i64) {
        self.traces.made(place);
        self.changed.fetch_max(place, Ordering::Relaxed);
    }

    /// The grant of the lock, for an attempt whose turn it is.
    pub(crate) fn granted(self: &Arc<Self>) -> Option<Granted<Self>> {
        let token = Some(FencingToken::new(self.place()?.unsigned_abs()));
        Some(Granted { claim: Arc::clone(self), name: HolderId::new(self.name()), token })
    }

    /// Creates the key with this value, if the condition holds; in any case reads in the same step, and the key itself if it is not
    /// created. Whatever becomes of the request, and if the future is dropped, the claim knows that the key may exist.
    pub(crate) async fn create(
        &self,
        condition: Compare,
        value: Vec<u8>,
        reads: Vec<Range>,
    ) -> Result<TxnAnswer, Failure> {
        self.traces.about_to_create();
        let put = Put { key: self.key.clone(), value, lease: self.session.lease, keeps_lease: false };
        let (reads, own) = (reads.into_iter().map(Step::from), Step::from(Range::of(&self.key)));
        let txn = Txn {
            conditions: vec![condition, Compare::created_by(&self.tombstone, 0)],
            then: [put.into()].into_iter().chain(reads.clone()).collect(),
            otherwise: reads.chain([own]).collect(),
        };
        let answer = self.ask(txn).await;
        match &answer {
            Ok(answer) if answer.held => self.made(answer.revision()),
            Ok(_) => self.traces.created_nothing(),
            Err(failure) if failure.outcome() != Outcome::Unknown => self.traces.created_nothing(),
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

    fn bury(&self) -> Step {
        let lease = self.session.lease;
        Put { key: self.tombstone.clone(), value: Vec::new(), lease, keeps_lease: false }.into()
    }
}

/// Gives a key a new value, if it was last changed by this revision; reads it otherwise.
pub(crate) fn replace(key: &str, changed: i64, value: Vec<u8>) -> Txn {
    let put = Put { key: key.to_owned(), value, lease: 0, keeps_lease: true };
    Txn {
        conditions: vec![Compare::changed_by(key, changed)],
        then: vec![put.into()],
        otherwise: vec![Range::of(key).into()],
    }
}

impl Claim for KeyClaim {
    type Failure = Failure;
    type Made = i64;

    fn traces(&self) -> &Traces<i64> {
        &self.traces
    }

    fn is_over(&self) -> bool {
        self.session.is_over()
    }

    fn group(&self) -> GroupId {
        self.session.group
    }

    fn term(&self) -> Term {
        Term::Leased { anchor: self.session.anchor(), length: self.session.ttl }
    }

    fn since(&self) -> u64 {
        self.since
    }

    async fn remove(&self) -> Result<bool, Failure> {
        let Some(place) = self.place() else { return Ok(false) };
        let mut txn = Txn {
            conditions: vec![Compare::created_by(&self.key, place)],
            then: vec![Step::delete(&self.key)],
            otherwise: Vec::new(),
        };
        if self.traces.is_doubtful() {
            txn.then.push(self.bury());
            // Another program may have deleted the key, and a late request created it again: at another place it is no hold.
            txn.otherwise.clone_from(&txn.then);
        }
        let was_there = self.ask(txn).await?.held;
        self.gone();
        Ok(was_there)
    }

    async fn sweep(&self) -> Result<(), Failure> {
        let then = vec![Step::delete(&self.key), self.bury()];
        self.ask(Txn { then, ..Txn::default() }).await.map(drop)
    }

    async fn replace(&self, value: &[u8]) -> Result<Replaced, Failure> {
        let Some(place) = self.place() else { return Ok(Replaced::Gone) };
        let changed = self.changed.load(Ordering::Relaxed);
        let answer = self.ask(replace(&self.key, changed, value.to_vec())).await?;
        if answer.held {
            self.changed.store(answer.revision(), Ordering::Relaxed);
            return Ok(Replaced::Done);
        }
        let found = answer.range().found.pop().filter(|found| found.created == place);
        let Some(found) = found else { return Ok(Replaced::Gone) };
        // The mark of a break is news for the watch as well.
        if !Told::read(&found.value).is_broken() {
            self.changed.store(found.changed, Ordering::Relaxed);
        }
        Ok(Replaced::Found(found.value))
    }

    async fn until_lost(claim: Weak<Self>) -> Option<LossReason> {
        let claim = claim.upgrade()?;
        let clock = claim.link.context.clock();
        // Up to there the key is known to exist.
        let mut from = claim.changed.load(Ordering::Relaxed) + 1;
        loop {
            let (connection, session) = claim.link.in_contact().await.ok()?;
            if session.lease != claim.session.lease {
                return None;
            }
            let mut watching = connection.watch(WatchCreate::of(&claim.key, from));
            drop((connection, session));
            while let Some(events) = watching.next().await {
                for event in events {
                    if event.kind == DELETION {
                        return Some(LossReason::Deleted);
                    }
                    if event.entry.is_some_and(|entry| Told::read(&entry.value).is_broken()) {
                        return Some(LossReason::Broken);
                    }
                }
            }
            // Something may have been missed.
            match claim.link.ask(Range::of(&claim.key)).await {
                Ok(mut answer) => {
                    from = answer.header.revision + 1;
                    // With another place it was deleted, and created again by a late request.
                    let found = answer.found.pop().filter(|found| claim.place() == Some(found.created));
                    let Some(found) = found else { return Some(LossReason::Deleted) };
                    if Told::read(&found.value).is_broken() {
                        return Some(LossReason::Broken);
                    }
                }
                Err(Failure::Refused(_)) => return None,
                Err(failure) if failure.outcome() == Outcome::EndsWithSession => return None,
                Err(_) => clock.sleep_until(clock.now().plus(PAUSE)).await,
            }
        }
    }
}

impl std::fmt::Debug for KeyClaim {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("KeyClaim")
            .field("key", &self.key)
            .field("traces", &self.traces)
            .finish_non_exhaustive()
    }
}
