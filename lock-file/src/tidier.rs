//! Removes files that stayed because the gate was busy, or because their owner was killed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use lock_core::spi::Mutex;

use crate::attempt::{Knocking, Means};
use crate::failure::Failure;
use crate::folder::Folder;
use crate::gate::Gate;
use crate::holders;
use crate::subject::{FOLDERS, Subject};
use crate::watcher::{Care, Next, Sleeper};

/// How many locks a client checks when it opens or closes. Other clients find the rest. It is a small number, because a
/// client may be opened for a single lock, and the others wait at the gate meanwhile.
const SWEPT_AT_ONCE: usize = 4;

/// The locks of a client that need tidying up.
#[derive(Debug)]
pub(crate) struct Tidier {
    means: Means,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    untidy: BTreeSet<Subject>,
    knocking: Option<Knocking>,
    care: Option<Care>,
}

impl Tidier {
    pub(crate) fn new(means: Means) -> Self {
        Self { means, state: Mutex::default() }
    }

    /// Tidies the lock up as soon as the gate is free.
    pub(crate) fn later(self: &Arc<Self>, subject: &Subject) {
        let mut state = self.state.lock();
        state.untidy.insert(subject.clone());
        if state.knocking.is_none() {
            let mut knocking = Knocking::since(Instant::now());
            let pause = knocking.pause();
            state.knocking = Some(knocking);
            let former = state.care.take();
            let care = self.means.watcher.look_after(Arc::clone(self) as Arc<dyn Sleeper>, pause);
            state.care = Some(care);
            drop(state);
            drop(former);
        }
    }

    /// Tidies up all locks that need it, in the gate.
    pub(crate) fn finish(&self, gate: &Gate) {
        let untidy = std::mem::take(&mut self.state.lock().untidy);
        for subject in untidy {
            // A file that cannot be removed now is reused, or a later sweep finds it.
            let _ = holders::tidy(gate, &subject);
        }
    }

    /// Makes the watcher forget this tidier, when the client ends.
    pub(crate) fn dismiss(&self) {
        let care = self.state.lock().care.take();
        drop(care);
    }
}

impl Sleeper for Tidier {
    fn look(&self) -> Next {
        match Gate::enter(&self.means.place) {
            Ok(Some(gate)) => {
                self.state.lock().knocking = None;
                if gate.check_layout().is_ok() {
                    self.finish(&gate);
                }
                Next::Over
            }
            Ok(None) => match &mut self.state.lock().knocking {
                Some(knocking) => Next::Again(knocking.pause()),
                None => Next::Over,
            },
            Err(_) => {
                self.state.lock().knocking = None;
                Next::Over
            }
        }
    }
}

/// Checks some of the folder's locks, and removes the files of killed holders and waiters.
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
        let _ = holders::tidy(gate, subject);
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
