//! A folder with one locked file for each member: the waiters of a lock, its readers, or the holders of a semaphore's permits.
//!
//! A member keeps its file under a `flock`. When its last process dies, the kernel drops the `flock` and the file no longer counts;
//! the next process that finds it removes it.
//!
//! Files are made only inside the gate, numbers are never used twice, and only the owner of a file ever takes its `flock`
//! exclusively. So a process may check a file at any time without disturbing others, and may remove a dead one at any time.

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use lock_core::{HolderId, Mode, Participant};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::try_lock;
use crate::locked_file::{LockedFile, Locking};
use crate::record::Record;
use crate::subject::Subject;
use crate::sync_point::{self, Point};

/// The members in one folder.
#[derive(Debug, Clone)]
pub(crate) struct Members<'a> {
    folder: &'a Arc<Folder>,
    directory: String,
}

/// A member, as the name of its file says. The order is that of the numbers, which is that of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Member {
    pub(crate) number: u64,
    /// What a member of a semaphore has, or wants.
    pub(crate) permits: Option<Permits>,
}

/// So many of all permits of a semaphore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Permits {
    pub(crate) take: NonZeroU32,
    pub(crate) of: NonZeroU32,
}

#[derive(Debug, PartialEq, Eq)]
enum MemberState {
    Alive,
    Dead,
    Gone,
}

impl Permits {
    /// What an attempt in this mode wants of a semaphore.
    pub(crate) fn of_mode(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Permits { take, of } => Some(Self { take, of }),
            _ => None,
        }
    }
}

impl Member {
    /// The name of the member's file.
    fn name(self) -> String {
        match self.permits {
            None => format!("{:020}", self.number),
            Some(Permits { take, of }) => format!("{:020}-{take}-of-{of}", self.number),
        }
    }

    fn parse(name: &str) -> Option<Self> {
        let Some((number, permits)) = name.split_once('-') else {
            return Some(Self { number: name.parse().ok()?, permits: None });
        };
        let (take, of) = permits.split_once("-of-")?;
        let permits = Permits { take: take.parse().ok()?, of: of.parse().ok()? };
        Some(Self { number: number.parse().ok()?, permits: Some(permits) })
    }

    /// Fails if this member uses the semaphore with another number of permits than `wanted` does.
    pub(crate) fn check_size(self, wanted: Option<Permits>) -> Result<(), Failure> {
        match (self.permits, wanted) {
            (Some(Permits { of: is, .. }), Some(Permits { of: asked, .. })) if is != asked => {
                Err(Failure::OtherPermits { asked: asked.get(), is: is.get() })
            }
            _ => Ok(()),
        }
    }

    /// The mode of a member; what a semaphore's has is known, of others `otherwise` is.
    fn mode_or(self, otherwise: Mode) -> Mode {
        self.permits.map_or(otherwise, |Permits { take, of }| Mode::Permits { take, of })
    }
}

impl<'a> Members<'a> {
    /// The waiters.
    pub(crate) fn of_queue(folder: &'a Arc<Folder>, subject: &Subject) -> Self {
        Self { folder, directory: subject.queue() }
    }

    /// Those that share: the readers of a lock, or the holders of a semaphore's permits.
    pub(crate) fn of_shares(folder: &'a Arc<Folder>, subject: &Subject) -> Self {
        Self { folder, directory: subject.shares() }
    }

    /// The file of a member.
    pub(crate) fn file(&self, member: Member) -> String {
        format!("{}/{}", self.directory, member.name())
    }

    /// The path of a member's file, for a watch.
    pub(crate) fn path_of(&self, member: Member) -> PathBuf {
        self.folder.path_of(&self.file(member))
    }

    /// All members, dead ones too, in order.
    pub(crate) fn list(&self) -> Result<Vec<Member>, Failure> {
        let names = self.folder.list(&self.directory)?.unwrap_or_default();
        let mut list: Vec<Member> = names.iter().filter_map(|name| Member::parse(name)).collect();
        list.sort_unstable();
        Ok(list)
    }

    /// The last of `list` that is alive. Removes the dead ones behind it.
    pub(crate) fn last_alive(&self, list: &[Member]) -> Result<Option<Member>, Failure> {
        for &member in list.iter().rev() {
            if self.is_alive(member)? {
                return Ok(Some(member));
            }
            self.remove(member)?;
        }
        Ok(None)
    }

