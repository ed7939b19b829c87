//! A store in memory with the line of one lock. A test says when each request is carried out, and whether its answer arrives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{
    AcquireRequest, BackendContext, Breaking, Capabilities, Fairness, Fencing, FencingToken, GroupId,
    HolderId, InspectRequest, Inspection, LeaseState, LockError, LossReason, Memo, Mode, Moment, Operation,
    Participant, PermitLimits, Reach, Recall, Remembered, Term, Wait,
};
use tokio::sync::watch;

use super::NAMES;
use crate::{
    Breaks, Claim, Claims, Entries, EntriesBackend, Failed, Granted, InLine, Line, Lines, Marked, Outcome,
    Place, Record, Replaced, Shown, Standing, Told, Traces, Waiting, how_many_hold, standing, wait,
};

/// When all attempts began, in milliseconds since the epoch.
pub(super) const BEGAN: u64 = 7;

/// An entry as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub(super) name: String,
    session: u64,
    place: u64,
    version: u64,
    told: Told,
    value: Vec<u8>,
}

impl InLine for Kept {
    fn name(&self) -> &str {
        &self.name
    }

    fn mode(&self) -> Mode {
        self.told.mode()
    }

    fn is_broken(&self) -> bool {
        self.told.is_broken()
    }
}

/// What the store knows.
#[derive(Debug, Default)]
struct State {
    line: Vec<Kept>,
    /// The names of attempts that were undone.
    buried: HashSet<String>,
    over: HashSet<u64>,
    last: u64,
}

/// What the store answers: whether it did what was asked for, its last change, and the line.
#[derive(Debug, Clone)]
struct Answer {
    is_done: bool,
    last: u64,
    line: Vec<Kept>,
}

type Request = Box<dyn FnOnce(&mut State) -> Result<bool, Failure> + Send>;

#[derive(Debug, Clone, Copy)]
pub(super) enum Failure {
    Lost,
    SessionOver,
}

impl Failed for Failure {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Lost => Outcome::Unknown,
            Self::SessionOver => Outcome::EndsWithSession,
        }
    }

    fn explain(self, operation: Operation) -> LockError {
        lock_kit::no_answer(operation)
    }
}

#[derive(Clone, Default)]
pub(super) struct MemoryStore(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    /// What has not been carried out.
    open: Mutex<BTreeMap<u64, Request>>,
    answers: Mutex<HashMap<u64, Result<Answer, Failure>>>,
    sent: AtomicU64,
    sessions: AtomicU64,
    /// The last change.
    changed: watch::Sender<u64>,
    /// Requests wait until the test lets them go on.
    is_slow: Mutex<bool>,
    /// It forgets what was undone.
    is_careless: Mutex<bool>,
}

impl Inner {
    fn carry_out(&self, request: Request) -> Result<Answer, Failure> {
        let mut state = self.state.lock();
        let before = state.last;
        let is_done = request(&mut state)?;
        if *self.is_careless.lock() {
            state.buried.clear();
        }
        let answer = Answer { is_done, last: state.last, line: state.line.clone() };
        if state.last > before {
            self.changed.send_replace(state.last);
        }
        Ok(answer)
    }
}

impl State {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn find(&mut self, name: &str, place: Option<u64>) -> Option<&mut Kept> {
        let is_it = |kept: &&mut Kept| kept.name == name && place.is_none_or(|place| kept.place == place);
        self.line.iter_mut().find(is_it)
    }

    fn remove(&mut self, name: &str, place: Option<u64>) -> bool {
        let was_there = self.find(name, place).is_some();
        self.line.retain(|kept| kept.name != name || place.is_some_and(|place| kept.place != place));
        self.next();
        was_there
    }
}

impl MemoryStore {
    /// From now on, requests wait until the test carries them out, or are answered at once.
    pub(super) fn be_slow(&self, is_slow: bool) {
        *self.0.is_slow.lock() = is_slow;
    }

    /// From now on, an attempt that was undone may come back.
    pub(super) fn become_careless(&self) {
        *self.0.is_careless.lock() = true;
    }

    /// The requests that have not been carried out.
    pub(super) fn open(&self) -> Vec<u64> {
        self.0.open.lock().keys().copied().collect()
    }

    /// Carries a request out, whose answer arrives or gets lost.
    pub(super) fn carry_out(&self, number: u64, arrives: bool) {
        let Some(request) = self.0.open.lock().remove(&number) else { return };
        let answer = self.0.carry_out(request);
        if arrives {
            self.0.answers.lock().insert(number, answer);
        }
    }

