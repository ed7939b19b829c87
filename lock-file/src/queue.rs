//! The tickets of waiters: one [member](crate::roster) of a queue each, in the order of their numbers.
//!
//! Tickets only order the waiters: exclusion rests on the files of the holders alone.

use std::sync::Arc;

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::locked_file::LockedFile;
use crate::pause::{self, Point};
use crate::record::Record;
use crate::roster::{Entry, Permits, Roster};

/// A waiter's place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    entry: Entry,
    /// Closed, and so unlocked by the kernel, at the latest when the process ends.
    file: LockedFile,
    directory: String,
}

impl Ticket {
    /// Draws a ticket behind all those in the queue.
    pub(crate) fn draw(
        gate: &Gate,
        queue: &Roster<'_>,
        waiters: &[Entry],
        permits: Option<Permits>,
        record: &Record,
    ) -> Result<Self, Failure> {
        let number = gate.next_number(waiters.last().map_or(0, |last| last.number))?;
        pause::at(Point::BeforeTicket);
        let entry = Entry { number, permits };
        let ticket = Self { entry, file: queue.join(entry)?, directory: queue.directory().to_owned() };
        ticket.file.inscribe(record)?;
        Ok(ticket)
    }

    pub(crate) fn entry(&self) -> Entry {
        self.entry
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        self.file.folder()
    }
}

impl Drop for Ticket {
    /// Leaves the queue. Unlocks first, so that the waiter that the removal wakes finds the `flock` gone, even while a child
    /// that is being started still has a copy of the descriptor.
    fn drop(&mut self) {
        let _ = self.file.unlock();
        self.file.remove();
        self.folder().remove_empty_folder(&self.directory);
    }
}
