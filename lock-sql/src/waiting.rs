//! Waits at the server, and the readers of one client that have one in common.
//!
//! Where each reader takes a place of its own at the server, readers that wait for the same lock together send one wait. It takes one
//! place for all of them, and the last one that ends frees it. Each has an id, a token and an end of its own. Otherwise a lock would have
//! no more readers at once, of all clients together, than it has places.
//!
//! A wait takes readers in until it has its outcome. A later reader waits anew, because a writer may be waiting by then. As soon as a
//! writer of the same client waits, the waits before it take no more readers in.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lock_core::spi::Mutex;
use lock_core::{AttemptId, LockError, Mode};
use tokio::sync::{Notify, oneshot, watch};

use crate::claim::Claim;
use crate::link::{Asked, Taken};

/// The most readers of one wait: the table describes all of them in one row.
const MOST_READERS: usize = 256;

/// From so many locks on, those that no reader waits for are forgotten.
const FIRST_SWEEP: usize = 64;

/// An attempt that wants the outcome of a request.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) id: AttemptId,
    pub(crate) answer: oneshot::Sender<Result<Taken, LockError>>,
}

#[derive(Debug)]
struct Callers {
    all: Vec<Caller>,
    takes_more: bool,
}

/// A wait that is under way at the server.
#[derive(Debug)]
pub struct Waiting {
    /// The attempt that has sent it. What the connection has for all callers is known by this id, also when that one has gone.
    pub hold: AttemptId,
    /// The label of all callers.
    label: Option<String>,
    callers: Mutex<Callers>,
    /// Notified when the wait has to end, for good or to begin anew.
    end: Notify,
    is_stopped: AtomicBool,
    gives_way: AtomicBool,
    rounds: AtomicU64,
    /// Whether the server has been seen to have it in a queue.
    is_placed: watch::Sender<bool>,
    is_at_head: AtomicBool,
    is_answered: AtomicBool,
}

impl Waiting {
    /// Creates a wait for this attempt, and returns what becomes its answer.
    pub(crate) fn new(id: AttemptId, label: Option<String>) -> (Arc<Self>, Asked) {
        let (answer, asked) = oneshot::channel();
        let callers = Callers { all: vec![Caller { id, answer }], takes_more: true };
        let waiting = Self {
            hold: id,
            label,
            callers: Mutex::new(callers),
            end: Notify::new(),
            is_stopped: AtomicBool::new(false),
            gives_way: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            is_placed: watch::Sender::new(false),
            is_at_head: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
        };
        (Arc::new(waiting), asked)
    }

    fn join(&self, id: AttemptId, label: Option<&str>) -> Option<Asked> {
        let mut callers = self.callers.lock();
        if !callers.takes_more || callers.all.len() >= MOST_READERS || self.label.as_deref() != label {
            return None;
        }
        let (answer, asked) = oneshot::channel();
        callers.all.push(Caller { id, answer });
        Some(asked)
    }

    /// Removes a caller if others stay, and returns whether they do. Otherwise the wait ends.
    pub(crate) fn leave(&self, id: AttemptId) -> bool {
        let mut callers = self.callers.lock();
        let others_stay = callers.all.iter().any(|caller| caller.id != id);
        callers.takes_more &= others_stay;
        let place = callers.all.iter().position(|caller| caller.id == id).filter(|_| others_stay);
        let left = place.map(|place| callers.all.remove(place));
        drop(callers);
        drop(left);
        if !others_stay {
            self.is_stopped.store(true, Ordering::Relaxed);
            self.end.notify_one();
        }
        others_stay
    }

    /// Returns whether all callers have gone; then no more come.
    pub fn is_abandoned(&self) -> bool {
        let mut callers = self.callers.lock();
        let have_gone = callers.all.iter().all(|caller| caller.answer.is_closed());
        callers.takes_more &= !have_gone;
        have_gone
    }

    /// Returns the callers, in order.
    pub fn ids(&self) -> Vec<AttemptId> {
        self.callers.lock().all.iter().map(|caller| caller.id).collect()
    }

    fn close(&self) -> Vec<Caller> {
        let mut callers = self.callers.lock();
        callers.takes_more = false;
        std::mem::take(&mut callers.all)
    }

    /// Makes later readers wait anew: the server does not have this wait.
    pub(crate) fn takes_no_more(&self) {
        self.callers.lock().takes_more = false;
    }

    fn takes_more(&self) -> bool {
        self.callers.lock().takes_more
    }

    /// Ends the wait so that it begins anew; returns how often it has done so.
    pub fn give_way(&self) -> u64 {
        let rounds = self.rounds();
        self.gives_way.store(true, Ordering::Relaxed);
        self.end.notify_one();
        rounds
    }

    /// Returns how often the wait has begun anew.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Returns whether the wait, which has ended, is to begin anew.
    pub fn begins_anew(&self) -> bool {
        self.gives_way.swap(false, Ordering::Relaxed) && !self.is_stopped.load(Ordering::Relaxed)
    }

    /// Records that the wait is about to begin anew.
    pub fn has_begun_anew(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until the wait has to end.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn ended(&self) {
        while !self.is_stopped.load(Ordering::Relaxed) && !self.gives_way.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }

    /// Waits until the callers have gone.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn stopped(&self) {
        while !self.is_stopped.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }

    /// Records that the attempt is the first in the queue, and looks itself for what is missing: the server need not show that.
    pub fn reaches_head(&self) {
        self.is_at_head.store(true, Ordering::Release);
        self.has_a_place();
    }

    /// Returns whether the attempt is the first in the queue.
    pub fn is_at_head(&self) -> bool {
        self.is_at_head.load(Ordering::Acquire)
    }

