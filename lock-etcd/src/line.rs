//! The order among the entries of one lock: who holds it, and whom an attempt waits for. Nothing here knows how entries are kept.
//!
//! Each attempt has one entry, and entries are ordered by the moments of their creation. No entry can come before an existing one,
//! so those before the own one in any listing are all there will ever be; they only become fewer, or go on as readers.
//!
//! * *Exclusive:* it holds when none is before it.
//! * *Shared:* it holds when none before it is exclusive.
//! * *Permits:* it holds when all before it and itself take no more than there are. So one that does not fit stops those behind it.
//!
//! What another program has made is exclusive, or takes all permits.

use lock_core::Mode;

use crate::record::Told;

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

/// What an attempt may do.
#[derive(Debug, PartialEq)]
pub(crate) enum Standing<'a> {
    Holds,
    /// It has to wait until this one, the nearest in its way, goes or changes; `first` holds the lock.
    Waits {
        nearest: &'a Entry,
        first: &'a Entry,
    },
    /// Its own entry is gone, or marked as broken.
    Gone,
    /// The semaphore has this many permits, and not as many as the attempt expects.
    OtherNumber(u32),
    /// An entry before it has a layout that this client does not understand.
    Newer(&'a Entry),
}

/// What the entry with this key may do, among those of the lock in their order: all that are before it, or, for an exclusive one, the
/// nearest of them.
pub(crate) fn standing<'a>(entries: &'a [Entry], own: &str) -> Standing<'a> {
    let Some(index) = entries.iter().position(|entry| entry.key == own) else { return Standing::Gone };
    let (before, mine) = (&entries[..index], &entries[index]);
    if mine.told.is_broken() {
        return Standing::Gone;
    }
    if let Some(newer) = before.iter().find(|entry| entry.told == Told::Newer) {
        return Standing::Newer(newer);
    }
    let nearest = match mine.told.mode() {
        Mode::Shared => before.iter().rev().find(|entry| entry.told.mode() != Mode::Shared),
        Mode::Permits { take, of } => match before.first().map(|first| first.told.mode()) {
            Some(Mode::Permits { of: is, .. }) if is != of => return Standing::OtherNumber(is.get()),
            _ => before.last().filter(|_| !fits(before, take.get(), of.get())),
        },
        _ => before.last(),
    };
    match (nearest, before.first()) {
        (Some(nearest), Some(first)) => Standing::Waits { nearest, first },
        _ => Standing::Holds,
    }
}

/// Whether this many more permits are left of so many.
fn fits(before: &[Entry], take: u32, of: u32) -> bool {
    let taken = before.iter().map(|entry| match entry.told.mode() {
        Mode::Permits { take, .. } => take.get(),
        _ => of,
    });
    taken.fold(take, u32::saturating_add) <= of
}

