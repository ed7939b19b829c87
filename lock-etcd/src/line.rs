//! The keys of a lock, as its entries.

use lock_core::Mode;
use lock_entries::{InLine, Told};

use crate::messages::{DELETION, Event, KeyValue, TxnAnswer};

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

impl From<&KeyValue> for Entry {
    fn from(found: &KeyValue) -> Self {
        Self {
            key: String::from_utf8_lossy(&found.key).into_owned(),
            place: found.created,
            changed: found.changed,
            told: Told::read(&found.value),
        }
    }
}

/// What a client knows of the entries of a lock, from one answer of the server and the events after it.
#[derive(Debug, Default)]
pub(crate) struct View {
    /// Those that were read, in their order.
    pub(crate) entries: Vec<Entry>,
    /// How many there were.
    pub(crate) length: i64,
    /// The revision of the answer.
    pub(crate) revision: i64,
}

impl From<TxnAnswer> for View {
    fn from(answer: TxnAnswer) -> Self {
        let read = answer.answers.iter().filter_map(|answer| answer.range.as_ref());
        let mut entries: Vec<_> = read.clone().flat_map(|range| &range.found).map(Entry::from).collect();
        entries.sort_by(|one, other| (one.place, &one.key).cmp(&(other.place, &other.key)));
        entries.dedup();
        let length = read.map(|range| range.count).max().unwrap_or(0);
        Self { entries, length, revision: answer.header.revision }
    }
}

impl View {
    /// Notes events that it does not know. An entry that is created now comes after all others.
    pub(crate) fn note(&mut self, events: Vec<Event>) {
        for Event { kind, entry } in events {
            let Some(now) = entry.filter(|now| now.changed > self.revision) else { continue };
            let known = self.entries.iter().position(|known| known.key.as_bytes() == now.key);
            match known {
                Some(index) if kind == DELETION => drop(self.entries.remove(index)),
                Some(index) if self.entries[index].place == now.created => {
                    self.entries[index] = (&now).into();
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{RangeAnswer, StepAnswer};

    fn found(key: &str, created: i64, changed: i64) -> KeyValue {
        KeyValue { key: key.into(), created, changed, ..KeyValue::default() }
    }

    fn keys(view: &View) -> Vec<(&str, i64)> {
        view.entries.iter().map(|entry| (&*entry.key, entry.changed)).collect()
    }

    #[test]
    fn what_was_read_twice_is_one_entry_and_in_order() {
        let range =
            |found, count| StepAnswer { range: Some(RangeAnswer { found, count, ..Default::default() }) };
        let newest = range(vec![found("c", 9, 9), found("b", 5, 7)], 3);
        let first = range(vec![found("a", 5, 5)], 3);
        let view =
            View::from(TxnAnswer { answers: vec![newest, first.clone(), first], ..Default::default() });
        assert_eq!((keys(&view), view.length), (vec![("a", 5), ("b", 7), ("c", 9)], 3));
    }

    #[test]
    fn events_take_away_and_change_and_never_add() {
        let entries = [found("a", 1, 1), found("b", 2, 2)].iter().map(Entry::from).collect();
        let mut view = View { entries, length: 2, revision: 4 };
        let event = |kind, entry| Event { kind, entry: Some(entry) };
        view.note(vec![
            event(0, found("c", 5, 5)),
            // Known already.
            event(DELETION, found("b", 0, 4)),
            event(0, found("b", 2, 6)),
            // The same key was created again: that is another entry.
            event(0, found("b", 7, 7)),
        ]);
        assert_eq!(keys(&view), [("a", 1), ("b", 6)]);
        view.note(vec![event(DELETION, found("a", 0, 8)), event(DELETION, found("c", 0, 8))]);
        assert_eq!(keys(&view), [("b", 6)]);
    }
}
