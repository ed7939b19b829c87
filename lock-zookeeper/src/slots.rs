//! Slots of locks that are remembered, beyond the end of every session.
//!
//! ```text
//! <root>/~remembered/<xx>/<hash>            a slot
//! <root>/~remembered/<xx>/<hash>/<name>     its record: for how long; the server tells since when
//! ```
//! No lock's directory has the name `~remembered`: in the name of a lock a `~` is followed by a longer hash. Slots are spread by
//! the first characters of their hashes.
//!
//! * *Time* is the leader's, which every node carries: the record's creation, and the last write to the slot. A client that asks
//!   for a slot that exists writes to it, and compares.
//! * *Each record has a random name of its own.* A client that replaces or removes the record of a slot names it in the same
//!   transaction, so it never removes a record that another client has made meanwhile.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockError, Memo, Operation, Recall, Remembered};
use lock_entries::Failed;
use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Error, MultiReadResult, MultiWriteResult, MultiWriter};

use crate::attempt::random;
use crate::backend::ZooKeeperEntries;
use crate::failure::{Failure, nonsense, unexpected};
use crate::session::Session;

pub(crate) const REMEMBERED: &str = "~remembered";

/// How often other clients may change a slot meanwhile.
const MOST_ROUNDS: usize = 8;

/// How many other slots a client looks at when it has used one.
const SWEPT_AT_ONCE: usize = 8;

/// What a record says, for this crate and for operators.
#[derive(Serialize, Deserialize)]
struct Record {
    lock: String,
    slot: String,
    keep_ms: u64,
}

/// A record as the server has it.
struct Found {
    name: String,
    keep: u64,
    /// The server's time of its creation, in milliseconds.
    since: i64,
}

impl Found {
    /// For how much longer it is to be remembered at this time of the server; none if it may be forgotten. Both times are
    /// rounded down, so a difference may be a millisecond too long.
    fn remaining(&self, now: i64) -> Option<Duration> {
        let age = u64::try_from(now.saturating_sub(self.since)).unwrap_or(0);
        let left = self.keep.checked_sub(age.saturating_sub(1))?;
        (left > 0).then(|| Duration::from_millis(left))
    }
}

/// The slots of a client's locks, as one of its sessions uses them.
pub(crate) struct Slots<'a> {
    pub(crate) backend: &'a ZooKeeperEntries,
    pub(crate) session: Arc<Session>,
}

impl Slots<'_> {
    pub(crate) async fn remember(&self, memo: &Memo, keep: Duration) -> Result<Remembered, LockError> {
        let record = Record {
            lock: memo.name().as_str().to_owned(),
            slot: memo.slot().to_owned(),
            keep_ms: u64::try_from(keep.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
        };
        let text =
            serde_json::to_vec(&record).map_err(|error| nonsense(Operation::Remember, &error.to_string()))?;
        let record_name = format!("{:032x}", random(Operation::Remember)?);
        let (bucket, slot) = self.paths(memo);
        let explained = |failure: Failure| failure.explain(Operation::Remember);
        for _ in 0..MOST_ROUNDS {
            match self.create(&slot, (&record_name, &text), None).await {
                Ok(_) => return Ok(self.remembered(&bucket, &slot, &record_name)),
                Err((0, failure)) if failure.is(&Error::NoNode) => {
                    self.backend.recipe.make(&self.session, &bucket).await.map_err(explained)?;
                    continue;
                }
                Err((0, failure)) if failure.is(&Error::NodeExists) => {}
                Err((_, failure)) => return Err(explained(failure)),
            }
            let Some((found, now)) = look(&self.session, &slot).await.map_err(explained)? else { continue };
            if let Some(remaining) = found.as_ref().and_then(|found| found.remaining(now)) {
                return Ok(Remembered::Already { remaining });
            }
            let replaced = self.create(&slot, (&record_name, &text), Some(&found)).await;
            if is_unchanged(replaced).map_err(explained)? {
                return Ok(self.remembered(&bucket, &slot, &record_name));
            }
        }
        Err(nonsense(Operation::Remember, "other clients change the slot again and again"))
    }

    pub(crate) async fn recall(&self, memo: &Memo, recall: Recall) -> Result<Option<Duration>, Failure> {
        let (_, slot) = self.paths(memo);
        loop {
            let Some((found, now)) = look(&self.session, &slot).await? else { return Ok(None) };
            let left = found.as_ref().and_then(|found| found.remaining(now));
            if recall == Recall::Look || remove(&self.session, &slot, found.as_ref()).await? {
                return Ok(left);
            }
        }
    }

    /// The paths of a slot's bucket and of the slot.
    fn paths(&self, memo: &Memo) -> (String, String) {
        let key = memo.key();
        let bucket =
            format!("{}/{REMEMBERED}/{}", self.backend.root, key.chars().take(2).collect::<String>());
        let slot = format!("{bucket}/{key}");
        (bucket, slot)
    }

    fn remembered(&self, bucket: &str, slot: &str, record_name: &str) -> Remembered {
        let (session, bucket, slot, record_name) =
            (Arc::clone(&self.session), bucket.to_owned(), slot.to_owned(), record_name.to_owned());
        self.backend.context.spawn(async move {
            if let Err(failure) = sweep(&session, &bucket, &slot, &record_name).await {
                tracing::debug!(target: "distlock", %bucket, ?failure, "old slots were left for others to tidy up");
            }
        });
        Remembered::Now
    }

    /// Creates a slot with this record; in the place of one that may be forgotten, if it is as it was found.
    async fn create(
        &self,
        slot: &str,
        (record_name, text): (&str, &[u8]),
        former: Option<&Option<Found>>,
    ) -> Result<Vec<MultiWriteResult>, (usize, Failure)> {
        let options = CreateMode::Persistent.with_acls(self.backend.recipe.access());
        let created = self.session.change(|writer| {
            if let Some(found) = former {
                delete(writer, slot, found.as_ref())?;
            }
            writer.add_create(slot, &[], &options)?;
            writer.add_create(&format!("{slot}/{record_name}"), text, &options)
        });
        created.await
    }
}

