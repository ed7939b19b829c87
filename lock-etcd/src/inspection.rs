//! Shows who holds a lock and who waits for it, and takes a lock away from its holder.

use std::time::Duration;

use lock_core::spi::within;
use lock_core::{Broken, HolderId, InspectRequest, LockKind, LockStatus};

use crate::attempt::{newer, view_of};
use crate::backend::{EtcdBackend, participant};
use crate::claim::Directory;
use crate::failure::Failure;
use crate::line::{Entry, how_many_hold};
use crate::messages::{Compare, Put, Range, Step, Txn};
use crate::record::{Record, Told};

/// How long a holder may take to learn that its hold is broken: longer than the time in which a new hold is not watched yet, even
/// on a busy machine.
const TOLD_BEFORE: Duration = Duration::from_secs(1);

/// The pause between two looks at a key, when the watch over it has ended.
const PAUSE: Duration = Duration::from_millis(100);

impl EtcdBackend {
    fn directory_of(&self, request: &InspectRequest) -> Directory {
        self.link.options.directory(request.physical(), request.kind() == LockKind::Semaphore)
    }

    async fn line(&self, request: &InspectRequest) -> Result<Vec<Entry>, Failure> {
        self.link.soon().await?;
        let line = view_of(self.link.ask(self.directory_of(request).range(0)).await?).entries;
        match line.iter().find(|entry| entry.told == Told::Newer) {
            Some(entry) => Err(Failure::Refused(newer(entry))),
            None => Ok(line),
        }
    }

    pub(crate) async fn status_of(&self, request: &InspectRequest) -> Result<LockStatus, Failure> {
        let line = self.line(request).await?;
        let (holders, waiters) = line.split_at(how_many_hold(&line));
        let mut status = LockStatus::free(request.name().clone());
        status.holders = holders.iter().map(participant).collect();
        status.waiters = waiters.iter().map(|entry| participant(entry).with_token(None)).collect();
        Ok(status)
    }

    /// Marks the hold as broken, so that its holder stops, and deletes the key when it has had time for that. Another program's
    /// key is deleted at once, as it would not understand the mark.
    pub(crate) async fn take_from(
        &self,
        request: &InspectRequest,
        holder: &HolderId,
    ) -> Result<Broken, Failure> {
        let (line, start) = (self.line(request).await?, self.directory_of(request));
        let key = format!("{}{holder}", start.start());
        let Some(entry) = line[..how_many_hold(&line)].iter().find(|entry| entry.key == key) else {
            return Ok(Broken::not_held());
        };
        if let Told::Ours(record) = &entry.told {
            if !self.mark(entry, record).await? {
                // It has changed or gone meanwhile.
                return Box::pin(self.take_from(request, holder)).await;
            }
            let clock = self.link.context.clock();
            let stopped_by = clock.now().plus(TOLD_BEFORE.saturating_add(record.stops_within()));
            let _ = within(clock, stopped_by, self.until_gone(entry)).await;
        }
        let txn = Txn {
            conditions: vec![Compare::created_by(&key, entry.place)],
            then: vec![Step::delete(&key)],
            otherwise: Vec::new(),
        };
        self.link.ask(txn).await?;
        Ok(Broken::taken_away())
    }

    /// Returns whether the key was still as it was found.
    async fn mark(&self, entry: &Entry, record: &Record) -> Result<bool, Failure> {
        let value = record.broken().text().map_err(Failure::Refused)?;
        Ok(self.link.ask(replace(&entry.key, entry.changed, value)).await?.held)
    }

    /// Waits until a key with this place is gone.
    async fn until_gone(&self, entry: &Entry) {
        let clock = self.link.context.clock();
        while let Ok((connection, _)) = self.link.in_contact().await {
            let mut watching = connection.watch(&entry.key, "", entry.changed + 1);
            while let Some(events) = watching.next().await {
                if events.iter().any(|event| event.kind != 0) {
                    return;
                }
            }
            let found = self.link.ask(Range { key: entry.key.clone(), ..Range::default() }).await;
            if found.is_ok_and(|answer| answer.found.iter().all(|found| found.created != entry.place)) {
                return;
            }
            clock.sleep_until(clock.now().plus(PAUSE)).await;
        }
    }
}

/// Gives a key a new value, if it was last changed by this revision; reads it otherwise.
pub(crate) fn replace(key: &str, changed: i64, value: Vec<u8>) -> Txn {
    let put = Put { key: key.to_owned(), value, lease: 0, keeps_lease: true };
    Txn {
        conditions: vec![Compare::changed_by(key, changed)],
        then: vec![put.into()],
        otherwise: vec![Range { key: key.to_owned(), ..Range::default() }.into()],
    }
}
