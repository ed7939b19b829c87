//! Removes files that stayed because the gate was busy, or because their owner was killed.

use std::collections::BTreeSet;

use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::holders;
use crate::subject::{FOLDERS, Subject};

/// How many locks a client checks when it opens or closes. Other clients find the rest. It is a small number, because a
/// client may be opened for a single lock, and the others wait at the gate meanwhile.
const SWEPT_AT_ONCE: usize = 4;

/// Checks some of the folder's locks, and removes the files of killed holders and waiters, and folders that killed clients kept.
///
/// Best effort: a file that stays does no harm.
pub(crate) fn sweep(gate: &Gate) {
    let mut found = find(gate.folder()).unwrap_or_default();
    // Begin at another lock each time, so that many locks in use do not hide an abandoned one for ever.
    let start = usize::try_from(u64::from(std::process::id()).wrapping_mul(0x9E37_79B9)).unwrap_or(0);
    if !found.is_empty() {
        let start = start % found.len();
        found.rotate_left(start);
    }
    found.truncate(SWEPT_AT_ONCE);
    for subject in &found {
        let _ = holders::clean(gate, subject);
        holders::remove_empty_folders(gate, subject);
    }
}

/// Finds the locks and semaphores that have files, in use or not.
pub(crate) fn find(folder: &Folder) -> Result<Vec<Subject>, Failure> {
    let mut found = BTreeSet::new();
    for relative in FOLDERS {
        let names = folder.list(relative)?.unwrap_or_default();
        found.extend(names.iter().map(|physical| Subject::found_in(relative, physical)));
    }
    Ok(found.into_iter().collect())
}
