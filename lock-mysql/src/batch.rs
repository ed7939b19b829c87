//! Waits at the server, and the readers of one client that have one in common.
//!
//! Readers that wait for the same lock together send one wait. It passes the gate once and takes one slot for all of them, and the
//! last one that ends frees it. Each has an id, a token and an end of its own. Otherwise a lock would have no more readers at once, of
//! all clients together, than it has slots.
//!
//! A wait takes readers in until it has its outcome. A later reader waits anew, because a writer may be waiting at the gate by then.
//! As soon as a writer of the same client waits, the waits before it take no more readers in.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::claim::{Claim, Name};
use crate::dialect::{Asked, Link, Taken};
use lock_core::spi::Mutex;
use lock_core::{AttemptId, LockError, Mode};
use tokio::sync::{Notify, oneshot, watch};

/// The most readers of one wait: the table describes all of them in one row.
const MOST_READERS: usize = 256;

/// From so many locks on, those that no reader waits for are forgotten.
const FIRST_SWEEP: usize = 64;

/// An attempt that wants the outcome of a wait.
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
pub(crate) struct Waiting {
    /// The attempt that has sent it. What the connection has for all callers is known by this id, also when that one has gone.
    pub(crate) hold: AttemptId,
    /// The label of all callers.
    label: Option<String>,
    callers: Mutex<Callers>,
    /// Notified when all callers have gone.
    pub(crate) stop: Notify,
    /// Whether the server has been seen to have it in a queue.
    is_placed: watch::Sender<bool>,
    is_behind_the_gate: AtomicBool,
    is_answered: AtomicBool,
}

impl Waiting {
    /// A wait for this attempt, and its answer.
    pub(crate) fn new(id: AttemptId, label: Option<String>) -> (Arc<Self>, Asked) {
        let (answer, asked) = oneshot::channel();
        let callers = Callers { all: vec![Caller { id, answer }], takes_more: true };
        let waiting = Self {
            hold: id,
            label,
            callers: Mutex::new(callers),
            stop: Notify::new(),
            is_placed: watch::Sender::new(false),
            is_behind_the_gate: AtomicBool::new(false),
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

    /// Removes a caller if others stay, and returns whether they do. Otherwise no more callers come.
    pub(crate) fn leave(&self, id: AttemptId) -> bool {
        let mut callers = self.callers.lock();
        let others_stay = callers.all.iter().any(|caller| caller.id != id);
        callers.takes_more &= others_stay;
        let place = callers.all.iter().position(|caller| caller.id == id).filter(|_| others_stay);
        let left = place.map(|place| callers.all.remove(place));
        drop(callers);
        drop(left);
        others_stay
    }

    /// Whether all callers have gone; then no more come.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut callers = self.callers.lock();
        let have_gone = callers.all.iter().all(|caller| caller.answer.is_closed());
        callers.takes_more &= !have_gone;
        have_gone
    }

    /// The callers, in order.
    pub(crate) fn ids(&self) -> Vec<AttemptId> {
        self.callers.lock().all.iter().map(|caller| caller.id).collect()
    }

    fn close(&self) -> Vec<Caller> {
        let mut callers = self.callers.lock();
        callers.takes_more = false;
        std::mem::take(&mut callers.all)
    }

    fn takes_more(&self) -> bool {
        self.callers.lock().takes_more
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }

    /// Records that the attempt has the gate, and waits for what is behind it.
    pub(crate) fn enters_the_gate(&self) {
        self.is_behind_the_gate.store(true, Ordering::Release);
        self.has_a_place();
    }

    pub(crate) fn is_behind_the_gate(&self) -> bool {
        self.is_behind_the_gate.load(Ordering::Acquire)
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
}

/// A wait as its connection's task has it. When it is dropped, the callers that are left learn that the connection has ended.
#[derive(Debug)]
pub(crate) struct Promise(pub(crate) Arc<Waiting>);

impl Promise {
    /// The callers, when the server has answered. The task may need a while for what follows.
    pub(crate) fn close(&self) -> Vec<Caller> {
        self.0.is_answered.store(true, Ordering::Release);
        self.0.close()
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// The last waits of readers.
#[derive(Debug, Default)]
pub(crate) struct Batches(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By the names of gates.
    batches: HashMap<Name, Batch>,
    next_sweep: usize,
}

#[derive(Debug, Default)]
struct Batch {
    /// Locked by the reader that looks for a connection, for all that come meanwhile.
    turn: Arc<tokio::sync::Mutex<()>>,
    last: Option<(Arc<Link>, Arc<Waiting>)>,
}

impl Batches {
    /// What a reader locks that finds no wait which takes it in.
    pub(crate) fn turn(&self, gate: &Name) -> Arc<tokio::sync::Mutex<()>> {
        let mut inner = self.0.lock();
        if inner.batches.len() >= inner.next_sweep.max(FIRST_SWEEP) {
            inner.batches.retain(|_, batch| batch.is_used());
            inner.next_sweep = inner.batches.len() * 2;
        }
        Arc::clone(&inner.batches.entry(Arc::clone(gate)).or_default().turn)
    }

    /// Makes a reader take part in a wait. A claim of another mode has no part in any.
    pub(crate) fn join(
        &self,
        claim: &Claim,
        label: Option<&str>,
    ) -> Option<(Arc<Link>, Arc<Waiting>, Asked)> {
        if claim.mode != Mode::Shared {
            return None;
        }
        let inner = self.0.lock();
        let (link, waiting) = inner.batches.get(&claim.parts.gate)?.last.as_ref()?;
        let asked = waiting.join(claim.id, label)?;
        Some((Arc::clone(link), Arc::clone(waiting), asked))
    }

    /// Makes later readers take part in this wait.
    pub(crate) fn open(&self, gate: &Name, link: &Arc<Link>, waiting: &Arc<Waiting>) {
        if let Some(batch) = self.0.lock().batches.get_mut(gate) {
            batch.last = Some((Arc::clone(link), Arc::clone(waiting)));
        }
    }

    /// Keeps later readers behind a writer that waits now.
    pub(crate) fn end(&self, gate: &Name) {
        if let Some(batch) = self.0.lock().batches.get_mut(gate) {
            batch.last = None;
        }
    }
}

impl Batch {
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
        let batches = Batches::default();
        let kept = batches.turn(&"kept".into());
        for number in 0..FIRST_SWEEP * 4 {
            drop(batches.turn(&format!("{number}").into()));
        }
        assert!(batches.0.lock().batches.len() <= FIRST_SWEEP + 1);
        assert!(Arc::ptr_eq(&kept, &batches.turn(&"kept".into())));
    }
}
