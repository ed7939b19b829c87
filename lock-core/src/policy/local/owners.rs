//! The owners that have entered: how often, into which hold, and which of them have still to learn of a loss.

use std::hash::RandomState;
use std::sync::Arc;

use super::turn::Turn;
use crate::policy::hold::Hold;
use crate::runtime::{FewByKey, Outstanding, Pending};
use crate::spi::Mode;
use crate::types::{LossReason, Owner};

#[derive(Default)]
pub(super) struct Owners {
    entered: FewByKey<(Owner, Mode), EnteredHold, RandomState>,
    tombstones: Vec<Tombstone>,
}

pub(super) struct EnteredHold {
    pub(super) hold: Hold,
    pub(super) entries: u64,
}

/// A loss that its owner does not know of yet.
pub(crate) struct Tombstone {
    key: (Owner, Mode),
    /// The number of the hold, which is not kept for an owner that may never come back.
    hold: u64,
    /// How many of its entries have not ended yet.
    entries: u64,
    pub(super) reason: LossReason,
    /// Done when all of its entries have ended.
    stopping: Pending,
}

impl Tombstone {
    /// An entry has ended, and the owner learns of the loss. If there are others, it may still be at work.
    pub(super) fn left(self, turn: &mut Turn<'_>) -> LossReason {
        if self.entries == 1 {
            turn.effects.done.push(self.stopping);
        }
        self.reason
    }
}

/// The limit for losses; beyond it the oldest is forgotten. Owners may never come back for theirs.
const MOST_LOST: usize = 256;

impl Owners {
    pub(super) fn entered(&self, owner: Owner, mode: Mode) -> Option<&EnteredHold> {
        self.entered.get(&(owner, mode))
    }

    /// With `of`, only if it has entered that hold.
    pub(super) fn entered_mut(
        &mut self,
        owner: Owner,
        mode: Mode,
        of: Option<&Hold>,
    ) -> Option<&mut EnteredHold> {
        self.entered.get_mut(&(owner, mode)).filter(|entered| of.is_none_or(|of| entered.hold == *of))
    }

    /// Enters for the first time.
    pub(super) fn enter(&mut self, owner: Owner, mode: Mode, hold: &Hold, entries: u64) {
        debug_assert!(self.entered(owner, mode).is_none(), "it has entered");
        self.entered.insert((owner, mode), EnteredHold { hold: hold.clone(), entries });
    }

    /// Leaves for the last time.
    pub(super) fn leave(&mut self, owner: Owner, mode: Mode) -> Option<EnteredHold> {
        self.entered.remove(&(owner, mode))
    }

    /// The hold of an owner is lost. It learns of that, once, unless all of its entries end before without a caller that
    /// could receive the report.
    pub(super) fn lose(&mut self, owner: Owner, mode: Mode, reason: LossReason, stopping: &Arc<Outstanding>) {
        let stopping = stopping.begin().until_done();
        let Some(EnteredHold { hold, entries }) = self.leave(owner, mode) else { return };
        if self.tombstones.len() == MOST_LOST {
            self.tombstones.remove(0);
        }
        self.tombstones.push(Tombstone {
            key: (owner, mode),
            hold: hold.0.number,
            entries,
            reason,
            stopping,
        });
    }

    /// The owner learns of its loss. With `of`, only of the loss of that hold.
    pub(super) fn take_tombstone(
        &mut self,
        owner: Owner,
        mode: Mode,
        of: Option<&Hold>,
    ) -> Option<Tombstone> {
        let position = self.tombstone_of(owner, mode, of)?;
        Some(self.tombstones.remove(position))
    }

    /// An entry into a lost hold ends without a caller: the owner still learns of the loss when it ends the others.
    pub(super) fn leave_tombstone(
        &mut self,
        turn: &mut Turn<'_>,
        owner: Owner,
        mode: Mode,
        of: &Hold,
    ) -> Option<LossReason> {
        let position = self.tombstone_of(owner, mode, Some(of))?;
        let tombstone = self.tombstones.get_mut(position)?;
        if tombstone.entries == 1 {
            return Some(self.tombstones.remove(position).left(turn));
        }
        tombstone.entries -= 1;
        Some(tombstone.reason)
    }

    fn tombstone_of(&self, owner: Owner, mode: Mode, of: Option<&Hold>) -> Option<usize> {
        let is_it = |one: &Tombstone| one.key == (owner, mode) && of.is_none_or(|of| of.0.number == one.hold);
        self.tombstones.iter().position(is_it)
    }

    /// Returns the owners that share the lock.
    pub(super) fn sharers(&self) -> impl Iterator<Item = (Owner, &EnteredHold)> {
        let entered = self.entered.iter();
        entered
            .filter(|((_, mode), _)| *mode != Mode::Exclusive)
            .map(|((owner, _), entered)| (*owner, entered))
    }
}
