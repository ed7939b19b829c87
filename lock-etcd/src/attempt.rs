//! One attempt to acquire a lock: granted at once, or after waiting in the line.
//!
//! One transaction creates the attempt's key and reads the line: a free lock costs one round trip. A waiter then watches all entries
//! of the lock, and needs no further request when its turn comes. Behind a long line it watches only the nearest that is in its way,
//! and reads again when that one goes: otherwise each release would tell each waiter.
//!
//! A try does not create a key unless it gets the lock with it: its transaction has the condition that the line is still as the
//! client has last seen it; empty, at first.

use std::sync::Arc;

use lock_core::{AcquireRequest, LockError, Mode, Operation, Wait};
use lock_entries::{Claim, Failed, Granted, Place, Record, Standing, Told, Waiting, newer, standing, wait};

use crate::backend::{EtcdEntries, participant};
use crate::claim::KeyClaim;
use crate::failure::{Failure, nonsense};
use crate::line::{Entry, View};
use crate::messages::{Compare, Event, FALLING, NO_PUTS, Range, Step, Txn, WatchCreate};
use crate::watches::Watching;

/// The longest line whose waiters watch all of it.
const SHORT_LINE: i64 = 100;

/// How often the line may change while a try looks at it.
const MOST_ROUNDS: usize = 100;

pub(crate) struct Attempt<'a> {
    pub(crate) backend: &'a EtcdEntries,
    pub(crate) request: &'a AcquireRequest,
    pub(crate) claim: Arc<KeyClaim>,
}

/// An attempt that waits, and what it knows of the line.
struct Waiter<'a> {
    attempt: &'a Attempt<'a>,
    view: View,
    /// Whether something may have been missed since the view.
    is_stale: bool,
}

impl Attempt<'_> {
    pub(crate) async fn make(&self) -> Result<Option<Granted<KeyClaim>>, LockError> {
        let record = Record::of(self.request, &self.backend.link.context)?;
        let value = record.begun(self.claim.since()).text()?;
        if self.request.wait() == Wait::Try {
            return Box::pin(self.try_once(value)).await;
        }
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let view = self.enter(value).await.map_err(explained)?;
        let place = if let Some(place) = self.look_at(&view).await.map_err(explained)? {
            place
        } else {
            let mut waiter = Waiter { attempt: self, view, is_stale: false };
            // What a free lock does not need is boxed: it would make the future several times as large.
            Box::pin(wait(&mut waiter, self.request, self.backend.link.context.clock())).await?
        };
        Ok(self.claim.granted().filter(|_| place == Place::Kept))
    }

    /// What the attempt has to read of the line up to this place, or of all for zero, to know whether it has to wait and for whom. Before an
    /// exclusive one that is the nearest; the first holds the lock, which matters to an attempt that may end without it.
    fn reads(&self, up_to: i64) -> Vec<Range> {
        let all = self.all(up_to);
        if self.request.mode() != Mode::Exclusive {
            return vec![all];
        }
        let mut reads = vec![Range { limit: 2, order: FALLING, ..all.clone() }];
        if self.request.wait() != Wait::Forever {
            reads.push(Range { limit: 1, ..all });
        }
        reads
    }

    fn all(&self, up_to: i64) -> Range {
        Range { created_by: up_to, ..self.claim.directory.range() }
    }

    async fn read(&self, reads: Vec<Range>) -> Result<View, Failure> {
        let then = reads.into_iter().map(Step::from).collect();
        Ok(View::from(self.backend.link.ask(Txn { then, ..Txn::default() }).await?))
    }

    /// Creates the key, or finds that of an earlier call, and reads the line.
    async fn enter(&self, value: Vec<u8>) -> Result<View, Failure> {
        let condition = Compare::created_by(&self.claim.key, 0);
        let answer = self.claim.create(condition, value, self.reads(0)).await?;
        let (is_new, view) = (answer.held, View::from(answer));
        if is_new {
            return Ok(view);
        }
        let Some(own) = view.entries.iter().find(|entry| entry.key == self.claim.key) else {
            return Ok(View::default());
        };
        self.claim.made(own.place);
        self.read(self.reads(own.place)).await
    }

    async fn try_once(&self, value: Vec<u8>) -> Result<Option<Granted<KeyClaim>>, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let (start, end) = (self.claim.directory.start(), self.claim.directory.end());
        let mut view = View::default();
        for _ in 0..MOST_ROUNDS {
            // What would be, with its key.
            let told = Told::read(&value);
            view.entries.push(Entry { key: self.claim.key.clone(), place: i64::MAX, changed: 0, told });
            if standing(&view.entries, &self.claim.key) != Standing::Holds {
                self.look_at(&view).await.map_err(explained)?;
                self.claim.undo().await?;
                return Ok(None);
            }
            let condition = Compare::unchanged_since(start, &end, view.revision);
            let answer =
                self.claim.create(condition, value.clone(), self.reads(0)).await.map_err(explained)?;
            let is_made = answer.held;
            view = View::from(answer);
            if is_made {
                let place = self.look_at(&view).await.map_err(explained)?;
                return Ok(self.claim.granted().filter(|_| place == Some(Place::Kept)));
            }
        }
        Err(nonsense(Operation::Acquire, "other clients change the line again and again").retryable())
    }

    /// Reports who holds the lock to an attempt that may end without it.
    fn name_holder(&self, before: &[Entry]) {
        if let Some(holder) = before.first().filter(|_| self.request.wait() != Wait::Forever) {
            self.request.held_by(participant(holder));
        }
    }

    /// What the attempt may do in this line; none if it has to wait. Where nothing is in its way, it makes sure that the lease lasts: its
    /// end would be the end of the key.
    async fn look_at(&self, view: &View) -> Result<Option<Place>, Failure> {
        match standing(&view.entries, &self.claim.key) {
            Standing::Holds => {
                if !self.claim.session.is_fresh() {
                    self.backend.link.beat(&self.claim.session).await?;
                }
                Ok(Some(Place::Kept))
            }
            Standing::Gone => Ok(Some(Place::Lost)),
            Standing::Waits { before, .. } => {
                self.name_holder(before);
                Ok(None)
            }
            Standing::OtherNumber(is) => {
                let of = match self.request.mode() {
                    Mode::Permits { of, .. } => of.get(),
                    _ => 0,
                };
                Err(Failure::Refused(LockError::other_permits(self.request.name(), of, is)))
            }
            Standing::Newer(entry) => Err(Failure::Refused(newer(&entry.key))),
        }
    }

    /// Whether the line is too long to watch all of it. Permits need all that are before them.
    fn watches_one(&self, view: &View) -> bool {
        view.length > SHORT_LINE && !matches!(self.request.mode(), Mode::Permits { .. })
    }

    /// What is before an exclusive attempt stays in its way until it is deleted, and what enters behind it does not matter.
    fn ignores(&self) -> Vec<i32> {
        if self.request.mode() == Mode::Exclusive { vec![NO_PUTS] } else { Vec::new() }
    }

    /// The next events; none when the line has to be read again: the watch has ended, or the core wants to know how things stand.
    async fn woken(&self, watching: &mut Watching) -> Option<Vec<Event>> {
        tokio::select! {
            biased;
            events = watching.next() => events,
            () = self.request.asked() => None,
        }
    }
}

