//! Counts the clones and locks through which users still use a client.

use std::sync::Arc;

use crate::policy::context::ClientContext;

/// Dropped with the last clone of a client and the last of its locks. From then on the client only has to finish its
/// work.
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
