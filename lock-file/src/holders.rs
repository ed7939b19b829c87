//! Who holds a lock or a semaphore: one alone, or those that share it. All of this happens in the gate.

use lock_core::{AcquireRequest, Mode, Participant};

use crate::failure::Failure;
use crate::gate::Gate;
use crate::locked_file::LockedFile;
use crate::members::{Members, Permits};
use crate::record::Record;
use crate::subject::Subject;
use crate::{exclusive, shares};

/// A lock, or a share, that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) file: LockedFile,
    pub(crate) token: u64,
}

impl Held {
    /// What has just been locked, if its token was written; otherwise gives it up, in the gate.
    pub(crate) fn of(file: LockedFile, token: Result<u64, Failure>, gate: &Gate) -> Result<Self, Failure> {
        match token {
            Ok(token) => Ok(Self { file, token }),
            Err(failure) => {
                file.give_up(gate);
                Err(failure)
            }
        }
    }
}

/// What an attempt at the head of the queue finds.
#[derive(Debug)]
pub(crate) enum Asked {
    Taken(Held),
    /// It waits for a change of this file, or of what is in this folder.
    Behind(String),
}

/// Takes what the attempt wants, if the holders leave room for it.
pub(crate) fn ask(
    gate: &Gate,
    subject: &Subject,
    request: &AcquireRequest,
    record: &Record,
) -> Result<Asked, Failure> {
    match (request.mode(), Permits::of_mode(request.mode())) {
        (_, Some(wanted)) => shares::take_permits(gate, subject, wanted, record),
        (Mode::Shared, None) => shares::read(gate, subject, record),
        (_, None) => exclusive::take(gate, subject, record, request.sections()),
    }
}

/// All holders.
pub(crate) fn all(gate: &Gate, subject: &Subject) -> Result<Vec<Participant>, Failure> {
    match alone(gate, subject)? {
        Some(holder) => Ok(vec![holder]),
        None => shares::holders(gate, subject),
    }
}

/// The lock's name as its user wrote it, from the first record of a holder or waiter.
pub(crate) fn name_of(gate: &Gate, subject: &Subject) -> Option<String> {
    let folder = gate.folder();
    let inside = |directory: String| {
        let names = folder.list(&directory).ok().flatten().unwrap_or_default();
        names.into_iter().map(move |name| format!("{directory}/{name}"))
    };
    let files = [subject.held()].into_iter().chain(inside(subject.shares())).chain(inside(subject.queue()));
    let mut records = files.filter_map(|file| Record::read(folder.open_to_look(&file).ok()??));
    records.next().map(|record| record.name)
}

/// One of the holders.
pub(crate) fn any(gate: &Gate, subject: &Subject) -> Result<Option<Participant>, Failure> {
    match alone(gate, subject)? {
        Some(holder) => Ok(Some(holder)),
        None => shares::holder(gate, subject),
    }
}

fn alone(gate: &Gate, subject: &Subject) -> Result<Option<Participant>, Failure> {
    if subject.is_semaphore() { Ok(None) } else { exclusive::holder(gate, subject) }
}

/// Takes what it has from the holder with that id. Returns whether that holder had anything.
pub(crate) fn break_holder(gate: &Gate, subject: &Subject, id: &str) -> Result<bool, Failure> {
    let alone = !subject.is_semaphore() && exclusive::break_holder(gate, subject, id)?;
    Ok(alone || shares::break_holder(gate, subject, id)?)
}

/// Removes the files of dead holders and waiters.
pub(crate) fn clean(gate: &Gate, subject: &Subject) -> Result<(), Failure> {
    if !subject.is_semaphore() {
        exclusive::clean(gate, subject)?;
    }
    Members::of_shares(gate.folder(), subject).clean()?;
    Members::of_queue(gate.folder(), subject).clean().map(drop)
}

/// Removes the folders of those that share and of those that wait, if they are empty.
pub(crate) fn remove_empty_folders(gate: &Gate, subject: &Subject) {
    gate.folder().remove_empty_folder(&subject.shares());
    gate.folder().remove_empty_folder(&subject.queue());
}