    /// The client learns that the outcome is not known; the request may still be carried out.
    pub(super) fn lose(&self, number: u64) {
        self.0.answers.lock().insert(number, Err(Failure::Lost));
    }

    /// The names in the line.
    pub(super) fn names(&self) -> Vec<String> {
        self.0.state.lock().line.iter().map(|kept| kept.name.clone()).collect()
    }

    /// The names in the line that are marked as broken.
    pub(super) fn marked(&self) -> Vec<String> {
        let state = self.0.state.lock();
        state.line.iter().filter(|kept| kept.is_broken()).map(|kept| kept.name.clone()).collect()
    }

    /// Ends a session, and what it keeps.
    pub(super) fn end(&self, session: u64) {
        let end = move |state: &mut State| {
            state.over.insert(session);
            state.line.retain(|kept| kept.session != session);
            state.next();
            Ok(true)
        };
        self.0.carry_out(Box::new(end)).unwrap();
    }

    /// Deletes the entry with this name, as another program does.
    pub(super) fn delete(&self, name: &str) {
        let name = name.to_owned();
        self.0.carry_out(Box::new(move |state| Ok(state.remove(&name, None)))).unwrap();
    }

    /// Adds an entry of another program.
    pub(super) fn add_foreign(&self, name: &str) {
        let (name, value) = (name.to_owned(), b"foreign".to_vec());
        let add = move |state: &mut State| {
            let place = state.next();
            let told = Told::read(&value);
            state.line.push(Kept { name, session: 0, place, version: place, told, value });
            Ok(true)
        };
        self.0.carry_out(Box::new(add)).unwrap();
    }

    /// Gives the entry with this name another value, as another program does.
    pub(super) fn write(&self, name: &str, value: &[u8]) {
        let (name, value) = (name.to_owned(), value.to_vec());
        let write = move |state: &mut State| {
            let version = state.next();
            let found = state.find(&name, None);
            Ok(found.map(|kept| (kept.version, kept.value) = (version, value)).is_some())
        };
        self.0.carry_out(Box::new(write)).unwrap();
    }

