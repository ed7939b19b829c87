//! The `held` file of a lock. A client holds the lock while it has the `flock` on this file and the file is still in its place.
//!
//! * The file is created, locked and checked only inside the gate. No process requests its `flock` outside the gate, so no
//!   attempt is refused because another process only checked.
//! * It is removed only inside the gate. A release that cannot enter the gate unlocks the file, and leaves it to be reused or
//!   tidied away.
//! * After locking, the file at the path is compared with the one that was locked, because a file that was removed in between
//!   excludes no other process.
//! * Writing to the file, unlocking it and closing it wake no waiter, with one exception: closing a descriptor that is open for
//!   writing. So a process that only checks opens the file for reading, and does not wake others.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use lock_core::{HolderId, LossReason, Participant};
use rustix::fs::{FlockOperation, Mode, Stat, Timespec, Timestamps, UTIME_NOW};

use crate::failure::Failure;
use crate::folder::{Folder, Identity};
use crate::gate::{Gate, try_lock};
use crate::pause::{self, Point};
use crate::record::Record;

/// The mode that tells a holder that its hold was broken; a mere removal would not show whether it was a break. Changing a mode
/// needs no space on the disk, and wakes the holder. The sticky bit means nothing on a file, and a `chmod -R` of the folder
/// does not set it.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BROKEN: Mode = Mode::SVTX.union(WHOLE);
/// Elsewhere only the superuser may set the sticky bit of a file.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BROKEN: Mode = Mode::RWXU;
const WHOLE: Mode = Mode::RUSR.union(Mode::WUSR);

const ATTEMPTS: usize = 100;

/// A lock that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    folder: Arc<Folder>,
    relative: String,
    /// A child may inherit it on purpose; the lock is held while any process has it open.
    file: Arc<OwnedFd>,
    identity: Identity,
    token: u64,
}

/// Whether a `held` file still excludes other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Ours,
    Lost(LossReason),
}

pub(crate) fn relative(physical: &str) -> String {
    format!("held/{physical}")
}

/// Takes the lock if it is free.
pub(crate) fn take(gate: &Gate, physical: &str, record: &Record) -> Result<Option<Held>, Failure> {
    let folder = gate.folder();
    let relative = relative(physical);
    for _ in 0..ATTEMPTS {
        let file = match folder.create(&relative)? {
            Some(file) => file,
            None if !is_free(folder, &relative)? => return Ok(None),
            None => folder.open_or_create(&relative)?,
        };
        let path = || folder.path_of(&relative);
        pause::at(Point::BeforeHeld);
        let locked = try_lock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| Failure::system("lock", &path(), errno))?;
        if !locked {
            return Ok(None);
        }
        let stat = folder.check(&file, &relative)?;
        let identity = Identity::of(&stat);
        if folder.identity_at(&relative)? != Some(identity) {
            continue;
        }
        pause::at(Point::BeforeRecord);
        let token = match inscribe(gate, &file, &stat, record, &path()) {
            Ok(token) => token,
            Err(failure) => {
                let _ = folder.remove(&relative);
                let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
                return Err(failure);
            }
        };
        return Ok(Some(Held {
            folder: Arc::clone(folder),
            relative,
            file: Arc::new(file),
            identity,
            token,
        }));
    }
    Err(Failure::Broken {
        cause: format!("another program keeps replacing {}", folder.path_of(&relative).display()),
        remedy: "find out who, and end it".into(),
    })
}

/// Writes the holder's record, over that of a dead holder if there is one, and returns the new holder's token.
fn inscribe(
    gate: &Gate,
    file: &OwnedFd,
    stat: &Stat,
    record: &Record,
    path: &std::path::Path,
) -> Result<u64, Failure> {
    let mut floor = 0;
    if stat.st_size > 0 {
        floor = Record::read(file).and_then(|predecessor| predecessor.token()).unwrap_or(0);
        rustix::fs::ftruncate(file, 0).map_err(|errno| Failure::system("write", path, errno))?;
    }
    if is_marked_broken(stat) {
        rustix::fs::fchmod(file, WHOLE)
            .map_err(|errno| Failure::system("change the mode of", path, errno))?;
    }
    let token = gate.next_number(floor)?;
    record.of_holder(token).write(file, path)?;
    Ok(token)
}

fn is_marked_broken(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).contains(BROKEN)
}

/// Whether the lock is free. Call this only in the gate.
fn is_free(folder: &Folder, relative: &str) -> Result<bool, Failure> {
    let Some(file) = folder.open_to_look(relative)? else {
        return Ok(true);
    };
    let free = try_lock(&file, FlockOperation::NonBlockingLockShared)
        .map_err(|errno| Failure::system("lock", &folder.path_of(relative), errno))?;
    // Closing does not unlock while a child that is being started has a copy of the descriptor.
    let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
    Ok(free)
}