/// How many of the first of these hold the lock.
pub(crate) fn how_many_hold(entries: &[Entry]) -> usize {
    let Some(first) = entries.first() else { return 0 };
    let holding = match first.told.mode() {
        Mode::Shared => entries.iter().take_while(|entry| entry.told.mode() == Mode::Shared).count(),
        Mode::Permits { of, .. } => {
            (1..=entries.len()).take_while(|count| fits(&entries[..*count], 0, of.get())).count()
        }
        _ => 1,
    };
    holding.max(1)
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
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::num::NonZeroU32;
    use std::time::Duration;

    use lock_core::HolderInfo;

    use super::*;
    use crate::record::Record;

    const EXCLUSIVE: Mode = Mode::Exclusive;
    const SHARED: Mode = Mode::Shared;

    fn permits(take: u32, of: u32) -> Mode {
        Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
    }

    fn entry(place: usize, told: Told) -> Entry {
        let revision = i64::try_from(place).unwrap();
        Entry { key: place.to_string(), place: revision, changed: revision, told }
    }

    fn line(modes: &[Mode]) -> Vec<Entry> {
        let told = |mode: &Mode| {
            Told::Ours(Record::new(&HolderInfo::of_this_process(), *mode, Duration::ZERO).unwrap())
        };
        modes.iter().enumerate().map(|(place, mode)| entry(place, told(mode))).collect()
    }

    /// The place of the nearest in the way of the last one; none if that one holds.
    fn in_the_way(entries: &[Entry]) -> Option<i64> {
        match standing(entries, &entries.last().unwrap().key) {
            Standing::Holds => None,
            Standing::Waits { nearest, first } => {
                assert_eq!(first, &entries[0]);
                Some(nearest.place)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn readers_stand_beside_readers_and_behind_writers() {
        assert_eq!(in_the_way(&line(&[EXCLUSIVE])), None);
        assert_eq!(in_the_way(&line(&[SHARED, SHARED])), None);
        assert_eq!(in_the_way(&line(&[SHARED, EXCLUSIVE])), Some(0));
        assert_eq!(in_the_way(&line(&[SHARED, EXCLUSIVE, SHARED, SHARED])), Some(1));
        assert_eq!(in_the_way(&line(&[EXCLUSIVE, EXCLUSIVE, EXCLUSIVE])), Some(1));
    }

    #[test]
    fn permits_are_given_in_order_and_none_passes_one_that_does_not_fit() {
        assert_eq!(in_the_way(&line(&[permits(1, 3), permits(2, 3)])), None);
        assert_eq!(in_the_way(&line(&[permits(2, 3), permits(2, 3), permits(1, 3)])), Some(1));
        assert_eq!(in_the_way(&line(&[permits(3, 3), permits(1, 3)])), Some(0));
        let entries = line(&[permits(1, 3), permits(1, 5), permits(1, 3)]);
        assert_eq!(standing(&entries, "1"), Standing::OtherNumber(3));
        // It is about to be refused, and takes room until then.
        assert_eq!(standing(&entries, "2"), Standing::Holds);
    }

    #[test]
    fn what_others_have_made_is_exclusive() {
        let foreign = Told::Foreign(Vec::new());
        let mut entries = line(&[SHARED, SHARED, SHARED]);
        entries[1].told = foreign.clone();
        assert_eq!(in_the_way(&entries), Some(1));
        let mut entries = line(&[permits(1, 3), permits(1, 3)]);
        entries[0].told = foreign;
        assert_eq!(in_the_way(&entries), Some(0));
        entries[0].told = Told::Newer;
        assert_eq!(standing(&entries, "1"), Standing::Newer(&entries[0]));
    }

    #[test]
    fn an_entry_that_is_gone_or_broken_holds_nothing() {
        let mut entries = line(&[EXCLUSIVE]);
        assert_eq!(standing(&entries, "7"), Standing::Gone);
        if let Told::Ours(record) = &mut entries[0].told {
            *record = record.broken();
        }
        assert_eq!(standing(&entries, "0"), Standing::Gone);
    }

    #[test]
    fn those_hold_that_would_not_wait() {
        for (modes, holding) in [
            (&[][..], 0),
            (&[EXCLUSIVE, SHARED], 1),
            (&[SHARED, SHARED, EXCLUSIVE, SHARED], 2),
            (&[permits(2, 3), permits(1, 3), permits(1, 3)], 2),
            (&[permits(2, 3), permits(2, 3), permits(1, 3)], 1),
        ] {
            assert_eq!(how_many_hold(&line(modes)), holding, "{modes:?}");
        }
    }

    #[test]
    fn events_take_away_and_change_and_never_add() {
        let mut view = View { entries: line(&[EXCLUSIVE, EXCLUSIVE]), ..View::default() };
        assert!(!view.change(entry(7, Told::Newer)) && view.entries.len() == 2);
        // The same key was created again: that is another entry.
        let again = Entry { place: 9, ..view.entries[0].clone() };
        assert!(!view.change(again));
        let shared = Entry { changed: 9, ..line(&[SHARED]).remove(0) };
        assert!(view.change(shared) && view.entries[0].told.mode() == SHARED);
        assert!(view.remove("0") && !view.remove("0"));
        assert_eq!(standing(&view.entries, "1"), Standing::Holds);
    }
}
