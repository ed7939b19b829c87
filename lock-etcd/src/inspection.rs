//! Finds, marks and removes the keys of others: who holds a lock and who waits for it, and taking a lock away from its holder.

use std::collections::BTreeSet;
use std::time::Duration;

use lock_core::{InspectRequest, LockKind};
use lock_entries::{InLine, Line, Lines, Marked, Shown, how_many_hold, newer};

use crate::backend::{EtcdEntries, participant};
use crate::claim::{Directory, replace};
use crate::failure::Failure;
use crate::line::Entry;
use crate::messages::{Compare, DELETION, KeyValue, Range, Step, Txn, WatchCreate};

/// How many keys of a list the server reads at once, while others wait for it.
const PAGE: u16 = 1000;

/// The pause between two looks at a key, when the watch over it has ended.
const PAUSE: Duration = Duration::from_millis(100);

impl Lines for EtcdEntries {
    type Failure = Failure;
    type Key = Entry;

    async fn line(&self, request: &InspectRequest) -> Result<Line<Entry>, Failure> {
        self.link.soon().await?;
        let is_semaphore = request.kind() == LockKind::Semaphore;
        let directory = self.link.options.directory(request.physical(), is_semaphore);
        let line: Vec<_> = self.link.ask(directory.range()).await?.found.iter().map(Entry::from).collect();
        if let Some(entry) = line.iter().find(|entry| entry.is_newer()) {
            return Err(Failure::Refused(newer(&entry.key)));
        }
        let holding = how_many_hold(&line.iter().map(InLine::mode).collect::<Vec<_>>());
        let shown = |key: Entry| Shown { participant: participant(&key), told: Some(key.told.clone()), key };
        Ok(Line { entries: line.into_iter().map(shown).collect(), holding })
    }

    async fn list(&self) -> Result<Vec<InspectRequest>, Failure> {
        self.link.soon().await?;
        let directory = Directory::new(self.link.options.prefix.clone());
        let (mut from, mut owners) = (directory.start().to_owned(), BTreeSet::new());
        loop {
            // In the order of the keys, which needs no sorting.
            let page = Range {
                key: from,
                end: directory.end(),
                limit: PAGE.into(),
                keys_only: true,
                ..Range::default()
            };
            let found = self.link.ask(page).await?.found;
            // The prefix is that of clients, whose keys are text.
            let keys: Vec<_> = found.iter().filter_map(|found| str::from_utf8(&found.key).ok()).collect();
            let owned = keys.iter().filter_map(|key| self.link.options.owner_of(key));
            owners.extend(owned.map(|(name, kind)| (name.to_owned(), kind)));
            match keys.last() {
                Some(last) if found.len() >= PAGE.into() => from = format!("{last}\0"),
                _ => break,
            }
        }
        Ok(owners.iter().filter_map(|(name, kind)| InspectRequest::found(name, *kind).ok()).collect())
    }

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
