//! The order among the entries of one lock: who holds it, and whom an attempt waits for. Nothing here knows how entries are kept.
//!
//! * *Exclusive:* it holds when none is before it.
//! * *Shared:* it holds when none before it is exclusive.
//! * *Permits:* it holds when all before it and itself take no more than there are. So one that does not fit stops those behind it.
//!
//! What another program has made is exclusive, or takes all permits.

use lock_core::Mode;

/// An entry in the line of a lock.
pub trait InLine {
    /// Returns its name, which no other entry has.
    fn name(&self) -> &str;

    /// Returns how it holds or wants the lock.
    fn mode(&self) -> Mode;

    /// Returns whether it is marked as broken: then it holds nothing.
    fn is_broken(&self) -> bool {
        false
    }

    /// Returns whether it has a layout that this client does not understand: then it is not known what it excludes.
    fn is_newer(&self) -> bool {
        false
    }
}

/// What an attempt may do.
#[derive(Debug, PartialEq)]
pub enum Standing<'a, E> {
    /// It has the lock.
    Holds,
    /// It has to wait until the nearest in its way goes or changes.
    Waits {
        /// All that are before it, of which the first holds the lock.
        before: &'a [E],
        /// The nearest that is in its way.
        nearest: &'a E,
    },
    /// Its own entry is gone, or marked as broken.
    Gone,
    /// The semaphore has this many permits, and not as many as the attempt expects.
    OtherNumber(u32),
    /// This entry before it has a layout that this client does not understand.
    Newer(&'a E),
}

/// Returns what the entry with this name may do, among those of the lock in their order: all that are before it, or, for an exclusive
/// one, the nearest of them.
pub fn standing<'a, E: InLine>(entries: &'a [E], own: &str) -> Standing<'a, E> {
    let Some(index) = entries.iter().position(|entry| entry.name() == own) else { return Standing::Gone };
    let (before, mine) = (&entries[..index], &entries[index]);
    if mine.is_broken() {
        return Standing::Gone;
    }
    if let Some(newer) = before.iter().find(|entry| entry.is_newer()) {
        return Standing::Newer(newer);
    }
    let nearest = match mine.mode() {
        Mode::Permits { take, of } => match before.first().map(InLine::mode) {
            Some(Mode::Permits { of: is, .. }) if is != of => return Standing::OtherNumber(is.get()),
            _ => before.last().filter(|_| !fits(before.iter().map(InLine::mode), take.get(), of.get())),
        },
        mode => before.iter().rev().find(|entry| excludes(entry.mode(), mode)),
    };
    nearest.map_or(Standing::Holds, |nearest| Standing::Waits { before, nearest })
}

/// Returns whether two of these modes cannot hold a lock together.
pub fn excludes(one: Mode, other: Mode) -> bool {
    (one, other) != (Mode::Shared, Mode::Shared)
}

/// Returns whether so many more of so many permits are left beside these.
pub fn fits(beside: impl Iterator<Item = Mode>, take: u32, of: u32) -> bool {
    let taken = beside.map(|mode| match mode {
        Mode::Permits { take, .. } => take.get(),
        _ => of,
    });
    taken.fold(take, u32::saturating_add) <= of
}

/// Returns how many of the first of these hold the lock.
pub fn how_many_hold(line: &[Mode]) -> usize {
    let holding = match line.first() {
        None => return 0,
        Some(Mode::Shared) => line.iter().take_while(|mode| **mode == Mode::Shared).count(),
        Some(Mode::Permits { of, .. }) => {
            let fit = |count: &usize| fits(line[..*count].iter().copied(), 0, of.get());
            (1..=line.len()).take_while(fit).count()
        }
        Some(_) => 1,
    };
    holding.max(1)
}
