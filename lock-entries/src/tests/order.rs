use std::num::NonZeroU32;

use lock_core::Mode;

use crate::{InLine, Standing, how_many_hold, standing};

const EXCLUSIVE: Mode = Mode::Exclusive;
const SHARED: Mode = Mode::Shared;

#[derive(Debug, Clone, PartialEq)]
struct Entry {
    name: String,
    mode: Mode,
    is_broken: bool,
    is_newer: bool,
}

impl InLine for Entry {
    fn name(&self) -> &str {
        &self.name
    }

    fn mode(&self) -> Mode {
        self.mode
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn is_newer(&self) -> bool {
        self.is_newer
    }
}

fn permits(take: u32, of: u32) -> Mode {
    Mode::Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
}

fn line(modes: &[Mode]) -> Vec<Entry> {
    let entry = |(place, mode): (usize, &Mode)| Entry {
        name: place.to_string(),
        mode: *mode,
        is_broken: false,
        is_newer: false,
    };
    modes.iter().enumerate().map(entry).collect()
}

/// The place of the nearest in the way of the last one; none if that one holds.
fn in_the_way(modes: &[Mode]) -> Option<usize> {
    let entries = line(modes);
    match standing(&entries, &entries.last().unwrap().name) {
        Standing::Holds => None,
        Standing::Waits { nearest, before } => {
            assert_eq!(before, &entries[..entries.len() - 1]);
            Some(nearest.name.parse().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn readers_stand_beside_readers_and_behind_writers() {
    assert_eq!(in_the_way(&[EXCLUSIVE]), None);
    assert_eq!(in_the_way(&[SHARED, SHARED]), None);
    assert_eq!(in_the_way(&[SHARED, EXCLUSIVE]), Some(0));
    assert_eq!(in_the_way(&[SHARED, EXCLUSIVE, SHARED, SHARED]), Some(1));
    assert_eq!(in_the_way(&[EXCLUSIVE, EXCLUSIVE, EXCLUSIVE]), Some(1));
}

#[test]
fn permits_are_given_in_order_and_none_passes_one_that_does_not_fit() {
    assert_eq!(in_the_way(&[permits(1, 3), permits(2, 3)]), None);
    assert_eq!(in_the_way(&[permits(2, 3), permits(2, 3), permits(1, 3)]), Some(1));
    assert_eq!(in_the_way(&[permits(3, 3), permits(1, 3)]), Some(0));
    // What another program has made takes all of them.
    assert_eq!(in_the_way(&[EXCLUSIVE, permits(1, 3)]), Some(0));
    let entries = line(&[permits(1, 3), permits(1, 5), permits(1, 3)]);
    assert_eq!(standing(&entries, "1"), Standing::OtherNumber(3));
    // It is about to be refused, and takes room until then.
    assert_eq!(standing(&entries, "2"), Standing::Holds);
}

#[test]
fn what_is_newer_is_in_the_way_of_those_behind_it() {
    let mut entries = line(&[SHARED, SHARED, SHARED]);
    entries[1].is_newer = true;
    assert_eq!(standing(&entries, "0"), Standing::Holds);
    assert_eq!(standing(&entries, "2"), Standing::Newer(&entries[1]));
}

#[test]
fn an_entry_that_is_gone_or_broken_holds_nothing() {
    let mut entries = line(&[EXCLUSIVE]);
    assert_eq!(standing(&entries, "7"), Standing::Gone);
    entries[0].is_broken = true;
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
        assert_eq!(how_many_hold(modes), holding, "{modes:?}");
    }
}
