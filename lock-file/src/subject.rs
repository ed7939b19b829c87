//! What can be held: the lock or the semaphore of a name. They have nothing to do with each other.

use std::sync::Arc;

use lock_core::{AcquireRequest, InspectRequest, LockError, LockKind};

/// The subfolders of the folder, which exist as long as it is in use.
pub(crate) const FOLDERS: [&str; 5] = [HELD, SHARED, QUEUE, PERMITS, PERMITS_QUEUE];

const HELD: &str = "held";
const SHARED: &str = "shared";
const QUEUE: &str = "queue";
const PERMITS: &str = "permits";
const PERMITS_QUEUE: &str = "permits-queue";

/// A lock or a semaphore, with its name in the folder.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    kind: LockKind,
    physical: Arc<str>,
}

impl Subject {
    pub(crate) fn new(kind: LockKind, physical: &str) -> Self {
        Self { kind, physical: Arc::from(physical) }
    }

    pub(crate) fn of_request(request: &AcquireRequest) -> Self {
        Self::new(request.mode().kind(), request.physical().as_str())
    }

    pub(crate) fn of_inspection(request: &InspectRequest) -> Self {
        Self::new(request.kind(), request.physical().as_str())
    }

    /// The subject of a file or a folder in one of the [`FOLDERS`].
    pub(crate) fn found_in(folder: &str, physical: &str) -> Self {
        let kind = match folder {
            PERMITS | PERMITS_QUEUE => LockKind::Semaphore,
            _ => LockKind::Lock,
        };
        Self::new(kind, physical)
    }

    /// A request to inspect it.
    pub(crate) fn inspection(&self) -> Result<InspectRequest, LockError> {
        InspectRequest::found(&self.physical, self.kind)
    }

    pub(crate) fn is_semaphore(&self) -> bool {
        self.kind == LockKind::Semaphore
    }

    /// The file of a lock's exclusive holder. A semaphore has none.
    pub(crate) fn held(&self) -> String {
        format!("{HELD}/{}", self.physical)
    }

    /// The folder with a file for each reader, or for each holder of permits.
    pub(crate) fn shares(&self) -> String {
        format!("{}/{}", if self.is_semaphore() { PERMITS } else { SHARED }, self.physical)
    }

    /// The folder with a file for each waiter.
    pub(crate) fn queue(&self) -> String {
        format!("{}/{}", if self.is_semaphore() { PERMITS_QUEUE } else { QUEUE }, self.physical)
    }
}
