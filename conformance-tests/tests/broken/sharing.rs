//! A small server with readers, writers and semaphores, with one bug at a time, and the cases that catch them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use conformance_tests::{Ability, Case, Failure, Harness, Need, Outcome, Verdict, all, run_case};
use lock_core::{
    AcquireRequest, AttemptId, Backend, Breaking, Broken, Capabilities, CharacterSet, ClientBuilder,
    Downgraded, Fairness, Fencing, FencingToken, Grant, GroupId, HolderId, InspectRequest, Inspection,
    LeaseState, LockClient, LockError, LockKind, LockStatus, LossReason, Mode, NameRules, Participant,
    PermitLimits, Reach, Released, Term, Wait,
};
use tokio::sync::Notify;

/// The bug of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Defect {
    None,
    /// A reader does not wait behind a writer that waits.
    ReadersPassWriters,
    /// A writer enters beside readers.
    WritersIgnoreReaders,
    /// Of readers that wait next to each other, only one enters.
    OneReaderAtATime,
    /// A waiter that leaves does not let the next ones in.
    LeavingHelpsNobody,
    /// The exclusive hold is released, and the shared one acquired, with a gap between them.
    DowngradeWithGap,
    /// Each holder counts for one permit.
    WeightsAreIgnored,
    /// A small request passes a large one.
    SmallRequestsPass,
    /// Each client believes in its own number of permits.
    NumbersMayDiffer,
    /// Breaking one holder breaks all.
    BreaksAll,
    /// Locks and semaphores are one.
    OneNamespace,
}

/// Which case catches which bug, and with which message.
const CAUGHT: &[(Defect, &str, &str)] = &[
    (
        Defect::ReadersPassWriters,
        "sharing::a_reader_waits_behind_a_writer_that_waits",
        "before a writer that waits was granted",
    ),
    (
        Defect::WritersIgnoreReaders,
        "sharing::readers_are_beside_each_other_and_no_writer_is",
        "a writer beside readers was granted",
    ),
    (Defect::WritersIgnoreReaders, "sharing::no_reader_is_beside_a_writer_in_contention", "exclusion"),
    (Defect::OneReaderAtATime, "sharing::neighbours_that_read_enter_together", "a neighbour's turn"),
    (
        Defect::LeavingHelpsNobody,
        "sharing::a_writer_that_gives_up_lets_those_behind_it_in",
        "the reader's turn",
    ),
    (
        Defect::DowngradeWithGap,
        "sharing::no_writer_comes_between_writing_and_reading",
        "the outcome is not known",
    ),
    (
        Defect::WeightsAreIgnored,
        "semaphores::no_more_permits_are_held_than_there_are",
        "permits were granted",
    ),
    (
        Defect::WeightsAreIgnored,
        "semaphores::weights_are_never_above_the_number_in_contention",
        "of 5 were held",
    ),
    (
        Defect::SmallRequestsPass,
        "semaphores::several_permits_are_had_all_or_nothing_and_in_order",
        "permits were granted",
    ),
    (
        Defect::NumbersMayDiffer,
        "semaphores::another_number_of_permits_is_an_error_that_names_both",
        "permits, too",
    ),
    (Defect::BreaksAll, "sharing::one_reader_is_lost_and_the_others_stay", "another reader was lost"),
    (Defect::OneNamespace, "semaphores::the_lock_of_that_name_is_another_thing", "were refused"),
];

type Key = (String, LockKind);

struct Table {
    defect: Defect,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    locks: HashMap<Key, Lock>,
    tokens: u64,
}

#[derive(Default)]
struct Lock {
    holders: Vec<Held>,
    queue: VecDeque<Waiting>,
}

struct Held {
    by: Waiting,
    token: u64,
}

#[derive(Clone)]
struct Waiting {
    id: AttemptId,
    mode: Mode,
    attempt: AcquireRequest,
}

impl Waiting {
    fn of(request: &AcquireRequest) -> Self {
        Self { id: request.id(), mode: request.mode(), attempt: request.clone() }
    }

    fn shown(&self) -> Participant {
        Participant::new(HolderId::new(self.id.to_string())).with_mode(self.mode)
    }
}

impl Table {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn key(&self, name: &str, kind: LockKind) -> Key {
        (name.to_owned(), if self.has(Defect::OneNamespace) { LockKind::Lock } else { kind })
    }

    fn fits(&self, lock: &Lock, mode: Mode) -> bool {
        let held = lock.holders.iter().map(|held| held.by.mode);
        match mode {
            Mode::Shared => held.clone().all(|held| held == Mode::Shared),
            Mode::Permits { take, of } => {
                let weight = |mode: Mode| match mode {
                    _ if self.has(Defect::WeightsAreIgnored) => 1,
                    Mode::Permits { take, .. } => take.get(),
                    _ => of.get(),
                };
                let take = if self.has(Defect::WeightsAreIgnored) { 1 } else { take.get() };
                held.map(weight).sum::<u32>() + take <= of.get()
            }
            _ => lock.holders.is_empty() || self.has(Defect::WritersIgnoreReaders),
        }
    }

