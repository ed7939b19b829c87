//! What the memory server remembers apart from locks.

use std::collections::HashMap;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{Clock, Memo, Moment, Recall, Remembered};

/// Until when which slot is remembered.
#[derive(Debug, Default)]
pub(super) struct Memos(Mutex<HashMap<String, Moment>>);

impl Memos {
    pub(super) fn remember(&self, memo: &Memo, keep: Duration, clock: &Clock) -> Remembered {
        let mut memos = self.0.lock();
        // Read here: no memo is from a later moment, so none has more left than it was to be kept.
        let now = clock.now();
        memos.retain(|_, until| *until > now);
        let key = memo.key();
        if let Some(until) = memos.get(&key) {
            return Remembered::Already { remaining: until.since(now) };
        }
        memos.insert(key, now.plus(keep));
        Remembered::Now
    }

    pub(super) fn recall(&self, memo: &Memo, recall: Recall, clock: &Clock) -> Option<Duration> {
        let mut memos = self.0.lock();
        let (key, now) = (memo.key(), clock.now());
        let until = match recall {
            Recall::Look => memos.get(&key).copied(),
            Recall::Forget => memos.remove(&key),
        };
        until.filter(|until| *until > now).map(|until| until.since(now))
    }
}
