//! The request that a backend gets when a lock is inspected, or taken away from its holder.

use crate::types::{LockError, LockKind, LockName, LockStatus, Participant, PhysicalName};

/// A request to inspect a lock.
///
/// ```
/// use lock_core::{CharacterSet, InspectRequest, LockName, LockStatus, NameRules};
///
/// let name = LockName::new("orders/42")?;
/// let physical = NameRules::new(CharacterSet::ANY, 200).apply(&name);
/// let request = InspectRequest::new(name, physical);
///
/// let sent = format!("holder of {}", request.physical());
/// let status = LockStatus::free(request.name().clone());
/// # Ok::<(), lock_core::LockError>(())
/// ```
#[derive(Debug, Clone)]
pub struct InspectRequest {
    pub(crate) name: LockName,
    pub(crate) physical: PhysicalName,
    pub(crate) kind: LockKind,
    pub(crate) seen: Option<LockStatus>,
}

impl InspectRequest {
    /// Creates a request about a lock, to test a backend without the core.
    pub fn new(name: LockName, physical: PhysicalName) -> Self {
        Self { name, physical, kind: LockKind::Lock, seen: None }
    }

    /// Creates a request about what the server knows by this name, for [`Backend::list`](crate::Backend::list).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) for what cannot be the name of a lock.
    pub fn found(physical: &str, kind: LockKind) -> Result<Self, LockError> {
        let name = LockName::new(physical)?;
        Ok(Self { physical: PhysicalName::of_server(&name), name, kind, seen: None })
    }

    /// Makes the request one about a lock or about a semaphore.
    #[must_use]
    pub fn about(mut self, kind: LockKind) -> Self {
        self.kind = kind;
        self
    }

    /// Adds who holds it and who waits for it, if the server tells that of all locks at once: then a list does not inspect it.
    #[must_use]
    pub fn seen(mut self, holders: Vec<Participant>, waiters: Vec<Participant>) -> Self {
        self.seen = Some(LockStatus { name: self.name.clone(), holders, waiters, remaining: None });
        self
    }

    /// Returns whether the request is about a lock or about the semaphore of that name. Only backends with
    /// [semaphores](crate::Capabilities::permits) are asked about them.
    pub fn kind(&self) -> LockKind {
        self.kind
    }

    /// Returns the name of the lock, as the user wrote it; of what was [found](Self::found), the one at the server.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the name of the lock on the server.
    pub fn physical(&self) -> &PhysicalName {
        &self.physical
    }
}
