//! What a break sends: a mark in the value of the holder's key, and the key's removal.

use std::time::Duration;

use lock_entries::{Breaks, Marked};

use crate::backend::EtcdEntries;
use crate::claim::replace;
use crate::failure::Failure;
use crate::line::Entry;
use crate::messages::{Compare, DELETION, KeyValue, Range, Step, Txn, WatchCreate};

/// The pause between two looks at a key, when the watch over it has ended.
const PAUSE: Duration = Duration::from_millis(100);

impl Breaks for EtcdEntries {
    async fn mark(&self, entry: &mut Entry, value: &[u8]) -> Result<Marked, Failure> {
        let answer = self.link.ask(replace(&entry.key, entry.changed, value.to_vec())).await?;
        if !answer.held {
            return Ok(Marked::Changed);
        }
        entry.changed = answer.revision();
        Ok(Marked::Told)
    }

    async fn remove(&self, entry: &Entry) -> Result<bool, Failure> {
        let txn = Txn {
            conditions: vec![Compare::changed_by(&entry.key, entry.changed)],
            then: vec![Step::delete(&entry.key)],
            otherwise: vec![Range::of(&entry.key).into()],
        };
        let answer = self.link.ask(txn).await?;
        // One that was created later is another one.
        let is_it = |found: &KeyValue| found.created == entry.place;
        Ok(answer.held || !answer.range().found.iter().any(is_it))
    }

    /// Waits until a key with this place is gone.
    async fn until_gone(&self, entry: &Entry) {
        let clock = self.link.context.clock();
        while let Ok((connection, _)) = self.link.in_contact().await {
            let mut watching = connection.watch(WatchCreate::of(&entry.key, entry.changed + 1));
            while let Some(events) = watching.next().await {
                if events.iter().any(|event| event.kind == DELETION) {
                    return;
                }
            }
            let found = self.link.ask(Range::of(&entry.key)).await;
            if found.is_ok_and(|answer| answer.found.iter().all(|found| found.created != entry.place)) {
                return;
            }
            clock.sleep_until(clock.now().plus(PAUSE)).await;
        }
    }
}
