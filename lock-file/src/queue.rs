//! The tickets of waiters: one [member](crate::members) of a queue each, in the order of their numbers.
//!
//! Tickets only order the waiters: exclusion rests on the files of the holders alone.

use std::sync::Arc;

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::locked_file::LockedFile;
use crate::members::{Member, Members, Permits};
use crate::record::Record;
use crate::sync_point::{self, Point};

/// A waiter's place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    member: Member,
    /// Closed, and so unlocked by the kernel, at the latest when the process ends.
    file: LockedFile,
}

impl Ticket {
    /// Draws a ticket behind all those in the queue.
    pub(crate) fn draw(
        gate: &Gate,
        queue: &Members<'_>,
        waiters: &[Member],
        permits: Option<Permits>,
        record: &Record,
    ) -> Result<Self, Failure> {
        let number = gate.next_number(waiters.last().map_or(0, |last| last.number))?;
        sync_point::reach(Point::BeforeTicket);
        let member = Member { number, permits };
        let ticket = Self { member, file: queue.join(member)? };
        ticket.file.inscribe(record)?;
        Ok(ticket)
    }

    pub(crate) fn member(&self) -> Member {
        self.member
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        self.file.folder()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.file.leave();
    }
}
