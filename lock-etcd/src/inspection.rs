//! Finds the keys of others: who holds a lock and who waits for it.

use std::collections::BTreeSet;

use lock_core::{InspectRequest, LockKind};
use lock_entries::{InLine, Line, Lines, Shown, how_many_hold, newer};

use crate::backend::{EtcdEntries, participant};
use crate::claim::Directory;
use crate::failure::Failure;
use crate::line::Entry;
use crate::messages::Range;

/// How many keys of a list the server reads at once, while others wait for it.
const PAGE: u16 = 1000;

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
}