    fn passes(&self, lock: &Lock, mode: Mode) -> bool {
        lock.queue.is_empty()
            || (mode == Mode::Shared && self.has(Defect::ReadersPassWriters))
            || (mode.kind() == LockKind::Semaphore && self.has(Defect::SmallRequestsPass))
    }

    /// Lets those in that fit.
    fn admit(&self, state: &mut State, key: &Key) {
        loop {
            let Some(lock) = state.locks.get_mut(key) else { return };
            let Some(head) = lock.queue.front() else { break };
            if !self.fits(lock, head.mode) {
                break;
            }
            state.tokens += 1;
            if let Some(by) = lock.queue.pop_front() {
                lock.holders.push(Held { by, token: state.tokens });
            }
            if self.has(Defect::OneReaderAtATime) {
                break;
            }
        }
        if state.locks.get(key).is_some_and(|lock| lock.holders.is_empty() && lock.queue.is_empty()) {
            state.locks.remove(key);
        }
        self.changed.notify_waiters();
    }

    fn remove(&self, key: &Key, id: AttemptId) -> bool {
        let mut state = self.state();
        let Some(lock) = state.locks.get_mut(key) else { return false };
        let before = lock.holders.len();
        lock.holders.retain(|held| held.by.id != id);
        lock.queue.retain(|waiting| waiting.id != id);
        let was_held = lock.holders.len() < before;
        if was_held || !self.has(Defect::LeavingHelpsNobody) {
            self.admit(&mut state, key);
        }
        was_held
    }

    fn token(&self, key: &Key, id: AttemptId) -> Option<u64> {
        let state = self.state();
        state.locks.get(key)?.holders.iter().find(|held| held.by.id == id).map(|held| held.token)
    }
}

#[derive(Debug)]
struct Lease {
    key: Key,
    id: AttemptId,
}

struct SharingBackend {
    table: Arc<Table>,
    capabilities: Capabilities,
}

impl std::fmt::Debug for SharingBackend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("SharingBackend")
    }
}

impl SharingBackend {
    fn key(&self, request: &AcquireRequest) -> Key {
        self.table.key(request.name().as_str(), request.mode().kind())
    }

    async fn granted(&self, key: Key, id: AttemptId) -> Grant<Lease> {
        loop {
            let changed = self.table.changed.notified();
            if let Some(token) = self.table.token(&key, id) {
                let token = Some(FencingToken::new(token));
                let lease = Lease { key, id };
                return Grant { token, ..Grant::new(lease, GroupId::new(0), Term::UntilReported) };
            }
            changed.await;
        }
    }
}

impl Backend for SharingBackend {
    type Lease = Lease;

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Option<Grant<Lease>>, LockError> {
        let (key, table) = (self.key(request), &self.table);
        let tries_once = request.wait() == Wait::Try;
        let must_wait = {
            let mut state = table.state();
            let lock = state.locks.entry(key.clone()).or_default();
            let users =
                lock.holders.iter().map(|held| held.by.mode).chain(lock.queue.iter().map(|it| it.mode));
            let numbers = users.filter_map(|mode| match mode {
                Mode::Permits { of, .. } => Some(of.get()),
                _ => None,
            });
            if let (Mode::Permits { of, .. }, Some(is)) = (request.mode(), numbers.clone().next())
                && of.get() != is
                && !table.has(Defect::NumbersMayDiffer)
            {
                return Err(LockError::other_permits(request.name(), of.get(), is));
            }
            let waits = !(table.passes(lock, request.mode()) && table.fits(lock, request.mode()));
            if waits && tries_once {
                return Ok(None);
            }
            if waits {
                lock.queue.push_back(Waiting::of(request));
            } else {
                lock.queue.push_front(Waiting::of(request));
                table.admit(&mut state, &key);
            }
            waits
        };
        if must_wait {
            request.queued();
        }
        Ok(Some(self.granted(key, request.id()).await))
    }

    async fn cancel(&self, request: &AcquireRequest) -> Result<(), LockError> {
        self.table.remove(&self.key(request), request.id());
        Ok(())
    }

    async fn renew(&self, _: GroupId, leases: &[Arc<Lease>]) -> Result<Vec<LeaseState>, LockError> {
        Ok(vec![LeaseState::Held; leases.len()])
    }

    async fn release(&self, lease: &Lease) -> Result<Released, LockError> {
        let was_held = self.table.remove(&lease.key, lease.id);
        Ok(if was_held { Released::Clean } else { Released::WasLost(LossReason::Broken) })
    }

    async fn downgrade(
        &self,
        lease: &Lease,
        request: &AcquireRequest,
    ) -> Result<Downgraded<Lease>, LockError> {
        if self.table.has(Defect::DowngradeWithGap) {
            self.table.remove(&lease.key, lease.id);
            {
                let mut state = self.table.state();
                let lock = state.locks.entry(lease.key.clone()).or_default();
                lock.queue.push_back(Waiting::of(request));
                self.table.admit(&mut state, &lease.key);
            }
            return Ok(Downgraded::Shared(self.granted(lease.key.clone(), request.id()).await));
        }
        {
            let mut state = self.table.state();
            state.tokens += 1;
            let token = state.tokens;
            let held = state.locks.get_mut(&lease.key).and_then(|lock| lock.holders.first_mut());
            match held {
                Some(held) if held.by.id == lease.id => *held = Held { by: Waiting::of(request), token },
                _ => return Ok(Downgraded::WasLost(LossReason::Broken)),
            }
            self.table.admit(&mut state, &lease.key);
        }
        Ok(Downgraded::Shared(self.granted(lease.key.clone(), request.id()).await))
    }

