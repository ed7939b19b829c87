//! A turn of many clients: each is a task that acquires, releases and begins again.

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::contender::{Client, Lock};
use crate::failure::{Context, Outcome};
use crate::plan::{Lengths, Workload};
use crate::samples::Samples;
use crate::scenario::Scenario;
use crate::turns::Turn;

/// How long the clients that still wait may take to finish by themselves, one after the other.
const DRAIN: Duration = Duration::from_millis(250);
const DRAIN_FOR_A_CLIENT: Duration = Duration::from_millis(10);
const FEW: u64 = 10;
const LONGER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The state that the clients of a turn share; times in nanoseconds since `origin`.
struct Board {
    origin: Instant,
    scenario: Scenario,
    hold: Duration,
    think: Duration,
    /// When the measurement begins and ends; if unset, never.
    begin: AtomicU64,
    end: AtomicU64,
    /// All sections, including those of the warm-up.
    sections: AtomicU64,
    /// Written by the holder of the lock, read by the next holder: the lock itself separates the accesses.
    releaser: AtomicUsize,
    released_at: AtomicU64,
    /// Since when each client waits; unset while it does not wait.
    waiting_since: Vec<AtomicU64>,
    records: Vec<Mutex<ClientRecord>>,
}

const UNSET: u64 = u64::MAX;

/// The records of one client.
#[derive(Default)]
struct ClientRecord {
    times: Samples,
    grants: u64,
    same_again: u64,
    /// In nanoseconds.
    longest_wait: u64,
}

/// Lets the clients, or the tasks of the only one, want what the scenario says, and measures for as long as it takes.
///
/// # Errors
/// The error of the first client that failed.
pub(crate) async fn measure(
    clients: &[Box<dyn Client>],
    scenario: &Scenario,
    lengths: &Lengths,
    name: &str,
) -> Outcome<Turn> {
    let board = Arc::new(Board::new(scenario, lengths));
    let mut tasks = Vec::new();
    for (index, client) in clients.iter().cycle().take(scenario.clients).enumerate() {
        let lock = |mode: &_| client.share(name, *mode)?.context("it does not have this mode");
        let locks: Outcome<Vec<_>> = scenario.modes.iter().map(lock).collect();
        tasks.push(tokio::spawn(take_part(index, locks?, Arc::clone(&board))));
    }
    board.until(2 * u64::try_from(scenario.clients).unwrap_or(UNSET), lengths.warm_up).await;
    let (begin, before) = (board.now(), board.sections.load(Ordering::SeqCst));
    board.begin.store(begin, Ordering::SeqCst);
    tokio::time::sleep(lengths.of(scenario)).await;
    // Longer if hardly anything has happened by then, because the machine hung.
    board.until(before + FEW, LONGER).await;
    let end = board.now();
    board.end.store(end, Ordering::SeqCst);
    let waits = board.waiting_since.iter().map(|since| since.load(Ordering::SeqCst));
    // Clients that still wait have already waited for that long.
    let unfinished = waits.filter(|&since| since < end).map(|since| end - since).max().unwrap_or(0);
    end_all(tasks, DRAIN + DRAIN_FOR_A_CLIENT * u32::try_from(clients.len()).unwrap_or(u32::MAX)).await?;
    Ok(board.seen(Duration::from_nanos(end - begin), Duration::from_nanos(unfinished)))
}

async fn end_all(tasks: Vec<JoinHandle<Outcome<()>>>, drain: Duration) -> Outcome<()> {
    let give_up = tokio::time::Instant::now() + drain;
    let mut first = Ok(());
    for mut task in tasks {
        match tokio::time::timeout_at(give_up, &mut task).await {
            Ok(ended) => first = first.and(ended.context("a client").and_then(|ended| ended)),
            // It sleeps between two attempts, or waits for a client that does: its result is not needed.
            Err(_) => task.abort(),
        }
    }
    first
}

