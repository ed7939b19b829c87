//! The `held` file of a lock: who has the `flock` on it, while the file is in its place, and found no reader when it took it, holds
//! the lock alone.
//!
//! * The file is created, locked and checked only inside the gate. No process requests its `flock` outside the gate, so no
//!   attempt is refused because another process only checked.
//! * It is removed only inside the gate. A release that cannot enter the gate unlocks the file, and leaves it to be reused or
//!   cleaned away.
//! * After locking, the file at the path is compared with the one that was locked, because a file that was removed in between
//!   excludes no other process. **Then the readers' files are checked**; a reader makes its file and then checks this one. So one
//!   of them sees the other, even if the gate file was removed and they are in two gates.
//! * Writing to the file, unlocking it and closing it wake no waiter, with one exception: closing a descriptor that is open for
//!   writing. So a process that only checks opens the file for reading, and does not wake others.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use lock_core::{HolderId, Mode, Participant};
use rustix::fs::FlockOperation;

use crate::failure::Failure;
use crate::folder::{Folder, Identity};
use crate::gate::{Gate, try_lock};
use crate::holders::{Asked, Held};
use crate::locked_file::{LockedFile, Locking, take_away};
use crate::members::Members;
use crate::record::Record;
use crate::subject::Subject;
use crate::sync_point::{self, Point};

const ATTEMPTS: usize = 100;

/// Takes the lock if it is free.
pub(crate) fn take(
    gate: &Gate,
    subject: &Subject,
    record: &Record,
    sections: NonZeroU32,
) -> Result<Asked, Failure> {
    let folder = gate.folder();
    let relative = subject.held();
    for _ in 0..ATTEMPTS {
        let file = match folder.create_as_is(&relative)? {
            Some(file) => file,
            None if !is_free(folder, &relative)? => return Ok(Asked::Behind(relative)),
            None => folder.open_or_create(&relative)?,
        };
        sync_point::reach(Point::BeforeHeld);
        let file = match LockedFile::lock(folder, &relative, file)? {
            Locking::Done(file) => file,
            Locking::Busy => return Ok(Asked::Behind(relative)),
            Locking::Replaced => continue,
        };
        let readers = Members::of_shares(folder, subject);
        return match readers.clean().map(|reader| reader.map(|reader| readers.file(reader))) {
            Ok(None) => hold(gate, file, record, sections),
            Ok(Some(reader)) => {
                file.give_up(gate);
                Ok(Asked::Behind(reader))
            }
            Err(failure) => {
                file.give_up(gate);
                Err(failure)
            }
        };
    }
    Err(Failure::meddling("keeps replacing", &folder.path_of(&relative)))
}

/// Draws the token, and those of the sections that follow, and writes the holder's record.
fn hold(gate: &Gate, file: LockedFile, record: &Record, sections: NonZeroU32) -> Result<Asked, Failure> {
    sync_point::reach(Point::BeforeRecord);
    let floor = file.former_record().and_then(|former| former.token()).unwrap_or(0);
    let inscribed = gate.next_numbers(floor, sections).and_then(|token| {
        file.inscribe(&record.of_holder(token))?;
        Ok(token)
    });
    Held::of(file, inscribed, gate).map(Asked::Taken)
}

/// Whether no process holds the lock alone. To be called only in the gate.
pub(crate) fn is_free(folder: &Folder, relative: &str) -> Result<bool, Failure> {
    Ok(file_of_holder(folder, relative)?.is_none())
}

/// The file, if it is locked.
fn file_of_holder(folder: &Folder, relative: &str) -> Result<Option<OwnedFd>, Failure> {
    let Some(file) = folder.open_to_look(relative)? else { return Ok(None) };
    if try_lock(folder, relative, &file, FlockOperation::NonBlockingLockShared)? {
        // Closing does not unlock while a child that is being started has a copy of the descriptor.
        let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
        return Ok(None);
    }
    Ok(Some(file))
}

/// The holder's record, if the lock is held.
pub(crate) fn holder(gate: &Gate, subject: &Subject) -> Result<Option<Participant>, Failure> {
    let file = file_of_holder(gate.folder(), &subject.held())?;
    // Another program has locked the file.
    let stranger = || Participant::new(HolderId::new("unknown"));
    Ok(file
        .map(|file| Record::read(&file).map_or_else(stranger, |record| record.participant(Mode::Exclusive))))
}

/// Takes the lock away from the holder with that id. Returns whether that holder held it.
pub(crate) fn break_holder(gate: &Gate, subject: &Subject, id: &str) -> Result<bool, Failure> {
    let relative = subject.held();
    let Some(file) = file_of_holder(gate.folder(), &relative)? else { return Ok(false) };
    if Record::read(&file).is_none_or(|holder| holder.id != id) {
        return Ok(false);
    }
    take_away(gate.folder(), &relative, &file)?;
    Ok(true)
}

/// Removes the file that a dead holder left, or one whose release could not enter the gate. Returns whether the lock is free.
pub(crate) fn clean(gate: &Gate, subject: &Subject) -> Result<bool, Failure> {
    let relative = subject.held();
    let folder = gate.folder();
    let Some(file) = folder.open_to_look(&relative)? else { return Ok(true) };
    // The file is locked while it is removed: a process that locks it afterwards finds that it is no longer in its place, even
    // if the gate file was removed and that process is in another gate.
    let free = try_lock(folder, &relative, &file, FlockOperation::NonBlockingLockExclusive)?;
    if free {
        sync_point::reach(Point::BeforeRemoval);
        let locked = rustix::fs::fstat(&file).ok().as_ref().map(Identity::of);
        let is_in_place =
            locked.is_some() && folder.identity_at(&relative).is_ok_and(|found| found == locked);
        let removed = if is_in_place { folder.remove(&relative) } else { Ok(()) };
        let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
        removed?;
    }
    Ok(free)
}