    /// Records that the server has it in a queue.
    pub(crate) fn has_a_place(&self) {
        self.is_placed.send_replace(true);
    }

    /// Waits until the server has been seen to have it in a queue.
    pub(crate) async fn placed(&self) {
        // `self` keeps the sender alive.
        let _ = self.is_placed.subscribe().wait_for(|is_placed| *is_placed).await;
    }

    /// Records that the server has answered the wait. The connection's task may need a while for what follows.
    pub fn is_over(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    /// Returns whether the server has answered the wait.
    pub fn has_answer(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }
}

/// A wait as its connection's task has it. When it is dropped, the callers that are left learn that the connection has ended.
#[derive(Debug)]
pub(crate) struct Promise(pub Arc<Waiting>);

impl Promise {
    /// Returns the callers, when the server has answered.
    pub(crate) fn close(&self) -> Vec<Caller> {
        self.0.is_over();
        self.0.close()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// The last waits of readers, each with what knows its connection.
#[derive(Debug)]
pub(crate) struct Batches<K, L>(Mutex<Inner<K, L>>);

#[derive(Debug)]
struct Inner<K, L> {
    batches: HashMap<K, Batch<L>>,
    next_sweep: usize,
}

#[derive(Debug)]
struct Batch<L> {
    /// Locked by the reader that looks for a connection, for all that come meanwhile.
    turn: Arc<tokio::sync::Mutex<()>>,
    last: Option<(Arc<L>, Arc<Waiting>)>,
}

impl<K, L> Default for Batches<K, L> {
    fn default() -> Self {
        Self(Mutex::new(Inner { batches: HashMap::new(), next_sweep: FIRST_SWEEP }))
    }
}

impl<K: Clone + Eq + Hash, L> Batches<K, L> {
    /// Returns what a reader locks that finds no wait which takes it in.
    pub(crate) fn turn(&self, key: &K) -> Arc<tokio::sync::Mutex<()>> {
        let mut inner = self.0.lock();
        if inner.batches.len() >= inner.next_sweep {
            inner.batches.retain(|_, batch| batch.is_used());
            inner.next_sweep = FIRST_SWEEP.max(inner.batches.len() * 2);
        }
        let new = || Batch { turn: Arc::default(), last: None };
        Arc::clone(&inner.batches.entry(key.clone()).or_insert_with(new).turn)
    }

    /// Makes a reader take part in a wait. A claim of another mode has no part in any.
    pub(crate) fn join(
        &self,
        claim: &Claim<K>,
        label: Option<&str>,
    ) -> Option<(Arc<L>, Arc<Waiting>, Asked)> {
        if claim.mode != Mode::Shared {
            return None;
        }
        let inner = self.0.lock();
        let (link, waiting) = inner.batches.get(&claim.key)?.last.as_ref()?;
        let asked = waiting.join(claim.id, label)?;
        Some((Arc::clone(link), Arc::clone(waiting), asked))
    }

    /// Makes later readers take part in this wait; without one, keeps them behind a writer that waits now.
    pub(crate) fn begin(&self, key: &K, wait: Option<(&Arc<L>, &Arc<Waiting>)>) {
        if let Some(batch) = self.0.lock().batches.get_mut(key) {
            batch.last = wait.map(|(link, waiting)| (Arc::clone(link), Arc::clone(waiting)));
        }
    }
}

impl<L> Batch<L> {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.turn) > 1
            || self.last.as_ref().is_some_and(|(_, waiting)| waiting.takes_more())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u128) -> AttemptId {
        AttemptId::new(number)
    }

    #[test]
    fn a_wait_takes_readers_in_until_its_last_caller_leaves_or_it_is_over() {
        let (waiting, _first) = Waiting::new(id(1), None);
        let second = waiting.join(id(2), None).unwrap();
        assert!(waiting.join(id(3), Some("other")).is_none(), "one with another label");
        assert!(waiting.leave(id(1)), "another one stays");
        assert_eq!(waiting.ids(), [id(2)]);
        drop(second);
        assert!(!waiting.leave(id(2)));
        assert!(waiting.join(id(3), None).is_none(), "one takes part in a wait that is being ended");

        let (waiting, _first) = Waiting::new(id(1), None);
        let mut second = waiting.join(id(2), None).unwrap();
        drop(Promise(Arc::clone(&waiting)));
        assert_eq!(second.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
        assert!(waiting.join(id(3), None).is_none(), "one takes part in a wait that is over");
    }

    #[test]
    fn a_wait_that_all_have_abandoned_takes_no_more_readers_in() {
        let (waiting, first) = Waiting::new(id(1), None);
        let second = waiting.join(id(2), None).unwrap();
        drop(first);
        assert!(!waiting.is_abandoned());
        drop(second);
        assert!(waiting.is_abandoned());
        assert!(waiting.join(id(3), None).is_none());
    }

    #[test]
    fn a_wait_has_a_greatest_number_of_readers() {
        let (waiting, _first) = Waiting::new(id(0), None);
        let all: Vec<_> = (1..).map_while(|number| waiting.join(id(number), None)).collect();
        assert_eq!(all.len() + 1, MOST_READERS);
    }

    #[test]
    fn locks_that_no_reader_waits_for_are_forgotten() {
        let batches = Batches::<String, ()>::default();
        let kept = batches.turn(&"kept".to_owned());
        for number in 0..FIRST_SWEEP * 4 {
            drop(batches.turn(&format!("{number}")));
        }
        assert!(batches.0.lock().batches.len() <= FIRST_SWEEP + 1);
        assert!(Arc::ptr_eq(&kept, &batches.turn(&"kept".to_owned())));
    }
}
