//! The harness of the file backend: a folder of its own for each case.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use conformance_tests::{Ability, During, Failure, Harness, Outcome, Removal};
use lock_core::{ClientBuilder, LockClient, LockError, LockName};
use rustix::fs::{FlockOperation, Mode, OFlags};
use tempfile::TempDir;

/// A folder with locks in it.
pub(crate) struct Folder {
    folder: TempDir,
    /// A thief: it has the `flock` of a file that replaces the holder's file.
    thief: Mutex<Option<File>>,
}

impl Folder {
    /// The backend creates it, with the permissions that it requires.
    fn path(&self) -> PathBuf {
        self.folder.path().join("locks")
    }

    fn url(&self) -> String {
        format!("file:{}", self.path().display())
    }

    /// Returns the file of a lock while it is held. The names that the suite takes away are valid file names.
    fn held(&self, name: &LockName) -> PathBuf {
        self.path().join("held").join(name.as_str())
    }
}

#[async_trait]
impl Harness for Folder {
    async fn start() -> Outcome<Self> {
        Ok(Self { folder: TempDir::new()?, thief: Mutex::default() })
    }

    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        match ability {
            Ability::Outages | Ability::Silence | Ability::SilentWaiters => {
                Some("there is no connection that could be cut")
            }
            Ability::LostReplies | Ability::SlowReplies | Ability::CheckedGrants => {
                Some("there is no server that could fail to reply")
            }
            Ability::Removal(Removal::Expiry) => Some("there is no lease that could end"),
            Ability::RestartServer | Ability::StopServer => Some("there is no server"),
            _ => None,
        }
    }

    async fn client(&self, builder: ClientBuilder) -> Result<LockClient, LockError> {
        Self::connect(&self.url(), builder).await
    }

    fn address(&self) -> Option<String> {
        Some(self.url())
    }

    async fn connect(address: &str, builder: ClientBuilder) -> Result<LockClient, LockError> {
        distlock::connect_with(address, builder).await
    }

    async fn take_away(&self, name: &LockName, removal: Removal) -> Outcome {
        let path = self.held(name);
        fs::remove_file(&path).during(path.display())?;
        let thief = match removal {
            Removal::Theft => Some(put_in_its_place(&path).during("steal")?),
            _ => None,
        };
        *self.thief.lock().unwrap_or_else(PoisonError::into_inner) = thief;
        Ok(())
    }

    /// Everything except the folders themselves and the file with the counter.
    async fn leftovers(&self) -> Outcome<Vec<String>> {
        let mut left = Vec::new();
        for folder in ["held", "shared", "queue", "permits", "permits-queue"] {
            list(&self.path().join(folder), &mut left)?;
        }
        Ok(left)
    }
}

fn put_in_its_place(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from)?;
    Ok(file.into())
}

fn list(folder: &Path, left: &mut Vec<String>) -> Outcome {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.during(folder.display())?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.path().is_dir() {
            list(&entry.path(), left)?;
        }
        left.push(entry.path().display().to_string());
    }
    Ok(())
}
