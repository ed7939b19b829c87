//! One attempt to acquire a lock: granted at once, or after waiting in the line.
//!
//! One transaction creates the attempt's key and reads the line: a free lock costs one round trip. A waiter then watches all entries
//! of the lock, and needs no further request when its turn comes. Behind a long line it watches only the nearest that is in its way,
//! and reads the line when that one goes: otherwise each release would tell each waiter.
//!
//! A try does not create a key unless it gets the lock with it: its transaction has the condition that the line is still as the
//! client has last seen it; empty, at first.

use std::sync::Arc;

use lock_core::{AcquireRequest, FencingToken, Grant, HolderId, LockError, Mode, Operation, Term, Wait};

use crate::backend::{EtcdBackend, participant};
use crate::claim::{BY_CREATION, Claim, FALLING};
use crate::failure::{Failure, Outcome, nonsense};
use crate::hold::Lease;
use crate::line::{Entry, Standing, View, standing};
use crate::messages::{Compare, Event, KeyValue, Range, RangeAnswer};
use crate::record::{Record, Told};
use crate::watches::Watching;

/// The longest line whose waiters watch all of it.
const SHORT_LINE: usize = 100;

/// How often the line may change while a try looks at it.
const MOST_ROUNDS: usize = 100;

/// The kind of an event that says that a key is gone.
const DELETION: i32 = 1;

pub(crate) struct Attempt<'a> {
    pub(crate) backend: &'a EtcdBackend,
    pub(crate) request: &'a AcquireRequest,
    pub(crate) claim: Arc<Claim>,
}

/// What an attempt has come to.
enum Outlook {
    Granted(Grant<Lease>),
    /// Its place is gone.
    Lost,
    Waits,
}