    async fn inspect(&self, request: &InspectRequest) -> Result<LockStatus, LockError> {
        let mut status = LockStatus::free(request.name().clone());
        let state = self.table.state();
        if let Some(lock) = state.locks.get(&self.table.key(request.name().as_str(), request.kind())) {
            status.holders.extend(lock.holders.iter().map(|held| held.by.shown()));
            status.waiters.extend(lock.queue.iter().map(Waiting::shown));
        }
        Ok(status)
    }

    async fn break_holder(&self, request: &InspectRequest, holder: &HolderId) -> Result<Broken, LockError> {
        let key = self.table.key(request.name().as_str(), request.kind());
        let all = self.table.has(Defect::BreaksAll);
        let broken: Vec<_> = {
            let state = self.table.state();
            let holders = state.locks.get(&key).into_iter().flat_map(|lock| &lock.holders);
            holders.filter(|held| all || held.by.shown().id == *holder).map(|held| held.by.clone()).collect()
        };
        for one in &broken {
            self.table.remove(&key, one.id);
            one.attempt.lost(LossReason::Broken);
        }
        Ok(if broken.is_empty() { Broken::not_held() } else { Broken::taken_away() })
    }

    async fn ping(&self) -> Result<(), LockError> {
        Ok(())
    }
}

struct SharingHarness {
    table: Arc<Table>,
    patience: Duration,
}

#[async_trait]
impl Harness for SharingHarness {
    async fn start() -> Outcome<Self> {
        Err(Failure::new("a table is made with its defect"))
    }

    fn lacks(&self, _: Ability) -> Option<&'static str> {
        Some("the table is simple")
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        builder.build(|_| {
            let capabilities =
                Capabilities::new("sharing", Reach::Process, NameRules::new(CharacterSet::ANY, 512))
                    .with_fencing(Fencing::WhileServerLives)
                    .with_fairness(Fairness::Fifo)
                    .with_inspection(Inspection::HolderAndQueue)
                    .with_breaking(Breaking::Supported)
                    .with_shared()
                    .with_permits(PermitLimits::NONE);
            Ok(SharingBackend { table: Arc::clone(&self.table), capabilities })
        })
    }

    async fn leftovers(&self) -> Outcome<Vec<String>> {
        Ok(self.table.state().locks.keys().map(|key| format!("{key:?}")).collect())
    }

    fn patience(&self) -> Duration {
        self.patience
    }
}

fn run(case: &Case, defect: Defect, patience: Duration) -> Verdict {
    run_case(case, || async move {
        let table = Arc::new(Table { defect, state: Mutex::default(), changed: Notify::new() });
        Outcome::Ok(Box::new(SharingHarness { table, patience }) as Box<dyn Harness>)
    })
}

fn why_missed(defect: Defect, name: &str, words: &str) -> Option<String> {
    let Some(case) = all().iter().find(|case| case.name() == name) else {
        return Some(format!("there is no case {name:?}"));
    };
    let mut verdict = None;
    for patience in super::PATIENCES {
        let ended = run(case, defect, patience);
        if matches!(&ended, Verdict::Failed(failure) if failure.to_string().contains(words)) {
            return None;
        }
        verdict = Some(ended);
    }
    Some(format!("{defect:?}: {name} was to fail with {words:?}: {verdict:?}"))
}

#[test]
fn every_seeded_defect_of_sharing_is_caught() {
    let missed: Vec<_> = std::thread::scope(|scope| {
        let start = |(defect, name, words): &(Defect, &'static str, &'static str)| {
            let (defect, name, words) = (*defect, *name, *words);
            scope.spawn(move || why_missed(defect, name, words))
        };
        let runs: Vec<_> = CAUGHT.iter().map(start).collect();
        runs.into_iter()
            .filter_map(|run| run.join().unwrap_or_else(|_| Some("a run panicked".to_owned())))
            .collect()
    });
    assert_eq!(missed, Vec::<String>::new());
}

/// Otherwise a case could catch a bug by always failing.
#[test]
fn the_same_backend_without_a_defect_of_sharing_passes() {
    // The table loses no replies: it is the other table whose replies are lost.
    let is_meant = |case: &&Case| {
        (case.name().starts_with("sharing::") || case.name().starts_with("semaphores::"))
            && !case.needs().contains(&Need::Ability(Ability::LostReplies))
    };
    for case in all().iter().filter(is_meant) {
        let verdict = run(case, Defect::None, Duration::from_secs(60));
        assert!(matches!(verdict, Verdict::Passed), "{}: {verdict:?}", case.name());
    }
}
