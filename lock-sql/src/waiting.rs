//! A wait at the server, as its attempt, its connection's task and those who look at it know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// A wait that is under way at the server.
#[derive(Debug, Default)]
pub struct Waiting {
    /// The [comment](crate::Waiter::comment) of its statements: who waits.
    pub comment: String,
    /// Whether its caller has already found that the lock is not free.
    pub has_tried: bool,
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
    pub(crate) fn new(comment: String, has_tried: bool) -> Arc<Self> {
        Arc::new(Self { comment, has_tried, ..Self::default() })
    }

    /// Ends the wait: its caller has gone.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.end.notify_one();
    }

    /// Returns whether its caller has gone.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
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

    /// Returns whether the wait, which has ended, is to begin anew; if so, it does.
    pub fn begins_anew(&self) -> bool {
        let begins = self.gives_way.swap(false, Ordering::Relaxed) && !self.is_stopped();
        self.rounds.fetch_add(u64::from(begins), Ordering::Relaxed);
        begins
    }

    /// Waits until the wait has to end.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn ended(&self) {
        while !self.is_stopped() && !self.gives_way.load(Ordering::Relaxed) {
            self.end.notified().await;
        }
    }

    /// Waits until its caller has gone.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn stopped(&self) {
        while !self.is_stopped() {
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
    pub(crate) fn is_over(&self) {
        self.is_answered.store(true, Ordering::Release);
    }

    /// Returns whether the server has answered the wait.
    pub fn has_answer(&self) -> bool {
        self.is_answered.load(Ordering::Acquire)
    }
}
