//! Opens connections, and pauses while a server refuses them.

use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::SharedBackoff;
use lock_core::{BackendContext, Backoff, LockError};

use crate::session::Session;
use crate::settings::Settings;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Opens connections.
pub(crate) struct Connector {
    context: BackendContext,
    settings: Arc<Settings>,
    backoff: SharedBackoff,
}

impl Connector {
    pub(crate) fn new(context: BackendContext, settings: Arc<Settings>) -> Arc<Self> {
        let pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let backoff = SharedBackoff::new(context.clock().clone(), pauses);
        Arc::new(Self { context, settings, backoff })
    }

    /// Opens a connection. After a failure only one caller at a time tries.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt, and the next caller has its turn.
    pub(crate) async fn open(&self) -> Result<Session, LockError> {
        self.backoff.attempt(Box::pin(self.settings.open(&self.context))).await
    }

    /// Why the last attempt failed, if it did.
    pub(crate) fn failure(&self) -> Option<LockError> {
        self.backoff.failure()
    }
}