    async fn ask(
        &self,
        request: impl FnOnce(&mut State) -> Result<bool, Failure> + Send + 'static,
    ) -> Result<Answer, Failure> {
        if !*self.0.is_slow.lock() {
            return self.0.carry_out(Box::new(request));
        }
        let number = self.0.sent.fetch_add(1, Ordering::Relaxed);
        self.0.open.lock().insert(number, Box::new(request));
        poll_fn(|_| self.0.answers.lock().remove(&number).map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn look(&self) -> Result<Answer, Failure> {
        self.ask(|_| Ok(true)).await
    }

    async fn until_changed(&self, last: u64) {
        let mut changed = self.0.changed.subscribe();
        let _ = changed.wait_for(|now| *now > last).await;
    }

    pub(super) fn client(&self, context: BackendContext) -> Result<EntriesBackend<Client>, LockError> {
        EntriesBackend::new(self.open_client(context))
    }

    pub(super) fn open_client(&self, context: BackendContext) -> Client {
        let session = self.0.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        Client {
            store: self.clone(),
            session,
            opened: context.clock().now(),
            context,
            capabilities: capabilities(),
        }
    }
}

pub(super) fn capabilities() -> Capabilities {
    Capabilities::new("memory store", Reach::Network, NAMES)
        .with_fencing(Fencing::Durable)
        .with_fairness(Fairness::Fifo)
        .with_inspection(Inspection::HolderAndQueue)
        .with_breaking(Breaking::Supported)
        .with_describing()
        .with_shared()
        .with_permits(PermitLimits::NONE)
}

pub(super) struct Client {
    store: MemoryStore,
    pub(super) session: u64,
    opened: Moment,
    context: BackendContext,
    capabilities: Capabilities,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

pub(super) struct MemoryClaim {
    store: MemoryStore,
    session: u64,
    opened: Moment,
    name: String,
    traces: Traces<u64>,
    version: AtomicU64,
}

impl fmt::Debug for MemoryClaim {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("MemoryClaim").field("name", &self.name).finish_non_exhaustive()
    }
}

impl MemoryClaim {
    async fn create(&self, value: Vec<u8>) -> Result<Answer, Failure> {
        self.traces.about_to_create();
        let (session, name) = (self.session, self.name.clone());
        let create = move |state: &mut State| {
            if state.over.contains(&session) {
                return Err(Failure::SessionOver);
            }
            let is_new = !state.buried.contains(&name) && state.find(&name, None).is_none();
            if is_new {
                let place = state.next();
                let told = Told::read(&value);
                state.line.push(Kept { name, session, place, version: place, told, value });
            }
            Ok(is_new)
        };
        let answer = self.store.ask(create).await;
        match &answer {
            Ok(_) => self.traces.created_nothing(),
            Err(failure) if failure.outcome() != Outcome::Unknown => self.traces.created_nothing(),
            Err(_) => {}
        }
        if let Ok(answer) = &answer {
            self.find_own(&answer.line);
        }
        answer
    }

    fn find_own(&self, line: &[Kept]) {
        if let Some(own) = line.iter().find(|kept| kept.name == self.name) {
            self.traces.made(own.place);
            self.version.store(own.version, Ordering::Relaxed);
        }
    }

    async fn delete(&self, place: Option<u64>, is_last: bool) -> Result<bool, Failure> {
        let (session, name) = (self.session, self.name.clone());
        let delete = move |state: &mut State| {
            if state.over.contains(&session) {
                return Err(Failure::SessionOver);
            }
            let was_there = state.remove(&name, place);
            if is_last {
                state.remove(&name, None);
                state.buried.insert(name);
            }
            Ok(was_there)
        };
        self.store.ask(delete).await.map(|answer| answer.is_done)
    }

    fn granted(self: &Arc<Self>) -> Option<Granted<Self>> {
        let token = Some(FencingToken::new(self.traces.entry()?));
        Some(Granted { claim: Arc::clone(self), name: HolderId::new(&*self.name), token })
    }
}

impl Claim for MemoryClaim {
    type Failure = Failure;
    type Made = u64;

    fn traces(&self) -> &Traces<u64> {
        &self.traces
    }

    fn is_over(&self) -> bool {
        self.store.0.state.lock().over.contains(&self.session)
    }

    fn group(&self) -> GroupId {
        GroupId::new(self.session)
    }

    fn term(&self) -> Term {
        Term::Leased { anchor: self.opened, length: Duration::from_secs(3600) }
    }

    fn since(&self) -> u64 {
        BEGAN
    }

    async fn remove(&self) -> Result<bool, Failure> {
        let Some(place) = self.traces.entry() else { return Ok(false) };
        let was_there = self.delete(Some(place), self.traces.is_doubtful()).await?;
        self.gone();
        Ok(was_there)
    }

    async fn sweep(&self) -> Result<(), Failure> {
        self.delete(None, true).await.map(drop)
    }

    async fn replace(&self, value: &[u8]) -> Result<Replaced, Failure> {
        let Some(place) = self.traces.entry() else { return Ok(Replaced::Gone) };
        let (name, value, version) =
            (self.name.clone(), value.to_vec(), self.version.load(Ordering::Relaxed));
        let replace = move |state: &mut State| {
            let next = state.next();
            let found = state.find(&name, Some(place)).filter(|found| found.version == version);
            Ok(found
                .map(|found| (found.version, found.told, found.value) = (next, Told::read(&value), value))
                .is_some())
        };
        let answer = self.store.ask(replace).await?;
        let Some(found) = answer.line.into_iter().find(|kept| kept.place == place) else {
            return Ok(Replaced::Gone);
        };
        if answer.is_done || !found.told.is_broken() {
            self.version.store(found.version, Ordering::Relaxed);
        }
        Ok(if answer.is_done { Replaced::Done } else { Replaced::Found(found.value) })
    }

    async fn until_lost(claim: Weak<Self>) -> Option<LossReason> {
        loop {
            let claim = claim.upgrade()?;
            let place = claim.traces.entry()?;
            let answer = claim.store.look().await.ok()?;
            match answer.line.iter().find(|kept| kept.place == place) {
                _ if claim.is_over() => return None,
                None => return Some(LossReason::Deleted),
                Some(found) if found.told.is_broken() => return Some(LossReason::Broken),
                Some(_) => claim.store.until_changed(answer.last).await,
            }
        }
    }
}

struct Waiter<'a> {
    claim: &'a MemoryClaim,
    answer: Option<Answer>,
}

impl Waiting for Waiter<'_> {
    type Failure = Failure;

    async fn look(&mut self) -> Result<Option<Place>, Failure> {
        let answer = match self.answer.take() {
            Some(answer) => answer,
            None => self.claim.store.look().await?,
        };
        Ok(match standing(&self.answer.insert(answer).line, &self.claim.name) {
            Standing::Holds => Some(Place::Kept),
            Standing::Waits { .. } => None,
            Standing::Gone | Standing::OtherNumber(_) | Standing::Newer(_) => Some(Place::Lost),
        })
    }

    async fn until_changed(&mut self) -> Result<Place, Failure> {
        let last = self.answer.take().map_or(0, |answer| answer.last);
        self.claim.store.until_changed(last).await;
        Ok(Place::Kept)
    }

