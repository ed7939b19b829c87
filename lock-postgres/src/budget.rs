//! The client's part of the server's table of locks.
//!
//! All users of a server share that table, and when it is full, others cannot even connect. So the client takes no lock when
//! more entries are taken than the server promises (`max_locks_per_transaction`, for each of its connections), which is about
//! half of what there really is. The server counts in the message that takes a lock, but only now and then: a count costs it
//! milliseconds where thousands of locks are held. In between, a client takes a few locks more than it gives back.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{Clock, LockError, Moment};
use lock_kit::is_nearly_full;

use crate::failure::full_table;
use crate::statement::COUNT;

/// The most locks that a client takes without another count: what one connection is entitled to by default.
const MOST_AHEAD: u64 = 64;

/// A client takes this part of the free entries without another count: others do so, too.
const PART: u64 = 16;

/// How long a count is good for.
const FRESH: Duration = Duration::from_secs(10);

/// A client has the server count so rarely that this takes at most this part of the time.
const SHARE: u32 = 500;

/// How long the client refuses without another count.
const REST: Duration = Duration::from_millis(250);

pub(crate) struct Budget {
    clock: Clock,
    state: Mutex<State>,
}

struct State {
    /// How many locks the client may take without another count.
    ahead: u64,
    fresh_until: Moment,
    full: Option<Full>,
    has_warned: bool,
}

struct Full {
    taken: u64,
    until: Moment,
}

/// The entries of one acquisition, which go back when this is dropped.
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    locks: u64,
    capacity: u64,
    is_counted: bool,
    /// How many entries the server has counted.
    taken: u64,
}

impl Budget {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        let state = State { ahead: 0, fresh_until: clock.now(), full: None, has_warned: false };
        Arc::new(Self { clock, state: Mutex::new(state) })
    }

    /// Reserves this many locks, of the `capacity` that the server promises.
    pub(crate) fn claim(self: &Arc<Self>, locks: u64, capacity: u64) -> Result<Reservation, LockError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if let Some(full) = &state.full
            && now < full.until
        {
            return Err(full_table(full.taken, capacity));
        }
        let is_counted = now >= state.fresh_until || state.ahead < locks;
        if !is_counted {
            state.ahead -= locks;
        }
        Ok(Reservation { budget: Arc::clone(self), locks, capacity, is_counted, taken: 0 })
    }
}

impl Reservation {
    /// The statement that counts, if the server has to.
    pub(crate) fn counting(&self) -> &'static str {
        if self.is_counted { COUNT } else { "" }
    }

    /// The server has counted, for a request that was sent at this moment. That took this long.
    pub(crate) fn counted(&mut self, taken: u64, sent: Moment, took: Duration) {
        self.taken = taken;
        let mut state = self.budget.state.lock();
        state.ahead = (self.capacity.saturating_sub(taken + self.locks) / PART).min(MOST_AHEAD);
        state.fresh_until = sent.plus(FRESH.max(took * SHARE));
        if is_nearly_full(taken, self.capacity) && !std::mem::replace(&mut state.has_warned, true) {
            let error = full_table(taken, self.capacity);
            tracing::warn!(target: "distlock", %error, "locks may be refused soon");
        }
    }

    /// The refusal, if too many entries were taken before. For a while the client refuses then.
    pub(crate) fn refusal(&mut self) -> Option<LockError> {
        let taken = Some(self.taken).filter(|taken| *taken > self.capacity.saturating_sub(self.locks))?;
        self.locks = 0;
        let until = self.budget.clock.now().plus(REST);
        self.budget.state.lock().full = Some(Full { taken, until });
        Some(full_table(taken, self.capacity))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.locks == 0 {
            return;
        }
        let mut state = self.budget.state.lock();
        state.full = None;
        if !self.is_counted {
            state.ahead = (state.ahead + self.locks).min(MOST_AHEAD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_counts_now_and_then() {
        let budget = Budget::new(Clock::system());
        let claim = || budget.claim(1, 1000).unwrap();
        let mut first = claim();
        assert_eq!(first.counting(), COUNT);
        first.counted(199, Clock::system().now(), Duration::ZERO);
        // A sixteenth of what is free.
        let mut reservations: Vec<_> = (0..50).map(|_| claim()).collect();
        assert!(reservations.iter().all(|reservation| reservation.counting().is_empty()));
        assert_eq!(claim().counting(), COUNT);
        reservations.pop();
        assert_eq!(claim().counting(), "");
    }

    #[test]
    fn a_full_table_is_left_alone_for_a_while() {
        let budget = Budget::new(Clock::system());
        let mine = budget.claim(1, 100).unwrap();
        let mut refused = budget.claim(3, 100).unwrap();
        let sent = Clock::system().now();
        refused.counted(97, sent, Duration::ZERO);
        assert!(refused.refusal().is_none());
        refused.counted(98, sent, Duration::ZERO);
        let error = refused.refusal().unwrap();
        assert!(error.is_retryable() && error.to_string().contains("max_locks_per_transaction"), "{error}");
        assert!(budget.claim(1, 100).is_err());
        drop(mine);
        assert!(budget.claim(1, 100).is_ok());
    }
}
