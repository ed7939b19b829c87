//! One attempt to acquire a lock: granted at once, or after waiting in the line.
//!
//! One transaction creates the attempt's key and reads the line: a free lock costs one round trip. A waiter then watches all entries
//! of the lock, and needs no further request when its turn comes. Behind a long line it watches only the nearest that is in its way,
//! and reads the line when that one goes: otherwise each release would tell each waiter.
//!
//! A try does not create a key unless it gets the lock with it: its transaction has the condition that the line is still as the
//! client has last seen it; empty, at first.

use std::sync::Arc;

use lock_core::{AcquireRequest, LockError, Mode, Operation, Wait};
use lock_entries::{Claim, Failed, Granted, Place, Record, Standing, Told, Waiting, newer, standing, wait};

use crate::backend::{EtcdEntries, participant};
use crate::claim::{BY_CREATION, FALLING, KeyClaim};
use crate::failure::{Failure, nonsense};
use crate::line::{Entry, View};
use crate::messages::{Compare, Event, KeyValue, Range, RangeAnswer};
use crate::watches::Watching;

/// The longest line whose waiters watch all of it.
const SHORT_LINE: usize = 100;

/// How often the line may change while a try looks at it.
const MOST_ROUNDS: usize = 100;

/// The kind of an event that says that a key is gone.
const DELETION: i32 = 1;

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
        if self.request.wait() == Wait::Try {
            return Box::pin(self.try_once()).await;
        }
        let view = self.enter().await?;
        let place = match self.look_at(&view).await {
            Ok(Some(place)) => place,
            // What a free lock does not need is boxed: it would make the future several times as large.
            Ok(None) => {
                let mut waiter = Waiter { attempt: self, view, is_stale: false };
                Box::pin(wait(&mut waiter, self.request, self.backend.link.context.clock())).await?
            }
            Err(failure) => return Err(failure.explain(Operation::Acquire)),
        };
        Ok(self.claim.granted().filter(|_| place == Place::Kept))
    }

    fn is_exclusive(&self) -> bool {
        self.request.mode() == Mode::Exclusive
    }

    /// How many entries one answer has at most; zero for all. Only an exclusive attempt does not need all that are before it.
    fn limit(&self) -> i64 {
        if self.is_exclusive() { i64::try_from(SHORT_LINE + 1).unwrap_or(0) } else { 0 }
    }

    /// Creates the key, or finds that of an earlier call, and reads the line.
    async fn enter(&self) -> Result<View, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let condition = Compare::created_by(&self.claim.key, 0);
        let answer = self
            .claim
            .create(condition, Record::of(self.request, &self.backend.link.context)?.text()?, self.limit())
            .await
            .map_err(explained)?;
        let view = view_of(answer.range());
        self.find_own(&view);
        if !view.is_partial {
            return Ok(view);
        }
        if self.claim.place().is_none() {
            let own = Range { key: self.claim.key.clone(), ..Range::default() };
            self.find_own(&view_of(self.backend.link.ask(own).await.map_err(explained)?));
        }
        self.look().await.map_err(explained)
    }

    /// Notes if the attempt's key is there.
    fn find_own(&self, view: &View) {
        if let Some(own) = view.entries.iter().find(|entry| entry.key == self.claim.key) {
            self.claim.made(own.place);
        }
    }

    async fn try_once(&self) -> Result<Option<Granted<KeyClaim>>, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let value = Record::of(self.request, &self.backend.link.context)?.text()?;
        let (start, end) = (self.claim.directory.start(), self.claim.directory.end());
        let mut view = View::default();
        for _ in 0..MOST_ROUNDS {
            if self.claim.place().is_none() {
                let told = Told::read(&value);
                view.entries.push(Entry { key: self.claim.key.clone(), place: i64::MAX, changed: 0, told });
            }
            if standing(&view.entries, &self.claim.key) != Standing::Holds {
                self.look_at(&view).await.map_err(explained)?;
                self.claim.undo().await?;
                return Ok(None);
            }
            if self.claim.place().is_some() {
                let place = self.look_at(&view).await.map_err(explained)?;
                return Ok(self.claim.granted().filter(|_| place == Some(Place::Kept)));
            }
            let condition = Compare::unchanged_since(start, &end, view.revision);
            let answer =
                self.claim.create(condition, value.clone(), self.limit()).await.map_err(explained)?;
            view = view_of(answer.range());
            self.find_own(&view);
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
        let is_long = view.is_partial || view.entries.len() > SHORT_LINE;
        is_long && !matches!(self.request.mode(), Mode::Permits { .. })
    }

    /// The next events; none when the line has to be read again: the watch has ended, or the core wants to know how things stand.
    async fn woken(&self, watching: &mut Watching) -> Option<Vec<Event>> {
        tokio::select! {
            biased;
            events = watching.next() => events,
            () = self.request.asked() => None,
        }
    }

    /// Reads the line up to the attempt's own entry.
    async fn look(&self) -> Result<View, Failure> {
        let place = self.claim.place().unwrap_or(0);
        let nearest_first = Range {
            order: FALLING,
            order_by: BY_CREATION,
            created_by: place,
            ..self.claim.directory.range(self.limit())
        };
        let mut view = view_of(self.backend.link.ask(nearest_first).await?);
        view.entries.reverse();
        Ok(view)
    }
}

