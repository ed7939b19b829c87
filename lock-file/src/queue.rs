//! The queue of a lock: one ticket per waiter, in the order of their numbers.
//!
//! A ticket is a file that its waiter keeps under a `flock`. When the waiter dies, the kernel drops the `flock` and the ticket
//! no longer counts; the next process that finds it removes it. Tickets only order the waiters: exclusion rests on the `held`
//! file alone.
//!
//! Tickets are made only inside the gate, numbers are never used twice, and only the owner of a ticket ever takes its `flock`
//! exclusively. So a process may check a ticket at any time without disturbing others, and may remove a dead one at any time.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::FlockOperation;

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::{Gate, try_lock};
use crate::pause::{self, Point};
use crate::record::Record;

/// The queue of one lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Queue<'a> {
    folder: &'a Arc<Folder>,
    physical: &'a str,
}

/// A waiter's place in a queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    folder: Arc<Folder>,
    physical: Arc<str>,
    number: u64,
    /// Closed, and so unlocked by the kernel, at the latest when the process ends.
    file: OwnedFd,
}

#[derive(Debug, PartialEq, Eq)]
enum Life {
    Alive,
    Dead,
    Gone,
}

impl<'a> Queue<'a> {
    pub(crate) fn of(folder: &'a Arc<Folder>, physical: &'a str) -> Self {
        Self { folder, physical }
    }

    fn directory(&self) -> String {
        format!("queue/{}", self.physical)
    }

    fn file(&self, number: u64) -> String {
        format!("queue/{}/{number:020}", self.physical)
    }

    /// The path of a ticket, for a watch.
    pub(crate) fn path_of(&self, number: u64) -> PathBuf {
        self.folder.path_of(&self.file(number))
    }

    /// The numbers of all tickets, dead ones too, in order.
    pub(crate) fn numbers(&self) -> Result<Vec<u64>, Failure> {
        let names = self.folder.list(&self.directory())?.unwrap_or_default();
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The last of `numbers` whose waiter is alive. Removes the dead ones behind it.
    pub(crate) fn last_alive(&self, numbers: &[u64]) -> Result<Option<u64>, Failure> {
        for &number in numbers.iter().rev() {
            if self.is_alive(number)? {
                return Ok(Some(number));
            }
            self.folder.remove(&self.file(number))?;
        }
        Ok(None)
    }

    /// Removes the tickets that dead waiters left at the end of the queue, and the queue's folder if it is empty.
    pub(crate) fn tidy(&self) -> Result<(), Failure> {
        let Some(names) = self.folder.list(&self.directory())? else {
            return Ok(());
        };
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        if self.last_alive(&numbers)?.is_none() {
            self.folder.remove_empty_folder(&self.directory());
        }
        Ok(())
    }

    /// Whether the waiter with that ticket is alive.
    pub(crate) fn is_alive(&self, number: u64) -> Result<bool, Failure> {
        Ok(self.look_at(number)?.0 == Life::Alive)
    }

    fn look_at(&self, number: u64) -> Result<(Life, Option<OwnedFd>), Failure> {
        let relative = self.file(number);
        let Some(file) = self.folder.open_to_look(&relative)? else {
            return Ok((Life::Gone, None));
        };
        let unlocked = try_lock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|errno| Failure::system("lock", &self.folder.path_of(&relative), errno))?;
        Ok((if unlocked { Life::Dead } else { Life::Alive }, Some(file)))
    }

    /// The records of the living waiters among `numbers`.
    pub(crate) fn records(&self, numbers: &[u64]) -> Result<Vec<Record>, Failure> {
        let mut records = Vec::new();
        for &number in numbers {
            if let (Life::Alive, Some(file)) = self.look_at(number)? {
                records.extend(Record::read(&file));
            }
        }
        Ok(records)
    }

    /// Draws a ticket behind all `numbers`.
    pub(crate) fn join(&self, gate: &Gate, numbers: &[u64], record: &Record) -> Result<Ticket, Failure> {
        let number = gate.next_number(numbers.last().copied().unwrap_or(0))?;
        pause::at(Point::BeforeTicket);
        let relative = self.file(number);
        let path = self.folder.path_of(&relative);
        let in_use = |what: &str| Failure::Broken {
            cause: format!("another program has {what} {}", path.display()),
            remedy: "use a folder that nothing else uses".into(),
        };
        let file = self.folder.create(&relative)?.ok_or_else(|| in_use("made"))?;
        let ticket =
            Ticket { folder: Arc::clone(self.folder), physical: Arc::from(self.physical), number, file };
        let locked = try_lock(&ticket.file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| Failure::system("lock", &path, errno))?;
        if !locked {
            return Err(in_use("locked"));
        }
        record.write(&ticket.file, &path)?;
        Ok(ticket)
    }
}

impl Ticket {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }
}

impl Drop for Ticket {
    /// Leaves the queue. Unlocks first, so that the waiter that the removal wakes finds the `flock` gone, even while a child
    /// that is being started still has a copy of the descriptor.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        let queue = Queue::of(&self.folder, &self.physical);
        let _ = self.folder.remove(&queue.file(self.number));
        self.folder.remove_empty_folder(&queue.directory());
    }
}
