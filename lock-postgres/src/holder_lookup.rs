//! When a refusal may say who holds the lock: for that the server looks through its table of locks.

use std::time::Duration;

use lock_core::Moment;
use lock_core::spi::Mutex;

use crate::options::TokenSource;
use crate::statement::NameHolder;

/// The server looks so rarely that this takes at most this part of the time.
const SHARE: u32 = 20;

#[derive(Default)]
pub(crate) struct HolderLookup {
    /// Before that, refusals say nothing.
    again_at: Mutex<Option<Moment>>,
}

impl HolderLookup {
    /// Whether a refusal of a statement that is sent now says it. Where a table knows the holders, each does.
    pub(crate) fn next(&self, now: Moment, tokens: TokenSource) -> NameHolder {
        match *self.again_at.lock() {
            Some(again_at) if now < again_at && tokens != TokenSource::Table => NameHolder::No,
            _ => NameHolder::Yes,
        }
    }

    /// A refusal has said it, and took this long.
    pub(crate) fn took(&self, now: Moment, took: Duration) {
        *self.again_at.lock() = Some(now.plus(took * SHARE));
    }
}