impl Waiting for Waiter<'_> {
    type Failure = Failure;

    async fn look(&mut self) -> Result<Option<Place>, Failure> {
        if self.is_stale {
            self.view = self.attempt.look().await?;
            self.is_stale = false;
        }
        self.attempt.look_at(&self.view).await
    }

    /// Waits until nothing is in the way, or the line has to be read again. The watch begins now and the line is read behind it: of
    /// what happened before, a server reports only every tenth of a second.
    async fn until_changed(&mut self) -> Result<Place, Failure> {
        let Self { attempt, view, is_stale } = self;
        let (connection, _) = attempt.backend.link.now()?;
        let claim = &attempt.claim;
        let one = match standing(&view.entries, &claim.key) {
            Standing::Waits { nearest, .. } if attempt.watches_one(view) => Some(nearest.key.clone()),
            _ => None,
        };
        let mut watching = match &one {
            Some(nearest) => connection.watch(nearest, "", 0),
            None => connection.watch(claim.directory.start(), &claim.directory.end(), 0),
        };
        drop(connection);
        *is_stale = true;
        // The first answer says that it watches.
        if attempt.woken(&mut watching).await.is_none() {
            return Ok(Place::Kept);
        }
        *view = attempt.look().await?;
        loop {
            match standing(&view.entries, &claim.key) {
                Standing::Waits { before, nearest, .. }
                    if one.as_ref().is_none_or(|one| *one == nearest.key) =>
                {
                    attempt.name_holder(before);
                }
                _ => {
                    *is_stale = false;
                    return Ok(Place::Kept);
                }
            }
            // All of them, and only then a look: the own key may have gone with those before it.
            match attempt.woken(&mut watching).await {
                Some(events) if one.is_none() => note(view, events),
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

/// Notes events that the view does not know.
fn note(view: &mut View, events: Vec<Event>) {
    for Event { kind, entry } in events {
        let Some(entry) = entry.filter(|entry| entry.changed > view.revision) else { continue };
        if kind == DELETION {
            view.remove(&String::from_utf8_lossy(&entry.key));
        } else {
            view.change(entry_of(&entry));
        }
    }
}

fn entry_of(found: &KeyValue) -> Entry {
    Entry {
        key: String::from_utf8_lossy(&found.key).into_owned(),
        place: found.created,
        changed: found.changed,
        told: Told::read(&found.value),
    }
}

pub(crate) fn view_of(answer: RangeAnswer) -> View {
    View {
        revision: answer.header.revision,
        entries: answer.found.into_iter().map(|found| entry_of(&found)).collect(),
        is_partial: answer.has_more,
    }
}