impl Attempt<'_> {
    pub(crate) async fn make(&self) -> Result<Option<Grant<Lease>>, LockError> {
        if self.request.wait() == Wait::Try {
            return Box::pin(self.try_once()).await;
        }
        let mut view = self.enter().await?;
        match self.look_at(&view).await {
            Ok(Outlook::Granted(grant)) => Ok(Some(grant)),
            Ok(Outlook::Lost) => Ok(None),
            // What a free lock does not need is boxed: it would make the future several times as large.
            Ok(Outlook::Waits) => Box::pin(self.wait(&mut view)).await,
            Err(failure) => Err(failure.explain(Operation::Acquire)),
        }
    }

    fn is_exclusive(&self) -> bool {
        self.request.mode() == Mode::Exclusive
    }

    /// How many entries one answer has at most; zero for all. Only an exclusive attempt does not need all that are before it.
    fn limit(&self) -> i64 {
        if self.is_exclusive() { i64::try_from(SHORT_LINE + 1).unwrap_or(0) } else { 0 }
    }

    fn value(&self) -> Result<Vec<u8>, LockError> {
        let margin = self.backend.link.context.abort_margin();
        Record::new(self.request.holder(), self.request.mode(), margin)?.text()
    }

    /// Creates the key, or finds that of an earlier call, and reads the line.
    async fn enter(&self) -> Result<View, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let condition = Compare::created_by(&self.claim.key, 0);
        let answer = self.claim.create(condition, self.value()?, self.limit()).await.map_err(explained)?;
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

    async fn try_once(&self) -> Result<Option<Grant<Lease>>, LockError> {
        let explained = |failure: Failure| failure.explain(Operation::Acquire);
        let value = self.value()?;
        let (start, end) = (self.claim.directory.start(), self.claim.directory.end());
        let mut view = View::default();
        for _ in 0..MOST_ROUNDS {
            if self.claim.place().is_none() {
                let told = Told::read(value.clone());
                view.entries.push(Entry { key: self.claim.key.clone(), place: i64::MAX, changed: 0, told });
            }
            if standing(&view.entries, &self.claim.key) != Standing::Holds {
                self.look_at(&view).await.map_err(explained)?;
                self.claim.undo().await?;
                return Ok(None);
            }
            if self.claim.place().is_some() {
                return match self.look_at(&view).await.map_err(explained)? {
                    Outlook::Granted(grant) => Ok(Some(grant)),
                    Outlook::Lost | Outlook::Waits => Ok(None),
                };
            }
            let condition = Compare::unchanged_since(start, &end, view.revision);
            let answer =
                self.claim.create(condition, value.clone(), self.limit()).await.map_err(explained)?;
            view = view_of(answer.range());
            self.find_own(&view);
        }
        Err(nonsense(Operation::Acquire, "other clients change the line again and again").retryable())
    }

    /// Waits until nothing is in the way any more. None if the place is lost.
    async fn wait(&self, view: &mut View) -> Result<Option<Grant<Lease>>, LockError> {
        loop {
            let mut failure = match self.look_at(view).await {
                Ok(Outlook::Granted(grant)) => return Ok(Some(grant)),
                Ok(Outlook::Lost) => return Ok(None),
                Ok(Outlook::Waits) => {
                    self.request.queued();
                    match self.until_changed(view).await {
                        Ok(()) => continue,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            loop {
                if self.recover(failure).await? == Recovered::WithoutPlace {
                    return Ok(None);
                }
                match self.look().await {
                    Ok(now) => break *view = now,
                    Err(again) => failure = again,
                }
            }
        }
    }

    /// Reports who holds the lock to an attempt that may end without it.
    fn name_holder(&self, holder: &Entry) {
        if self.request.wait() != Wait::Forever {
            self.request.held_by(participant(holder));
        }
    }

    /// What to do in this line.
    async fn look_at(&self, view: &View) -> Result<Outlook, Failure> {
        match standing(&view.entries, &self.claim.key) {
            Standing::Holds => self.grant().await,
            Standing::Gone => Ok(Outlook::Lost),
            Standing::Waits { first, .. } => {
                self.name_holder(first);
                Ok(Outlook::Waits)
            }
            Standing::OtherNumber(is) => {
                let of = match self.request.mode() {
                    Mode::Permits { of, .. } => of.get(),
                    _ => 0,
                };
                Err(Failure::Refused(LockError::other_permits(self.request.name(), of, is)))
            }
            Standing::Newer(entry) => Err(Failure::Refused(newer(entry))),
        }
    }

    /// Waits until the attempt has to do something else than wait: until nothing is in its way, or the line has been read again.
    async fn until_changed(&self, view: &mut View) -> Result<(), Failure> {
        let (connection, _) = self.backend.link.now()?;
        let (directory, from) = (&self.claim.directory, view.revision + 1);
        let nearest = match standing(&view.entries, &self.claim.key) {
            Standing::Waits { nearest, .. } if self.watches_one(view) => Some(&nearest.key),
            _ => None,
        };
        let is_alone = nearest.is_some();
        let mut watching = match nearest {
            Some(nearest) => connection.watch(nearest, "", from),
            None => connection.watch(directory.start(), &directory.end(), from),
        };
        drop(connection);
        while let Some(events) = self.woken(&mut watching).await.filter(|_| !is_alone) {
            // All of them, and only then a look: the own key may have gone with those before it.
            if note(view, events) {
                match standing(&view.entries, &self.claim.key) {
                    Standing::Waits { first, .. } => self.name_holder(first),
                    _ => return Ok(()),
                }
            }
        }
        *view = self.look().await?;
        Ok(())
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

    /// After a failed request, waits until the next one may succeed. Returns an error for a failure that waiting cannot cure.
    async fn recover(&self, failure: Failure) -> Result<Recovered, LockError> {
        let outcome = failure.outcome();
        let error = failure.explain(Operation::Acquire);
        match outcome {
            Outcome::EndsWithLease => return Ok(Recovered::WithoutPlace),
            Outcome::Refused => return Err(error),
            Outcome::Postponed | Outcome::Unknown => {}
        }
        self.request.unreachable(error);
        let clock = self.backend.link.context.clock();
        // A server that answers with errors is asked again after a while.
        clock.sleep_until(clock.now().plus(self.backend.link.timeout / 16)).await;
        let found = self.backend.link.in_contact().await;
        let (_, session) = found.map_err(|failure| failure.explain(Operation::Acquire))?;
        let is_same = session.lease == self.claim.session.lease;
        Ok(if is_same { Recovered::WithPlace } else { Recovered::WithoutPlace })
    }

    /// Nothing is in the way. Makes sure that the lease lasts: its end would be the end of the key.
    async fn grant(&self) -> Result<Outlook, Failure> {
        let (claim, backend) = (&self.claim, self.backend);
        let session = &claim.session;
        let Some(place) = claim.place() else { return Ok(Outlook::Lost) };
        if !session.is_fresh() {
            backend.link.beat(session).await?;
        }
        let lease = Lease::new(backend, self.request, Arc::clone(claim), place);
        let term = Term::Leased { anchor: session.anchor(), length: session.ttl };
        let grant = Grant::new(lease, session.group, term).with_holder(HolderId::new(claim.name()));
        Ok(Outlook::Granted(grant.with_token(FencingToken::new(place.unsigned_abs()))))
    }
}

/// Whether an attempt still has its place when there is contact again.
#[derive(PartialEq)]
enum Recovered {
    WithPlace,
    WithoutPlace,
}

/// Notes events. Returns whether one is about an entry of the view.
fn note(view: &mut View, events: Vec<Event>) -> bool {
    let mut is_news = false;
    for Event { kind, entry } in events {
        let Some(entry) = entry else { continue };
        is_news |= if kind == DELETION {
            view.remove(&String::from_utf8_lossy(&entry.key))
        } else {
            view.change(entry_of(entry))
        };
    }
    is_news
}

pub(crate) fn entry_of(found: KeyValue) -> Entry {
    Entry {
        key: String::from_utf8_lossy(&found.key).into_owned(),
        place: found.created,
        changed: found.changed,
        told: Told::read(found.value),
    }
}

pub(crate) fn view_of(answer: RangeAnswer) -> View {
    View {
        revision: answer.header.map_or(0, |header| header.revision),
        entries: answer.found.into_iter().map(entry_of).collect(),
        is_partial: answer.has_more,
    }
}

pub(crate) fn newer(entry: &Entry) -> LockError {
    LockError::new(lock_core::ErrorKind::Unsupported, Operation::Acquire)
        .because(format!("{:?} comes from a newer version of distlock", entry.key))
        .remedy("update this program")
}