    /// The last member that is alive. Removes the files that dead ones left behind it.
    pub(crate) fn clean(&self) -> Result<Option<Member>, Failure> {
        self.last_alive(&self.list()?)
    }

    fn remove(&self, member: Member) -> Result<(), Failure> {
        self.folder.remove(&self.file(member))
    }

    /// Whether that member is alive.
    pub(crate) fn is_alive(&self, member: Member) -> Result<bool, Failure> {
        Ok(self.look_at(member)?.0 == MemberState::Alive)
    }

    fn look_at(&self, member: Member) -> Result<(MemberState, Option<OwnedFd>), Failure> {
        let relative = self.file(member);
        let Some(file) = self.folder.open_to_look(&relative)? else { return Ok((MemberState::Gone, None)) };
        let unlocked = try_lock(self.folder, &relative, &file, FlockOperation::NonBlockingLockShared)?;
        Ok((if unlocked { MemberState::Dead } else { MemberState::Alive }, Some(file)))
    }

    /// The living ones of `list`, with their files. Removes the files of the dead ones.
    pub(crate) fn living(&self, list: &[Member]) -> Result<Vec<(Member, OwnedFd)>, Failure> {
        let mut living = Vec::new();
        for &member in list {
            match self.look_at(member)? {
                (MemberState::Alive, Some(file)) => living.push((member, file)),
                _ => self.remove(member)?,
            }
        }
        Ok(living)
    }

    /// The living waiters among `list`.
    pub(crate) fn waiters(&self, list: &[Member]) -> Result<Vec<Participant>, Failure> {
        let living = self.living(list)?;
        let waiter = |(member, file): &(Member, OwnedFd)| {
            let record = Record::read(file)?;
            let mode = if record.shared { Mode::Shared } else { Mode::Exclusive };
            Some(record.participant(member.mode_or(mode)))
        };
        Ok(living.iter().filter_map(waiter).collect())
    }

    /// The holder that shares with this member; `None` if it is dead.
    pub(crate) fn holder(&self, member: Member) -> Result<Option<Participant>, Failure> {
        let (MemberState::Alive, Some(file)) = self.look_at(member)? else { return Ok(None) };
        let mode = member.mode_or(Mode::Shared);
        let unknown = || Participant::new(HolderId::new("unknown")).with_mode(mode);
        Ok(Some(Record::read(&file).map_or_else(unknown, |record| record.participant(mode))))
    }

    /// Makes the file of a new member, and locks it. To be called in the gate.
    pub(crate) fn join(&self, member: Member) -> Result<LockedFile, Failure> {
        let joined = self.make(member);
        if joined.is_err() {
            self.folder.remove_empty_folder(&self.directory);
        }
        joined
    }

    fn make(&self, member: Member) -> Result<LockedFile, Failure> {
        let relative = self.file(member);
        let in_use = |doing: &str| Failure::meddling(doing, &self.folder.path_of(&relative));
        let file = self.folder.create_as_is(&relative)?.ok_or_else(|| in_use("has made"))?;
        sync_point::reach(Point::BeforeMember);
        match LockedFile::lock(self.folder, &relative, file)? {
            Locking::Done(locked) => Ok(locked),
            Locking::Busy => Err(in_use("has locked")),
            // As if the folder were gone: the attempt begins anew.
            Locking::Replaced => Err(Failure::system("find", &self.folder.path_of(&relative), Errno::NOENT)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_says_what_its_member_has() {
        let number = |number| NonZeroU32::new(number).unwrap();
        for (member, name) in [
            (Member { number: 7, permits: None }, "00000000000000000007"),
            (
                Member { number: u64::MAX, permits: Some(Permits { take: number(2), of: number(5) }) },
                "18446744073709551615-2-of-5",
            ),
        ] {
            assert_eq!(member.name(), name);
            assert_eq!(Member::parse(name), Some(member));
        }
        for name in ["", "x", "1-", "1-2", "1-0-of-5", "1-2-of-0", "1-2-of-", "1-2-of-5-of-6", "lost+found"] {
            assert_eq!(Member::parse(name), None, "{name}");
        }
    }
}
