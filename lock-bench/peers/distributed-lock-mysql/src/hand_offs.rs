//! Many clients contend for one lock: each is a task that acquires, releases and begins again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use distributed_lock_core::traits::LockHandle as _;

use crate::serving::{Outcome, nanoseconds, processor_time};
use crate::words::{HandOffTurn, HandOffs};
use crate::{Provider, acquire, connect, lock};

const UNSET: u64 = u64::MAX;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The state that the clients share; times in nanoseconds since `origin`.
struct Board {
    origin: Instant,
    turn: HandOffTurn,
    begin: AtomicU64,
    end: AtomicU64,
    sections: AtomicU64,
    /// Written by the holder of the lock, read by the next holder: the lock itself separates the accesses.
    releaser: AtomicUsize,
    released_at: AtomicU64,
    seen: Mutex<HandOffs>,
}

impl Board {
    fn now(&self) -> u64 {
        nanoseconds(self.origin.elapsed())
    }

    fn is_measured(&self, moment: u64) -> bool {
        (self.begin.load(Ordering::SeqCst)..self.end.load(Ordering::SeqCst)).contains(&moment)
    }

    /// Records that client `index`, which asked at `asked`, has the lock.
    fn granted(&self, index: usize, asked: u64) {
        let granted = self.now();
        self.sections.fetch_add(1, Ordering::SeqCst);
        let released = self.released_at.load(Ordering::SeqCst);
        if !self.is_measured(granted) || !self.is_measured(released) {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.longest_wait = seen.longest_wait.max(granted - asked);
        if let Some(grants) = seen.grants.get_mut(index) {
            *grants += 1;
        }
        if self.releaser.load(Ordering::SeqCst) == index {
            seen.same_again += 1;
        } else {
            seen.times.push(granted.saturating_sub(released));
        }
    }
}

pub(crate) async fn run(url: &str, turn: HandOffTurn) -> Outcome<HandOffs> {
    let mut providers = Vec::with_capacity(turn.clients);
    for _ in 0..turn.clients {
        providers.push(connect(url).await?);
    }
    let (warm_up, length) = (Duration::from_nanos(turn.warm_up), Duration::from_nanos(turn.length));
    let enough = 2 * u64::try_from(turn.clients).unwrap_or(UNSET);
    let seen = HandOffs { grants: vec![0; turn.clients], ..HandOffs::default() };
    let board = Arc::new(Board {
        origin: Instant::now(),
        turn,
        begin: AtomicU64::new(UNSET),
        end: AtomicU64::new(UNSET),
        sections: AtomicU64::new(0),
        releaser: AtomicUsize::new(usize::MAX),
        released_at: AtomicU64::new(UNSET),
        seen: Mutex::new(seen),
    });
    let clients = providers.into_iter().enumerate();
    let tasks: Vec<_> = clients
        .map(|(index, provider)| tokio::spawn(take_part(index, provider, Arc::clone(&board))))
        .collect();

    let give_up = Instant::now() + warm_up;
    while board.sections.load(Ordering::SeqCst) < enough && Instant::now() < give_up {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    let processor = processor_time();
    let begin = board.now();
    board.begin.store(begin, Ordering::SeqCst);
    tokio::time::sleep(length).await;
    let end = board.now();
    board.end.store(end, Ordering::SeqCst);
    let processor = processor_time().saturating_sub(processor);
    // The lock passes from one client to the next, and each ends after it has had the lock.
    for task in tasks {
        task.await.map_err(|error| error.to_string())??;
    }
    let mut seen = std::mem::take(&mut *board.seen.lock().unwrap_or_else(PoisonError::into_inner));
    seen.all_sections = board.sections.load(Ordering::SeqCst);
    seen.length = end - begin;
    seen.processor = nanoseconds(processor);
    Ok(seen)
}

async fn take_part(index: usize, provider: Provider, board: Arc<Board>) -> Outcome<()> {
    let lock = lock(&provider, &board.turn.name);
    while board.end.load(Ordering::SeqCst) > board.now() {
        let asked = board.now();
        let held = acquire(&lock).await?;
        board.granted(index, asked);
        pause(board.turn.hold).await;
        board.releaser.store(index, Ordering::SeqCst);
        board.released_at.store(board.now(), Ordering::SeqCst);
        held.release().await.map_err(|error| error.to_string())?;
        pause(board.turn.think).await;
    }
    Ok(())
}

async fn pause(nanoseconds: u64) {
    if nanoseconds > 0 {
        tokio::time::sleep(Duration::from_nanos(nanoseconds)).await;
    }
}
