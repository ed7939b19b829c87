//! What callers have still to learn: how a wait ended other than by a grant, and the loss of a hold. Most locks have
//! nothing of it, so it takes memory only while there is something.

use std::collections::{BTreeMap, VecDeque};

use super::{Occupant, Settled, Ticket};

pub(super) struct Unreported<O, H: Occupant, F>(Option<Box<Lists<O, H, F>>>);

struct Lists<O, H: Occupant, F> {
    /// The results of waits.
    settled: BTreeMap<Ticket, Settled<H, F>>,
    tombstones: VecDeque<Tombstone<O, H::Loss>>,
}

/// A loss that its owner does not know of yet.
struct Tombstone<O, L> {
    owner: O,
    /// The number of the hold.
    hold: u64,
    /// How many of its entries have not ended yet.
    entries: u64,
    loss: L,
}

/// The limit for tombstones; beyond it the oldest is forgotten. Owners may never come back for theirs.
const MAX_TOMBSTONES: usize = 256;

impl<O: Eq, H: Occupant, F> Unreported<O, H, F> {
    pub(super) const fn new() -> Self {
        Self(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    fn lists(&mut self) -> &mut Lists<O, H, F> {
        self.0
            .get_or_insert_with(|| Box::new(Lists { settled: BTreeMap::new(), tombstones: VecDeque::new() }))
    }

    fn forget_if_empty(&mut self) {
        if self.0.as_ref().is_some_and(|lists| lists.settled.is_empty() && lists.tombstones.is_empty()) {
            self.0 = None;
        }
    }

    pub(super) fn settle(&mut self, ticket: Ticket, settled: Settled<H, F>) {
        self.lists().settled.insert(ticket, settled);
    }

    pub(super) fn take_settled(&mut self, ticket: Ticket) -> Option<Settled<H, F>> {
        let settled = self.0.as_mut()?.settled.remove(&ticket);
        self.forget_if_empty();
        settled
    }

    fn tombstones(&self) -> impl Iterator<Item = &Tombstone<O, H::Loss>> {
        self.0.iter().flat_map(|lists| &lists.tombstones)
    }

    pub(super) fn has_tombstone_of(&self, owner: &O) -> bool {
        self.tombstones().any(|tombstone| tombstone.owner == *owner)
    }

    /// Returns how many entries the tombstone of this hold is for.
    pub(super) fn entries_into(&self, owner: &O, hold: &H) -> u64 {
        self.tombstones()
            .find(|tombstone| tombstone.owner == *owner && tombstone.hold == hold.number())
            .map_or(0, |tombstone| tombstone.entries)
    }

    /// With `of`, only a tombstone of that hold.
    pub(super) fn take_tombstone(&mut self, owner: &O, of: Option<&H>) -> Option<H::Loss> {
        let tombstones = &mut self.0.as_mut()?.tombstones;
        let position = tombstones.iter().position(|tombstone| {
            tombstone.owner == *owner && of.is_none_or(|of| of.number() == tombstone.hold)
        })?;
        let tombstone = tombstones.remove(position);
        self.forget_if_empty();
        tombstone.map(|tombstone| tombstone.loss)
    }

    /// Keeps the report of a loss for an owner that still has entries to end.
    pub(super) fn leave_tombstone(&mut self, owner: O, hold: &H, entries: u64, loss: H::Loss) {
        if entries == 0 {
            return;
        }
        let tombstones = &mut self.lists().tombstones;
        if tombstones.len() == MAX_TOMBSTONES {
            tombstones.pop_front();
        }
        tombstones.push_back(Tombstone { owner, hold: hold.number(), entries, loss });
    }
}
