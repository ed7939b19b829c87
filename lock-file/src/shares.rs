//! The files of those that share: the readers of a lock, and the holders of a semaphore's permits.
//!
//! Each has a file of its own, under its own `flock`. So a killed holder gives up exactly its share, and an operator can break one
//! of them by removing its file. How much a holder has is part of the file's name; what living files do not have is free. There are
//! no slots, and no number of holders is written down that could be wrong.
//!
//! **Exclusion does not rest on the gate alone**, although every decision is made in it: its file may be removed. A reader makes its
//! file and then checks `held` again, which a writer locks before it checks the readers' files. Who takes permits makes its file
//! and then checks that its gate is still the one at the path: then who enters another gate finds the file.

use lock_core::Participant;

use crate::exclusive;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::holders::{Asked, Held};
use crate::locked_file::take_away;
use crate::members::{Member, Members, Permits};
use crate::record::Record;
use crate::subject::Subject;
use crate::sync_point::{self, Point};

/// Takes a reader's share, if no process holds the lock alone.
pub(crate) fn read(gate: &Gate, subject: &Subject, record: &Record) -> Result<Asked, Failure> {
    // A look before the file is made, so that a reader that cannot enter makes none.
    if !exclusive::clean(gate, subject)? {
        return Ok(Asked::Behind(subject.held()));
    }
    let own = join_readers(gate, subject, record)?;
    match exclusive::is_free(gate.folder(), &subject.held()) {
        Ok(true) => Ok(Asked::Taken(own)),
        Ok(false) => {
            own.file.give_up(gate);
            Ok(Asked::Behind(subject.held()))
        }
        Err(failure) => {
            own.file.give_up(gate);
            Err(failure)
        }
    }
}

/// Takes permits, all or none of them.
pub(crate) fn take_permits(
    gate: &Gate,
    subject: &Subject,
    wanted: Permits,
    record: &Record,
) -> Result<Asked, Failure> {
    let members = Members::of_shares(gate.folder(), subject);
    let mut holders = members.list()?;
    if !leave_room_for(wanted, &holders) {
        holders = members.living(&holders)?.into_iter().map(|(holder, _)| holder).collect();
        holders.iter().try_for_each(|holder| holder.check_size(Some(wanted)))?;
        if !leave_room_for(wanted, &holders) {
            return Ok(Asked::Behind(subject.shares()));
        }
    }
    let floor = holders.last().map_or(0, |holder| holder.number);
    let own = join(gate, subject, Some(wanted), floor, record)?;
    match gate.check_in_place() {
        Ok(()) => Ok(Asked::Taken(own)),
        Err(failure) => {
            own.file.give_up(gate);
            Err(failure)
        }
    }
}

/// Whether these holders use the same number of permits, and leave enough of them.
fn leave_room_for(wanted: Permits, holders: &[Member]) -> bool {
    let all = u64::from(wanted.of.get());
    let taken: Option<u64> = holders
        .iter()
        .filter_map(|holder| holder.permits)
        .map(|permits| (permits.of == wanted.of).then_some(u64::from(permits.take.get())))
        .sum();
    taken.is_some_and(|taken| taken + u64::from(wanted.take.get()) <= all)
}

/// Makes a reader's share for the holder that has the lock alone, and gives that up in the same stay in the gate.
pub(crate) fn join_readers(gate: &Gate, subject: &Subject, record: &Record) -> Result<Held, Failure> {
    join(gate, subject, None, 0, record)
}

fn join(
    gate: &Gate,
    subject: &Subject,
    permits: Option<Permits>,
    floor: u64,
    record: &Record,
) -> Result<Held, Failure> {
    sync_point::reach(Point::BeforeShare);
    let number = gate.next_number(floor)?;
    let members = Members::of_shares(gate.folder(), subject);
    let file = members.join(Member { number, permits })?;
    let inscribed = file.inscribe(&record.of_holder(number)).map(|()| number);
    Held::of(file, inscribed, gate)
}

/// All that share, in the order of their tokens.
pub(crate) fn holders(gate: &Gate, subject: &Subject) -> Result<Vec<Participant>, Failure> {
    let members = Members::of_shares(gate.folder(), subject);
    let mut holders = Vec::new();
    for member in members.list()? {
        holders.extend(members.holder(member)?);
    }
    Ok(holders)
}

/// One of those that share.
pub(crate) fn holder(gate: &Gate, subject: &Subject) -> Result<Option<Participant>, Failure> {
    let members = Members::of_shares(gate.folder(), subject);
    match members.clean()? {
        Some(member) => members.holder(member),
        None => Ok(None),
    }
}

/// Takes the share away from the holder with that id. Returns whether that holder had one.
pub(crate) fn break_holder(gate: &Gate, subject: &Subject, id: &str) -> Result<bool, Failure> {
    let members = Members::of_shares(gate.folder(), subject);
    let list = members.list()?;
    let mut living = members.living(&list)?.into_iter();
    let found = living.find(|(_, file)| Record::read(file).is_some_and(|holder| holder.id == id));
    let Some((member, file)) = found else { return Ok(false) };
    take_away(gate.folder(), &members.file(member), &file)?;
    gate.folder().keep_folder(&subject.shares());
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn permits(take: u32, of: u32) -> Permits {
        Permits { take: NonZeroU32::new(take).unwrap(), of: NonZeroU32::new(of).unwrap() }
    }

    #[test]
    fn all_permits_that_were_taken_count_and_each_holder_has_to_use_the_same_number() {
        let held = [permits(2, 5), permits(1, 5)].map(|permits| Member { number: 1, permits: Some(permits) });
        assert!(leave_room_for(permits(2, 5), &held) && !leave_room_for(permits(3, 5), &held));
        assert!(!leave_room_for(permits(1, 6), &held));
    }
}
