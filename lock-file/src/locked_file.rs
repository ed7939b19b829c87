//! A file that this process has under an exclusive `flock`, which the kernel drops when the last process that has it open dies: a
//! waiter's ticket, or what a client holds, a lock alone, a reader's share of it, or permits of a semaphore. It is held as long as the
//! `flock` on it stands **and the file is in its place**.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use lock_core::LossReason;
use rustix::fs::{FlockOperation, Mode, Timespec, Timestamps, UTIME_NOW};

use crate::failure::Failure;
use crate::folder::{FILE_MODE, Folder, Identity};
use crate::gate::{Gate, try_lock};
use crate::record::Record;
use crate::sync_point::{self, Point};

/// The mode that tells a holder that its hold was broken; a mere removal would not show whether it was a break. Changing a mode
/// needs no space on the disk, and wakes the holder. The sticky bit means nothing on a file, and a `chmod -R` of the folder
/// does not set it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BROKEN: Mode = Mode::SVTX.union(FILE_MODE);
/// Elsewhere only the superuser may set the sticky bit of a file.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BROKEN: Mode = Mode::RWXU;

/// A file under the `flock` of this process.
#[derive(Debug)]
pub(crate) struct LockedFile {
    folder: Arc<Folder>,
    relative: String,
    /// A child may inherit it on purpose; the file is locked while any process has it open.
    file: Arc<OwnedFd>,
    identity: Identity,
    /// How much there was in it when it was locked.
    length: u64,
}

/// The result of locking a file.
#[derive(Debug)]
pub(crate) enum Locking {
    Done(LockedFile),
    /// Another process has its `flock`.
    Busy,
    /// It is no longer at its path, and so excludes no other process.
    Replaced,
}

/// Whether a locked file still excludes other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Ours,
    Lost(LossReason),
}

/// Tells the holder that has this file that its hold was broken, and removes the file. To be called in the gate.
pub(crate) fn take_away(folder: &Folder, relative: &str, file: &OwnedFd) -> Result<(), Failure> {
    sync_point::reach(Point::BeforeBreak);
    rustix::fs::fchmod(file, BROKEN)
        .map_err(|errno| Failure::system("change the mode of", &folder.path_of(relative), errno))?;
    folder.remove(relative)
}

impl LockedFile {
    /// Locks an open file, if it is still at its path.
    pub(crate) fn lock(folder: &Arc<Folder>, relative: &str, file: OwnedFd) -> Result<Locking, Failure> {
        if !try_lock(folder, relative, &file, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(Locking::Busy);
        }
        let stat = folder.check(&file, relative)?;
        let identity = Identity::of(&stat);
        if folder.identity_at(relative)? != Some(identity) {
            return Ok(Locking::Replaced);
        }
        // The umask may have removed permissions of the owner, and a break may have added the mark.
        if Mode::from_raw_mode(stat.st_mode) != FILE_MODE {
            rustix::fs::fchmod(&file, FILE_MODE)
                .map_err(|errno| Failure::system("change the mode of", &folder.path_of(relative), errno))?;
        }
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        let folder = Arc::clone(folder);
        Ok(Locking::Done(Self {
            folder,
            relative: relative.to_owned(),
            file: Arc::new(file),
            identity,
            length,
        }))
    }

    pub(crate) fn folder(&self) -> &Arc<Folder> {
        &self.folder
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path_of(&self.relative)
    }

    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// The record that a dead holder has left in it.
    pub(crate) fn former_record(&self) -> Option<Record> {
        if self.length == 0 { None } else { self.record() }
    }

    fn record(&self) -> Option<Record> {
        Record::read(self.file.as_fd())
    }

    /// Writes the first record of this holder, over that of a dead one.
    pub(crate) fn inscribe(&self, record: &Record) -> Result<(), Failure> {
        if self.length > 0 {
            rustix::fs::ftruncate(self.file.as_fd(), 0)
                .map_err(|errno| Failure::system("write", &self.path(), errno))?;
        }
        record.write(self.file.as_fd(), &self.path())
    }