/// The holder's record, if the lock is held.
pub(crate) fn holder(gate: &Gate, physical: &str) -> Result<Option<Participant>, Failure> {
    let folder = gate.folder();
    let relative = relative(physical);
    if is_free(folder, &relative)? {
        return Ok(None);
    }
    let record = folder.open_to_look(&relative)?.and_then(Record::read);
    // Another program has locked the file.
    let stranger = || Participant::new(HolderId::new("unknown"));
    Ok(Some(record.map_or_else(stranger, |record| record.participant())))
}

/// Takes the lock away from the holder with that id. Returns whether that holder held it.
pub(crate) fn break_holder(gate: &Gate, physical: &str, id: &str) -> Result<bool, Failure> {
    let folder = gate.folder();
    let relative = relative(physical);
    if is_free(folder, &relative)? {
        return Ok(false);
    }
    let Some(file) = folder.open_to_look(&relative)? else {
        return Ok(false);
    };
    if Record::read(&file).is_none_or(|holder| holder.id != id) {
        return Ok(false);
    }
    pause::at(Point::BeforeBreak);
    rustix::fs::fchmod(&file, BROKEN)
        .map_err(|errno| Failure::system("change the mode of", &folder.path_of(&relative), errno))?;
    folder.remove(&relative)?;
    Ok(true)
}

/// Removes the file that a dead holder left, or one whose release could not enter the gate.
pub(crate) fn tidy(gate: &Gate, physical: &str) -> Result<(), Failure> {
    let relative = relative(physical);
    let folder = gate.folder();
    let Some(file) = folder.open_to_look(&relative)? else {
        return Ok(());
    };
    // The file is locked while it is removed: a process that locks it afterwards finds that it is no longer in its place, even
    // if the gate file was removed and that process is in another gate.
    let free = try_lock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|errno| Failure::system("lock", &folder.path_of(&relative), errno))?;
    if free {
        pause::at(Point::BeforeTidy);
        let locked = rustix::fs::fstat(&file).ok().as_ref().map(Identity::of);
        let is_in_place =
            locked.is_some() && folder.identity_at(&relative).is_ok_and(|found| found == locked);
        let removed = if is_in_place { folder.remove(&relative) } else { Ok(()) };
        let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
        removed?;
    }
    Ok(())
}

impl Held {
    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path_of(&self.relative)
    }

    /// The descriptor that holds the lock.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Whether this process still holds the lock. An error counts as no change.
    pub(crate) fn standing(&self) -> Standing {
        if rustix::fs::fstat(self.file.as_fd()).is_ok_and(|stat| is_marked_broken(&stat)) {
            return Standing::Lost(LossReason::Broken);
        }
        match self.folder.identity_at(&self.relative) {
            Ok(found) if found != Some(self.identity) => Standing::Lost(LossReason::Deleted),
            Ok(_) if !self.folder.is_current() => Standing::Lost(LossReason::Deleted),
            Ok(_) | Err(_) => Standing::Ours,
        }
    }

    /// Replaces the value in the holder's record, if this process still holds the lock. To be called in the gate, where
    /// records are read.
    pub(crate) fn show(&self, value: Option<String>) -> Result<Standing, Failure> {
        let standing = self.standing();
        if standing == Standing::Ours {
            let path = self.path();
            let stat = rustix::fs::fstat(self.file.as_fd())
                .map_err(|errno| Failure::system("look at", &path, errno))?;
            let record = Record::read(self.file.as_fd()).filter(|record| record.token() == Some(self.token));
            let record = record.ok_or_else(|| Failure::Broken {
                cause: format!("another program has written to {}", path.display()),
                remedy: "use a folder that nothing else uses".into(),
            })?;
            let length = usize::try_from(stat.st_size).unwrap_or(0);
            record.with_value(value).write_over(length, self.file.as_fd(), &path)?;
        }
        Ok(standing)
    }

    /// Releases the lock, in the gate if one is given, and returns whether this process held it until now. Afterwards the lock
    /// is free, even if a child still has the descriptor.
    pub(crate) fn release(&self, gate: Option<&Gate>) -> Result<Standing, Failure> {
        let standing = self.standing();
        if gate.is_some() && standing == Standing::Ours {
            // A file that cannot be removed is reused, or tidied away later.
            let _ = self.folder.remove(&self.relative);
        }
        rustix::fs::flock(self.file.as_fd(), FlockOperation::Unlock)
            .map_err(|errno| Failure::system("unlock", &self.path(), errno))?;
        if gate.is_none() && standing == Standing::Ours {
            // Unlocking wakes no waiter; new times do. The next holder may be writing already, so this changes nothing else.
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
            let times = Timestamps { last_access: now, last_modification: now };
            let _ = rustix::fs::futimens(self.file.as_fd(), &times);
        }
        Ok(standing)
    }
}