impl Waiting for Waiter<'_> {
    type Failure = Failure;

    async fn look(&mut self) -> Result<Option<Place>, Failure> {
        if self.is_stale {
            let reads = self.attempt.reads(self.attempt.claim.place().unwrap_or(0));
            self.view = self.attempt.read(reads).await?;
            self.is_stale = false;
        }
        self.attempt.look_at(&self.view).await
    }

    /// Waits until nothing is in the way, or the line has to be read again. The watch begins now, and what it watches is read behind it: of
    /// what happened before, a server reports only every tenth of a second.
    async fn until_changed(&mut self) -> Result<Place, Failure> {
        let Self { attempt, view, is_stale } = self;
        let (connection, _) = attempt.backend.link.now()?;
        let claim = &attempt.claim;
        let one = match standing(&view.entries, &claim.key) {
            Standing::Waits { nearest, .. } if attempt.watches_one(view) => Some(nearest.clone()),
            _ => None,
        };
        let watched = match &one {
            Some(nearest) => WatchCreate::of(&nearest.key, 0),
            None => claim.directory.watch(),
        };
        let mut watching = connection.watch(WatchCreate { filters: attempt.ignores(), ..watched });
        drop(connection);
        *is_stale = true;
        // The first answer says that it watches.
        if attempt.woken(&mut watching).await.is_none() {
            return Ok(Place::Kept);
        }
        if let Some(nearest) = &one {
            let found = attempt.backend.link.ask(Range::of(&nearest.key)).await?.found;
            if found.iter().all(|found| found.changed != nearest.changed) {
                return Ok(Place::Kept);
            }
        } else {
            *view = attempt.read(vec![attempt.all(claim.place().unwrap_or(0))]).await?;
        }
        loop {
            match standing(&view.entries, &claim.key) {
                Standing::Waits { before, nearest, .. } if one.as_ref().is_none_or(|one| one == nearest) => {
                    attempt.name_holder(before);
                }
                _ => {
                    *is_stale = false;
                    return Ok(Place::Kept);
                }
            }
            // All of them, and only then a look: the own key may have gone with those before it.
            match attempt.woken(&mut watching).await {
                Some(events) if one.is_none() => view.note(events),
                _ => return Ok(Place::Kept),
            }
        }
    }

    async fn in_contact(&mut self) -> Result<Place, LockError> {
        self.is_stale = true;
        let found = self.attempt.backend.link.in_contact().await;
        let (_, session) = found.map_err(|failure| failure.explain(Operation::Acquire))?;
        let is_same = session.lease == self.attempt.claim.session.lease;
        Ok(if is_same { Place::Kept } else { Place::Lost })
    }
}