    /// Replaces the record, in one step.
    fn rewrite(&self, record: &Record) -> Result<(), Failure> {
        let path = self.path();
        let stat =
            rustix::fs::fstat(self.file.as_fd()).map_err(|errno| Failure::system("look at", &path, errno))?;
        record.write_over(usize::try_from(stat.st_size).unwrap_or(0), self.file.as_fd(), &path)
    }

    /// Whether the file still excludes other clients. An error counts as no change.
    pub(crate) fn standing(&self) -> Standing {
        match self.standing_in_folder() {
            Standing::Ours if !self.folder.is_current() => Standing::Lost(LossReason::Deleted),
            standing => standing,
        }
    }

    /// The same in the gate. A process that is in the gate of this folder knows that it is the one at the path.
    pub(crate) fn standing_in(&self, gate: &Gate) -> Standing {
        if Arc::ptr_eq(gate.folder(), &self.folder) { self.standing_in_folder() } else { self.standing() }
    }

    fn standing_in_folder(&self) -> Standing {
        let stat = rustix::fs::fstat(self.file.as_fd());
        if stat.is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).contains(BROKEN)) {
            return Standing::Lost(LossReason::Broken);
        }
        match self.folder.identity_at(&self.relative) {
            Ok(found) if found != Some(self.identity) => Standing::Lost(LossReason::Deleted),
            Ok(_) | Err(_) => Standing::Ours,
        }
    }

    /// Replaces the value in the record of the holder with this token, if this process still holds the lock. To be called in the
    /// gate, where records are read.
    pub(crate) fn show(&self, token: u64, value: Option<String>) -> Result<Standing, Failure> {
        let standing = self.standing();
        if standing == Standing::Ours {
            let record = self.record().filter(|record| record.token() == Some(token));
            let record = record.ok_or_else(|| Failure::meddling("has written to", &self.path()))?;
            self.rewrite(&record.with_value(value))?;
        }
        Ok(standing)
    }

    /// Releases the lock, in the gate if one is given, and returns whether this process held it until now. Afterwards the lock
    /// is free, even if a child still has the descriptor.
    pub(crate) fn release(&self, gate: Option<&Gate>) -> Result<Standing, Failure> {
        let standing = gate.map_or_else(|| self.standing(), |gate| self.standing_in(gate));
        if gate.is_some() && standing == Standing::Ours {
            self.remove();
        }
        self.unlock()?;
        if gate.is_none() && standing == Standing::Ours {
            self.touch();
        }
        self.keep_folder();
        Ok(standing)
    }

    /// Gives back what has just been taken, in the gate.
    pub(crate) fn give_up(self, gate: &Gate) {
        let _ = self.release(Some(gate));
    }

    /// Leaves the queue. Unlocks first, so that the waiter that the removal wakes finds the `flock` gone, even while a child
    /// that is being started still has a copy of the descriptor.
    pub(crate) fn leave(&self) {
        let _ = self.unlock();
        self.remove();
        self.keep_folder();
    }

    /// One that cannot be removed is reused, or cleaned away later.
    fn remove(&self) {
        let _ = self.folder.remove(&self.relative);
    }

    /// Unlocks the file, even if a child still has the descriptor.
    fn unlock(&self) -> Result<(), Failure> {
        rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock)
            .map_err(|errno| Failure::system("unlock", &self.path(), errno))
    }

    /// The folder in which each of those that share, or wait, has a file.
    fn keep_folder(&self) {
        let parent = self.relative.rsplit_once('/').map(|(parent, _)| parent);
        if let Some(of_members) = parent.filter(|parent| parent.contains('/')) {
            self.folder.keep_folder(of_members);
        }
    }

    /// Wakes those that watch the file, which unlocking does not. The next holder may be writing already, so this changes
    /// nothing but the times.
    fn touch(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        let _ = rustix::fs::futimens(self.file.as_fd(), &times);
    }
}
