//! Finds out who holds a lock, for the error of a caller that does not get it.
//!
//! The server looks through its table of locks for that, and it takes a request of its own. A wait with a limit asks while it
//! waits, so that its place in the queue does not depend on it. Without an answer in time the error names no holder.

use lock_core::spi::{Mutex, within};
use lock_core::{Moment, Participant};

use crate::dialect::Client;
use crate::inspection;
use crate::key::Key;

/// A client that is refused again and again asks so rarely that it spends at most this part of the time on it.
const SHARE: u32 = 20;

#[derive(Default)]
pub(crate) struct HolderLookup {
    /// Before that, the client does not ask.
    again_at: Mutex<Option<Moment>>,
}

impl HolderLookup {
    /// Where a table knows the holders, it asks each time.
    pub(crate) async fn holder(&self, client: &Client, key: Key) -> Option<Participant> {
        let (settings, clock) = (&client.settings, client.settings.clock());
        let began = clock.now();
        if !settings.dialect.has_table() && self.again_at.lock().is_some_and(|again_at| began < again_at) {
            return None;
        }
        let deadline = began.plus(settings.request_timeout);
        let asked = within(clock, deadline, inspection::holder(client, key)).await;
        let now = clock.now();
        *self.again_at.lock() = Some(now.plus(now.since(began) * SHARE));
        asked?.ok()?
    }
}
