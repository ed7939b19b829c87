//! A lock that this client holds, and the watch for its loss.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{AcquireRequest, FencingToken, LossReason};

use crate::failure::Failure;
use crate::gate::Gate;
use crate::holders::Held;
use crate::locked_file::Standing;
use crate::watcher::{Next, Registration, WatchedTask, Watcher};

/// How long a new hold is not watched. Most holds end earlier, and cost neither a watch nor a thread's wake-up.
const YOUNG: Duration = Duration::from_millis(25);

/// A lock that this client holds.
#[derive(Debug)]
pub(crate) struct Hold {
    watch: Arc<LossWatch>,
    _registration: Registration,
}

/// Tells the holder when its file no longer excludes other clients.
struct LossWatch {
    held: Held,
    handle: AcquireRequest,
    poll_interval: Duration,
    /// How the hold ended, once it has.
    end: Mutex<Option<Standing>>,
}

impl Hold {
    pub(crate) fn new(
        held: Held,
        handle: AcquireRequest,
        poll_interval: Duration,
        watcher: &Watcher,
    ) -> Self {
        let watch = Arc::new(LossWatch { held, handle, poll_interval, end: Mutex::new(None) });
        let registration = watcher.register(Arc::clone(&watch) as Arc<dyn WatchedTask>, YOUNG);
        Self { watch, _registration: registration }
    }

    pub(crate) fn token(&self) -> FencingToken {
        FencingToken::new(self.watch.held.token)
    }

    /// The descriptor that holds the lock.
    pub(crate) fn descriptor(&self) -> &Arc<OwnedFd> {
        self.watch.held.file.descriptor()
    }

    /// Replaces the value in the holder's record. To be called in the gate.
    pub(crate) fn show(&self, value: Option<String>) -> Result<Standing, Failure> {
        let (end, Held { file, token }) = (self.watch.end.lock(), &self.watch.held);
        end.map_or_else(|| file.show(*token, value), Ok)
    }

    /// Releases the lock, and returns whether it was held until now. A second call returns the same again.
    pub(crate) fn release(&self, gate: Option<&Gate>) -> Result<Standing, Failure> {
        let mut end = self.watch.end.lock();
        if let Some(standing) = *end {
            return Ok(standing);
        }
        let standing = self.watch.held.file.release(gate)?;
        *end = Some(standing);
        Ok(standing)
    }

    /// Releases the lock for a share that its holder has got, unless it ended before.
    pub(crate) fn hand_over(&self, gate: &Gate) -> Result<Standing, Failure> {
        if self.watch.end.lock().is_some() {
            return Ok(Standing::Lost(LossReason::Deleted));
        }
        self.release(Some(gate))
    }
}

impl WatchedTask for LossWatch {
    fn check(&self) -> Next {
        let end = self.end.lock();
        if end.is_some() {
            return Next::Over;
        }
        let standing = self.held.file.standing();
        drop(end);
        match standing {
            Standing::Ours => Next::Watch { path: self.held.file.path(), otherwise: self.poll_interval },
            Standing::Lost(reason) => {
                self.handle.lost(reason);
                Next::Over
            }
        }
    }
}

impl std::fmt::Debug for LossWatch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LossWatch").field("held", &self.held).finish_non_exhaustive()
    }
}
