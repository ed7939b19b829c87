//! Removes files that stayed because the gate was busy, or because their owner was killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use lock_core::spi::Mutex;

use crate::attempt::{GateBackoff, Resources};
use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::holders;
use crate::subject::{FOLDERS, Subject};
use crate::watcher::{Next, Registration, WatchedTask};

/// How many locks a client checks when it opens or closes. Other clients find the rest. It is a small number, because a
/// client may be opened for a single lock, and the others wait at the gate meanwhile.
const SWEPT_AT_ONCE: usize = 4;

/// The locks of a client that need a clean-up.
#[derive(Debug)]
pub(crate) struct FileCleaner {
    resources: Resources,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pending: BTreeSet<Subject>,
    backoff: Option<GateBackoff>,
    registration: Option<Registration>,
}

impl FileCleaner {
    pub(crate) fn new(resources: Resources) -> Self {
        Self { resources, state: Mutex::default() }
    }

    /// Cleans the lock up as soon as the gate is free.
    pub(crate) fn later(self: &Arc<Self>, subject: &Subject) {
        let mut state = self.state.lock();
        state.pending.insert(subject.clone());
        if state.backoff.is_none() {
            let mut backoff = GateBackoff::since(Instant::now());
            let pause = backoff.pause();
            state.backoff = Some(backoff);
            let former = state.registration.take();
            let registration =
                self.resources.watcher.register(Arc::clone(self) as Arc<dyn WatchedTask>, pause);
            state.registration = Some(registration);
            drop(state);
            drop(former);
        }
    }

    /// Cleans up all locks that need it, in the gate.
    pub(crate) fn finish(&self, gate: &Gate) {
        let pending = std::mem::take(&mut self.state.lock().pending);
        for subject in pending {
            // A file that cannot be removed now is reused, or a later sweep finds it.
            let _ = holders::clean(gate, &subject);
        }
    }

    /// Makes the watcher forget this cleaner, when the client ends.
    pub(crate) fn dismiss(&self) {
        let registration = self.state.lock().registration.take();
        drop(registration);
    }
}

impl WatchedTask for FileCleaner {
    fn check(&self) -> Next {
        match Gate::enter(&self.resources.lock_folder) {
            Ok(Some(gate)) => {
                self.state.lock().backoff = None;
                if gate.check_layout().is_ok() {
                    self.finish(&gate);
                }
                Next::Over
            }
            Ok(None) => match &mut self.state.lock().backoff {
                Some(backoff) => Next::Again(backoff.pause()),
                None => Next::Over,
            },
            Err(_) => {
                self.state.lock().backoff = None;
                Next::Over
            }
        }
    }
}

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

fn find(folder: &Folder) -> Result<Vec<Subject>, Failure> {
    let mut found = BTreeSet::new();
    for relative in FOLDERS {
        let names = folder.list(relative)?.unwrap_or_default();
        found.extend(names.iter().map(|physical| Subject::found_in(relative, physical)));
    }
    Ok(found.into_iter().collect())
}
