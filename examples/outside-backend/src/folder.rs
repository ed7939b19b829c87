//! A backend over a store that reads objects and writes them on a condition: files of a folder. The rest is
//! [`RegisterBackend`]'s: the queue, leases, tokens, readers and permits.
//!
//! * **One writer at a time**: the one that has locked the file beside an object. All others find a conflict, and try again.
//! * **All or nothing**: a write renames a file over another one.
//! * **Failure**: a process that stands still while it writes keeps others from writing the same object until it goes on.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::{CharacterSet, ClientBuilder, LockClient, LockError, NameRules, Operation};
use lock_register::{Register, RegisterBackend, RegisterOptions, Stored, Written};

/// Makes a client of the locks in this folder.
///
/// # Errors
/// Those of [`ClientBuilder::build`].
pub fn client(
    folder: &Path,
    options: RegisterOptions,
    builder: ClientBuilder,
) -> Result<LockClient, LockError> {
    let names = NameRules::new(CharacterSet::PORTABLE, 200);
    let capabilities = options.capabilities("folder", names, Duration::ZERO);
    let folder = Folder(folder.to_owned());
    builder.build(move |context| RegisterBackend::new(folder, context, options, capabilities))
}

#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn content(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.0.join(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            content => content.map(Some),
        }
    }

    /// Returns whether the object was what it is to be, and has the new content.
    fn replace(&self, key: &str, content: &[u8], if_still: Option<&Vec<u8>>) -> io::Result<bool> {
        let turn = File::create(self.0.join(format!("{key}.turn")))?;
        match turn.try_lock() {
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
            Ok(()) => {}
        }
        if self.content(key)?.as_ref() != if_still {
            return Ok(false);
        }
        let fresh = self.0.join(format!("{key}.new"));
        fs::write(&fresh, content)?;
        fs::rename(fresh, self.0.join(key))?;
        Ok(true)
    }
}

fn failed(error: io::Error) -> LockError {
    LockError::new(lock_core::ErrorKind::Server, Operation::Acquire).because(error.to_string())
}

impl Register for Folder {
    /// The content: that of each write is another.
    type Version = Vec<u8>;

    async fn read(&self, key: &str) -> Result<Option<Stored<Vec<u8>>>, LockError> {
        let content = self.content(key).map_err(failed)?;
        Ok(content.map(|content| (content.clone(), content)))
    }

    async fn write(&self, key: &str, content: Vec<u8>, if_still: Option<&Vec<u8>>) -> Written<Vec<u8>> {
        match self.replace(key, &content, if_still) {
            Ok(true) => Written::Done(content),
            Ok(false) => Written::Conflict,
            Err(error) => Written::Refused(failed(error)),
        }
    }
}
