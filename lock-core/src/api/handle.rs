//! What a user has of a client, in clones and locks.

use std::sync::Arc;

use crate::policy::context::ClientContext;

/// Dropped with the last clone of a client and the last of its locks: all that is left then is to end.
pub(crate) struct Handle(Arc<ClientContext>);

impl Handle {
    pub(crate) fn of(context: &Arc<ClientContext>) -> Self {
        Self(Arc::clone(context))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.cleanup.unused();
    }
}
