//! Removes what was left because nobody could get into the gate at that moment, or because its owner was killed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::attempt::{Knocking, Means};
use crate::folder::Folder;
use crate::gate::Gate;
use crate::held;
use crate::queue::Queue;
use crate::trouble::Trouble;
use crate::watcher::{Care, Next, Sleeper};

/// How many locks are looked at when a client opens or closes. What is left over is found by another client. Few: a
/// client may be opened for a single lock, and the others wait at the gate meanwhile.
const SWEPT_AT_ONCE: usize = 4;

/// The locks of a client that are to be tidied up.
#[derive(Debug)]
pub(crate) struct Tidier {
    means: Means,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    untidy: BTreeSet<String>,
    knocking: Option<Knocking>,
    care: Option<Care>,
}

impl Tidier {
    pub(crate) fn new(means: Means) -> Self {
        Self { means, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tidies the lock up as soon as the gate can be had.
    pub(crate) fn later(self: &Arc<Self>, physical: &str) {
        let mut state = self.lock();
        state.untidy.insert(physical.to_owned());
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

    /// Tidies up whatever waits for it, in the gate.
    pub(crate) fn finish(&self, gate: &Gate) {
        let untidy = std::mem::take(&mut self.lock().untidy);
        for physical in untidy {
            // What cannot be removed now is found by a later sweep, or used again.
            let _ = tidy(gate, &physical);
        }
    }

    /// Ends the watcher's interest in it, when the client ends.
    pub(crate) fn dismiss(&self) {
        let care = self.lock().care.take();
        drop(care);
    }
}

impl Sleeper for Tidier {
    fn look(&self) -> Next {
        match Gate::enter(&self.means.place) {
            Ok(Some(gate)) => {
                self.lock().knocking = None;
                self.finish(&gate);
                Next::Over
            }
            Ok(None) => match &mut self.lock().knocking {
                Some(knocking) => Next::Again(knocking.pause()),
                None => Next::Over,
            },
            Err(_) => {
                self.lock().knocking = None;
                Next::Over
            }
        }
    }
}

/// Removes what a lock has left, if it is free and nobody waits.
fn tidy(gate: &Gate, physical: &str) -> Result<(), Trouble> {
    held::tidy(gate, physical)?;
    Queue::of(gate.folder(), physical).tidy()
}

/// Looks at some of the folder's locks, and tidies up after those of their holders and waiters that were killed.
///
/// Best effort: what cannot be tidied up is in nobody's way.
pub(crate) fn sweep(gate: &Gate) {
    let mut names = names(gate.folder()).unwrap_or_default();
    // Begin somewhere else each time, so that many living locks do not hide a dead one for ever.
    let start = usize::try_from(u64::from(std::process::id()).wrapping_mul(0x9E37_79B9)).unwrap_or(0);
    if !names.is_empty() {
        let start = start % names.len();
        names.rotate_left(start);
    }
    names.truncate(SWEPT_AT_ONCE);
    for physical in &names {
        let _ = tidy(gate, physical);
    }
}

fn names(folder: &Folder) -> Result<Vec<String>, Trouble> {
    let mut names = folder.list("held")?.unwrap_or_default();
    names.extend(folder.list("queue")?.unwrap_or_default());
    names.sort_unstable();
    names.dedup();
    Ok(names)
}