impl Board {
    fn new(scenario: &Scenario, lengths: &Lengths) -> Self {
        let count = scenario.clients;
        Self {
            origin: Instant::now(),
            scenario: scenario.clone(),
            hold: lengths.hold,
            think: lengths.think,
            begin: AtomicU64::new(UNSET),
            end: AtomicU64::new(UNSET),
            sections: AtomicU64::new(0),
            releaser: AtomicUsize::new(usize::MAX),
            released_at: AtomicU64::new(UNSET),
            waiting_since: (0..count).map(|_| AtomicU64::new(UNSET)).collect(),
            records: (0..count).map(|_| Mutex::default()).collect(),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(UNSET)
    }

    fn is_measured(&self, moment: u64) -> bool {
        let (begin, end) = (self.begin.load(Ordering::SeqCst), self.end.load(Ordering::SeqCst));
        (begin..end).contains(&moment)
    }

    fn has_ended(&self) -> bool {
        self.end.load(Ordering::SeqCst) <= self.now()
    }

    /// Waits until there were so many sections, but no longer than `longest`.
    async fn until(&self, sections: u64, longest: Duration) {
        let give_up = Instant::now() + longest;
        while self.sections.load(Ordering::SeqCst) < sections && Instant::now() < give_up {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn waiting_since(&self, index: usize, moment: u64) {
        if let Some(since) = self.waiting_since.get(index) {
            since.store(moment, Ordering::SeqCst);
        }
    }

    /// Records that client `index`, which asked at `asked`, has what it wants.
    fn granted(&self, index: usize, asked: u64) {
        let granted = self.now();
        self.waiting_since(index, UNSET);
        self.sections.fetch_add(1, Ordering::SeqCst);
        let Some(record) = self.records.get(index) else { return };
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let is_shared = self.scenario.workload == Workload::Sharing;
        let released = self.released_at.load(Ordering::SeqCst);
        if !self.is_measured(granted) || !is_shared && !self.is_measured(released) {
            return;
        }
        record.grants += 1;
        record.longest_wait = record.longest_wait.max(granted - asked);
        if is_shared {
            record.times.push(Duration::from_nanos(granted - asked));
        } else if self.releaser.load(Ordering::SeqCst) == index {
            record.same_again += 1;
        } else {
            record.times.push(Duration::from_nanos(granted.saturating_sub(released)));
        }
    }

    fn seen(&self, length: Duration, unfinished: Duration) -> Turn {
        let sections = u32::try_from(self.sections.load(Ordering::SeqCst)).unwrap_or(u32::MAX);
        let mut turn = Turn { length, sections, longest_wait: unfinished, ..Turn::default() };
        for record in &self.records {
            let record = mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
            turn.times.append(record.times);
            turn.grants.push(record.grants);
            turn.same_again += record.same_again;
            turn.longest_wait = turn.longest_wait.max(Duration::from_nanos(record.longest_wait));
        }
        turn.grants.sort_unstable();
        turn
    }
}

async fn take_part(index: usize, locks: Vec<Box<dyn Lock>>, board: Arc<Board>) -> Outcome<()> {
    let mut turn = Scenario::first_turn_of(index);
    let mut is_first = true;
    while !board.has_ended() {
        let lock = locks.get(board.scenario.lock_of(turn)).context("a lock of the scenario")?;
        turn += 1;
        let asked = board.now();
        board.waiting_since(index, asked);
        let held = lock.acquire().await?;
        board.granted(index, asked);
        if mem::take(&mut is_first) {
            // Where a free lock is acquired without waiting for anything, the others could not even ask for it.
            let_others_run().await;
        }
        pause(board.hold).await;
        board.releaser.store(index, Ordering::SeqCst);
        board.released_at.store(board.now(), Ordering::SeqCst);
        held.release().await?;
        pause(board.think).await;
        if board.scenario.workload == Workload::Sharing {
            // Where everything succeeds at once, nothing else has let the other tasks of the runtime run.
            let_others_run().await;
        }
        tokio::task::consume_budget().await;
    }
    Ok(())
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}

/// Goes to the end of the runtime's queue. Tokio's `yield_now` does not: of the tasks that it defers the last one runs first, so that
/// some tasks would have fewer turns whatever the lock does.
async fn let_others_run() {
    let mut has_waited = false;
    poll_fn(|context| {
        if mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
