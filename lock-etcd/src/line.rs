//! The keys of a lock, as its entries.

use lock_core::Mode;
use lock_entries::{InLine, Told};

/// One attempt or hold of some client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Entry {
    /// Its name at the server, which no other entry has.
    pub(crate) key: String,
    /// Its place: the revision that created it, which is also the token of its hold.
    pub(crate) place: i64,
    /// The revision of its last change.
    pub(crate) changed: i64,
    pub(crate) told: Told,
}

impl InLine for Entry {
    fn name(&self) -> &str {
        &self.key
    }

    fn mode(&self) -> Mode {
        self.told.mode()
    }

    fn is_broken(&self) -> bool {
        self.told.is_broken()
    }

    fn is_newer(&self) -> bool {
        self.told == Told::Newer
    }
}

/// What a client knows of the entries of a lock, from one answer of the server and the events after it.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// In their order.
    pub(crate) entries: Vec<Entry>,
    /// Whether entries before these are missing.
    pub(crate) is_partial: bool,
    /// The revision of the answer.
    pub(crate) revision: i64,
}

impl View {
    /// Notes that an entry has gone. Returns whether it was known.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let count = self.entries.len();
        self.entries.retain(|entry| entry.key != key);
        self.entries.len() < count
    }

    /// Notes that an entry has changed. Returns whether it was known: one that is created now comes after all others.
    pub(crate) fn change(&mut self, now: Entry) -> bool {
        let known = self.entries.iter_mut().find(|entry| entry.key == now.key && entry.place == now.place);
        known.map(|entry| *entry = now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(place: i64, value: &str) -> Entry {
        Entry { key: place.to_string(), place, changed: place, told: Told::read(value.as_bytes()) }
    }

    #[test]
    fn events_take_away_and_change_and_never_add() {
        let mut view = View { entries: vec![entry(0, "a"), entry(1, "b")], ..View::default() };
        assert!(!view.change(entry(7, "c")) && view.entries.len() == 2);
        // The same key was created again: that is another entry.
        let again = Entry { place: 9, ..view.entries[0].clone() };
        assert!(!view.change(again));
        let changed = Entry { changed: 9, ..entry(0, "d") };
        assert!(view.change(changed.clone()) && view.entries[0] == changed);
        assert!(view.remove("0") && !view.remove("0"));
        assert_eq!(view.entries, [entry(1, "b")]);
    }
}
