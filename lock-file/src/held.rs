//! What a client holds: a lock alone, a reader's share of it, or permits of a semaphore. Each is a [locked file](LockedFile), and
//! is held as long as the `flock` on it stands **and the file is in its place**.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use crate::failure::Failure;
use crate::gate::Gate;
use crate::locked_file::{LockedFile, Standing};

/// A lock, or a share, that this process holds.
#[derive(Debug)]
pub(crate) struct Held {
    file: LockedFile,
    token: u64,
    /// The folder of those that share it.
    shares: Option<String>,
}

impl Held {
    pub(crate) fn alone(file: LockedFile, token: u64) -> Self {
        Self { file, token, shares: None }
    }

    pub(crate) fn shared(file: LockedFile, token: u64, shares: &str) -> Self {
        Self { file, token, shares: Some(shares.to_owned()) }
    }

    pub(crate) fn token(&self) -> u64 {
        self.token
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.path()
    }

    /// The descriptor that holds the lock.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        self.file.descriptor()
    }

    /// Whether this process still holds the lock. An error counts as no change.
    pub(crate) fn standing(&self) -> Standing {
        self.file.standing()
    }

    /// Replaces the value in the holder's record, if this process still holds the lock. To be called in the gate, where
    /// records are read.
    pub(crate) fn show(&self, value: Option<String>) -> Result<Standing, Failure> {
        let standing = self.standing();
        if standing == Standing::Ours {
            let record = self.file.record().filter(|record| record.token() == Some(self.token));
            let record = record.ok_or_else(|| Failure::Broken {
                cause: format!("another program has written to {}", self.path().display()),
                remedy: "use a folder that nothing else uses".into(),
            })?;
            self.file.rewrite(&record.with_value(value))?;
        }
        Ok(standing)
    }

    /// Releases the lock, in the gate if one is given, and returns whether this process held it until now. Afterwards the lock
    /// is free, even if a child still has the descriptor.
    pub(crate) fn release(&self, gate: Option<&Gate>) -> Result<Standing, Failure> {
        let standing = gate.map_or_else(|| self.standing(), |gate| self.file.standing_in(gate));
        if gate.is_some() && standing == Standing::Ours {
            self.file.remove();
        }
        self.file.unlock()?;
        if gate.is_none() && standing == Standing::Ours {
            self.file.touch();
        }
        if let Some(shares) = &self.shares {
            self.file.folder().keep_folder(shares);
        }
        Ok(standing)
    }

    /// Gives back what has just been taken, in the gate.
    pub(crate) fn give_up(self, gate: &Gate) {
        let _ = self.release(Some(gate));
    }
}
