//! The clients of one turn: each is a task that acquires, releases and begins again.

use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::contender::{Client, Contender, Lock, Target};
use crate::failure::{Context, Outcome};
use crate::plan::HandOffTurn;
use crate::process;
use crate::samples::Samples;
use crate::workload::{HandOffs, clients};

/// How long the clients that still wait may take to finish by themselves, one after the other.
const DRAIN: Duration = Duration::from_millis(250);
const DRAIN_FOR_A_CLIENT: Duration = Duration::from_millis(10);
const FEW: u64 = 10;
const LONGER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(1);

pub(crate) struct Crowd {
    clients: Vec<Box<dyn Client>>,
    tasks: Vec<JoinHandle<Outcome<()>>>,
    board: Arc<Board>,
    /// How long those that still wait at the end may take.
    drain: Duration,
}

/// The state that the clients of a turn share; times in nanoseconds since `origin`.
struct Board {
    origin: Instant,
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

impl Board {
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
}

impl Crowd {
    pub(super) async fn gather(
        contender: &'static Contender,
        turn: &HandOffTurn,
        name: &str,
        target: &Target,
    ) -> Outcome<Self> {
        let clients = clients::connect(contender, turn.clients, target).await?;
        let drain = DRAIN + DRAIN_FOR_A_CLIENT * u32::try_from(turn.clients).unwrap_or(u32::MAX);
        Self::of(clients, turn, name, drain)
    }

    /// All of them are tasks of one client. Those that still wait at the end are aborted.
    pub(super) async fn of_one_client(
        contender: &'static Contender,
        turn: &HandOffTurn,
        name: &str,
        target: &Target,
    ) -> Outcome<Self> {
        Self::of(clients::connect(contender, 1, target).await?, turn, name, DRAIN)
    }

    fn of(clients: Vec<Box<dyn Client>>, turn: &HandOffTurn, name: &str, drain: Duration) -> Outcome<Self> {
        let count = turn.clients;
        let locks: Outcome<Vec<_>> =
            clients.iter().cycle().take(count).map(|client| client.lock(name)).collect();
        let board = Arc::new(Board {
            origin: Instant::now(),
            hold: turn.hold,
            think: turn.think,
            begin: AtomicU64::new(UNSET),
            end: AtomicU64::new(UNSET),
            sections: AtomicU64::new(0),
            releaser: AtomicUsize::new(usize::MAX),
            released_at: AtomicU64::new(UNSET),
            waiting_since: (0..count).map(|_| AtomicU64::new(UNSET)).collect(),
            records: (0..count).map(|_| Mutex::default()).collect(),
        });
        let tasks = locks?
            .into_iter()
            .enumerate()
            .map(|(index, lock)| tokio::spawn(take_part(index, lock, Arc::clone(&board))))
            .collect();
        Ok(Self { clients, tasks, board, drain })
    }

    /// Waits until every client should have had the lock twice, or `longest` has passed.
    pub(super) async fn warm_up(&self, longest: Duration) {
        let enough = 2 * u64::try_from(self.tasks.len()).unwrap_or(UNSET);
        let give_up = Instant::now() + longest;
        while self.board.sections.load(Ordering::SeqCst) < enough && Instant::now() < give_up {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Measures from now on, for `length`; longer if hardly anything has happened by then, because the machine hung.
    pub(super) async fn measure(&self, length: Duration) -> Measured {
        let sections = self.board.sections.load(Ordering::SeqCst);
        let processor = process::processor_time();
        let begin = self.board.now();
        self.board.begin.store(begin, Ordering::SeqCst);
        tokio::time::sleep(length).await;
        let give_up = Instant::now() + LONGER;
        while self.board.sections.load(Ordering::SeqCst) < sections + FEW && Instant::now() < give_up {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let end = self.board.now();
        self.board.end.store(end, Ordering::SeqCst);
        let waits = self.board.waiting_since.iter().map(|since| since.load(Ordering::SeqCst));
        // Clients that still wait have already waited for that long.
        let unfinished = waits.filter(|&since| since < end).map(|since| end - since).max().unwrap_or(0);
        Measured {
            length: Duration::from_nanos(end - begin),
            unfinished: Duration::from_nanos(unfinished),
            processor: process::processor_time().saturating_sub(processor),
        }
    }

    /// Ends the clients, and returns their measurements.
    ///
    /// # Errors
    /// The error of the first client that failed.
    pub(super) async fn disperse(self, measured: Measured) -> Outcome<HandOffs> {
        let give_up = tokio::time::Instant::now() + self.drain;
        let mut failure = None;
        for mut task in self.tasks {
            match tokio::time::timeout_at(give_up, &mut task).await {
                Ok(ended) => failure = failure.or(ended.context("a client").and_then(|ended| ended).err()),
                // It sleeps between two attempts, or waits for a client that does: its result is not needed.
                Err(_) => task.abort(),
            }
        }
        clients::close(self.clients).await;
        match failure {
            Some(failure) => Err(failure),
            None => Ok(self.board.seen(&measured)),
        }
    }
}

/// The measured period.
pub(super) struct Measured {
    length: Duration,
    /// The longest of the waits that had not ended.
    unfinished: Duration,
    processor: Duration,
}

impl Board {
    fn seen(&self, measured: &Measured) -> HandOffs {
        let mut seen = HandOffs {
            longest_wait: measured.unfinished,
            length: measured.length,
            processor: measured.processor,
            all_sections: self.sections.load(Ordering::SeqCst),
            ..HandOffs::default()
        };
        for record in &self.records {
            let record = mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner));
            seen.times.append(record.times);
            seen.grants.push(record.grants);
            seen.sections += record.grants;
            seen.same_again += record.same_again;
            seen.longest_wait = seen.longest_wait.max(Duration::from_nanos(record.longest_wait));
        }
        seen.grants.sort_unstable();
        seen
    }

    /// Records that client `index`, which asked at `asked`, has the lock.
    fn granted(&self, index: usize, asked: u64) {
        let granted = self.now();
        self.waiting_since(index, UNSET);
        self.sections.fetch_add(1, Ordering::SeqCst);
        let released = self.released_at.load(Ordering::SeqCst);
        if !self.is_measured(granted) || !self.is_measured(released) {
            return;
        }
        let Some(record) = self.records.get(index) else { return };
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        record.grants += 1;
        record.longest_wait = record.longest_wait.max(granted - asked);
        if self.releaser.load(Ordering::SeqCst) == index {
            record.same_again += 1;
        } else {
            record.times.push(Duration::from_nanos(granted.saturating_sub(released)));
        }
    }

    fn waiting_since(&self, index: usize, moment: u64) {
        if let Some(since) = self.waiting_since.get(index) {
            since.store(moment, Ordering::SeqCst);
        }
    }
}

async fn take_part(index: usize, lock: Box<dyn Lock>, board: Arc<Board>) -> Outcome<()> {
    let mut is_first = true;
    while !board.has_ended() {
        let asked = board.now();
        board.waiting_since(index, asked);
        let held = lock.acquire().await?;
        board.granted(index, asked);
        if mem::take(&mut is_first) {
            // Where a free lock is acquired without waiting for anything, the others could not even ask for it.
            tokio::task::yield_now().await;
        }
        pause(board.hold).await;
        board.releaser.store(index, Ordering::SeqCst);
        board.released_at.store(board.now(), Ordering::SeqCst);
        held.release().await?;
        pause(board.think).await;
        tokio::task::consume_budget().await;
    }
    Ok(())
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}
