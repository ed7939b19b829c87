//! What a break does: it marks the entry, waits for the holder, and removes the entry.

use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Broken, HolderId, InspectRequest, LockError, Operation};

use crate::claim::Failed;
use crate::entries::{Entries, Marked};
use crate::record::{Record, Told};

/// How long a holder may take to learn that its hold is broken: longer than the time in which a new hold is not watched yet, even
/// on a busy machine.
const TOLD_BEFORE: Duration = Duration::from_secs(1);

/// Marks the hold as broken, so that its holder stops, and removes the entry when it has had time for that. Each step is about the
/// entry as it was seen: what its holder writes meanwhile is neither overwritten nor removed unseen.
pub(crate) async fn take_from<S: Entries>(
    store: &S,
    request: &InspectRequest,
    holder: &HolderId,
) -> Result<Broken, LockError> {
    let explained = |failure: S::Failure| failure.explain(Operation::Break);
    loop {
        let line = store.line(request).await.map_err(explained)?;
        let mut holders = line.entries.into_iter().take(line.holding);
        let Some(mut entry) = holders.find(|entry| entry.participant.id == *holder) else {
            return Ok(Broken::not_held());
        };
        let record = match entry.told {
            Some(Told::Ours(record)) => Some(record),
            // The client may not read it, but can perhaps still mark it for its holder.
            None => Some(Record::unknown()),
            // Its holder would not understand a mark.
            Some(Told::Newer | Told::Foreign(_)) => None,
        };
        if let Some(record) = record {
            let marked = if record.is_broken() {
                Marked::Told
            } else {
                store.mark(&mut entry.key, &record.broken().text()?).await.map_err(explained)?
            };
            match marked {
                Marked::Changed => continue,
                Marked::Told => {
                    // It stops, and removes the entry before another client can have the lock.
                    let clock = store.context().clock();
                    let stopped_by = clock.now().plus(TOLD_BEFORE.saturating_add(record.stops_within()));
                    let _ = within(clock, stopped_by, store.until_gone(&entry.key)).await;
                }
                Marked::Untold => {}
            }
        }
        if store.remove(&entry.key).await.map_err(explained)? {
            return Ok(Broken::taken_away());
        }
    }
}