fn delete(writer: &mut MultiWriter<'_>, slot: &str, found: Option<&Found>) -> Result<(), Error> {
    if let Some(found) = found {
        writer.add_delete(&format!("{slot}/{}", found.name), None)?;
    }
    writer.add_delete(slot, None)
}

/// Whether a transaction was carried out; false if another client was faster.
fn is_unchanged(changed: Result<Vec<MultiWriteResult>, (usize, Failure)>) -> Result<bool, Failure> {
    match changed {
        Ok(_) => Ok(true),
        Err((_, failure)) if failure.is(&Error::NoNode) || failure.is(&Error::NotEmpty) => Ok(false),
        Err((_, failure)) => Err(failure),
    }
}

/// The record of a slot, if there is one, and a later time of the server. None if the slot does not exist.
async fn look(session: &Session, slot: &str) -> Result<Option<(Option<Found>, i64)>, Failure> {
    let found = find(session, slot).await?;
    match session.change(|writer| writer.add_set_data(slot, &[], None)).await {
        Ok(results) => match results.as_slice() {
            [MultiWriteResult::SetData { stat }] => Ok(Some((found, stat.mtime))),
            _ => Err(unexpected()),
        },
        Err((_, failure)) if failure.is(&Error::NoNode) => Ok(None),
        Err((_, failure)) => Err(failure),
    }
}

async fn find(session: &Session, slot: &str) -> Result<Option<Found>, Failure> {
    let Some(name) = session.list(slot).await?.into_iter().next() else { return Ok(None) };
    match session.read(&[format!("{slot}/{name}")]).await?.pop() {
        Some(MultiReadResult::Data { data, stat }) => {
            let record: Record = serde_json::from_slice(&data)
                .map_err(|error| Failure::Told(Error::UnexpectedError(format!("{slot}: {error}"))))?;
            Ok(Some(Found { name, keep: record.keep_ms, since: stat.ctime }))
        }
        Some(MultiReadResult::Error { err: Error::NoNode }) => Ok(None),
        Some(MultiReadResult::Error { err }) => Err(Failure::Told(err)),
        _ => Err(unexpected()),
    }
}

/// Removes a slot, with the record that was found. Returns whether no other client has changed it meanwhile.
async fn remove(session: &Session, slot: &str, found: Option<&Found>) -> Result<bool, Failure> {
    is_unchanged(session.change(|writer| delete(writer, slot, found)).await)
}

/// Looks at some slots near the one that was used just now, and removes those that may be forgotten.
async fn sweep(session: &Session, bucket: &str, used: &str, record_name: &str) -> Result<(), Failure> {
    let Some(stat) = session.stat(&format!("{used}/{record_name}")).await? else { return Ok(()) };
    let mut names = session.list(bucket).await?;
    names.sort_unstable();
    // Begin elsewhere each time, so that slots that last long hide none.
    let first = usize::try_from(stat.czxid.unsigned_abs()).unwrap_or(0) % names.len().max(1);
    names.rotate_left(first);
    for name in names.iter().take(SWEPT_AT_ONCE) {
        let slot = format!("{bucket}/{name}");
        let found = find(session, &slot).await?;
        if found.as_ref().is_some_and(|found| found.remaining(stat.ctime).is_none()) {
            remove(session, &slot, found.as_ref()).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions read it.
    #[test]
    fn the_stored_form_is_what_it_was() {
        let stored = r#"{"lock":"a","slot":"b","keep_ms":5}"#;
        let record: Record = serde_json::from_str(stored).unwrap();
        assert_eq!((&*record.lock, &*record.slot, record.keep_ms), ("a", "b", 5));
        assert_eq!(serde_json::to_string(&record).unwrap(), stored);
    }
}