    async fn in_contact(&mut self) -> Result<Place, LockError> {
        self.answer = None;
        Ok(if self.claim.is_over() { Place::Lost } else { Place::Kept })
    }
}

impl Entries for Client {
    type Claim = MemoryClaim;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn context(&self) -> &BackendContext {
        &self.context
    }

    async fn acquire(
        &self,
        request: &AcquireRequest,
        claims: &Claims<MemoryClaim>,
    ) -> Result<Option<Granted<MemoryClaim>>, LockError> {
        let claim = claims.living(request.id()).unwrap_or_else(|| {
            let claim = Arc::new(MemoryClaim {
                store: self.store.clone(),
                session: self.session,
                opened: self.opened,
                name: format!("{}-{}", self.session, request.id()),
                traces: Traces::default(),
                version: AtomicU64::new(0),
            });
            claims.add(request.id(), &claim);
            claim
        });
        let value = Record::of(request, &self.context)?.begun(claim.since()).text()?;
        let answer = claim.create(value).await.map_err(|failure| failure.explain(Operation::Acquire))?;
        let mut waiter = Waiter { claim: &claim, answer: Some(answer) };
        let place = if request.wait() == Wait::Try {
            let looked = waiter.look().await.map_err(|failure| failure.explain(Operation::Acquire))?;
            looked.unwrap_or(Place::Lost)
        } else {
            wait(&mut waiter, request, self.context.clock()).await?
        };
        if place == Place::Lost && request.wait() == Wait::Try {
            claim.undo().await?;
        }
        Ok(claim.granted().filter(|_| place == Place::Kept))
    }

    async fn renew(&self, _: GroupId, claims: &[&MemoryClaim]) -> Result<Vec<LeaseState>, LockError> {
        Ok(vec![LeaseState::Held; claims.len()])
    }

    async fn remember(&self, memo: &Memo, _: Duration) -> Result<Remembered, LockError> {
        Err(LockError::new(lock_core::ErrorKind::Unsupported, Operation::Remember).on(memo.name()))
    }

    async fn recall(&self, memo: &Memo, _: Recall) -> Result<Option<Duration>, LockError> {
        Err(LockError::new(lock_core::ErrorKind::Unsupported, Operation::Remember).on(memo.name()))
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }

    async fn close(&self) {
        self.store.end(self.session);
    }
}

impl Lines for Client {
    type Failure = Failure;
    type Key = Kept;

    async fn line(&self, _: &InspectRequest) -> Result<Line<Kept>, Failure> {
        let line = self.store.look().await?.line;
        let holding = how_many_hold(&line.iter().map(InLine::mode).collect::<Vec<_>>());
        let shown = |key: Kept| {
            let mut participant = Participant::new(HolderId::new(&*key.name)).with_mode(key.told.mode());
            if let Told::Ours(record) = &key.told {
                record.clone().describe(&mut participant);
            }
            Shown { participant, told: Some(key.told.clone()), key }
        };
        Ok(Line { entries: line.into_iter().map(shown).collect(), holding })
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, Failure> {
        Ok(Vec::new())
    }
}

impl Breaks for Client {
    async fn mark(&self, key: &mut Kept, value: &[u8]) -> Result<Marked, Failure> {
        let (name, place, version, value) = (key.name.clone(), key.place, key.version, value.to_vec());
        let mark = move |state: &mut State| {
            let next = state.next();
            let found = state.find(&name, Some(place)).filter(|found| found.version == version);
            Ok(found
                .map(|found| (found.version, found.told, found.value) = (next, Told::read(&value), value))
                .is_some())
        };
        let answer = self.store.ask(mark).await?;
        if !answer.is_done {
            return Ok(Marked::Changed);
        }
        key.version = answer.last;
        Ok(Marked::Told)
    }

    async fn until_gone(&self, key: &Kept) {
        loop {
            let Ok(answer) = self.store.look().await else { continue };
            if answer.line.iter().all(|kept| kept.place != key.place) {
                return;
            }
            self.store.until_changed(answer.last).await;
        }
    }

    async fn remove(&self, key: &Kept) -> Result<bool, Failure> {
        let (name, place, version) = (key.name.clone(), key.place, key.version);
        let remove = move |state: &mut State| {
            let is_changed = state.find(&name, Some(place)).is_some_and(|found| found.version != version);
            if !is_changed {
                state.remove(&name, Some(place));
            }
            Ok(!is_changed)
        };
        self.store.ask(remove).await.map(|answer| answer.is_done)
    }
}
