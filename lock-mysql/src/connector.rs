//! Opens connections, and pauses while a server refuses them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lock_core::spi::Mutex;
use lock_core::{BackendContext, Backoff, LockError, Moment};

use crate::session::Session;
use crate::settings::Settings;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Opens connections. After a failure only one caller at a time tries, after a pause that grows with each failure.
pub(crate) struct Connector {
    context: BackendContext,
    settings: Arc<Settings>,
    outage: Mutex<Option<Outage>>,
    /// Held by the caller that tries now.
    turn: tokio::sync::Mutex<()>,
}

/// A period in which the server refuses connections or cannot be reached.
struct Outage {
    failures: u64,
    last: LockError,
    backoff: Backoff,
    again_at: Moment,
}

impl Connector {
    pub(crate) fn new(context: BackendContext, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self { context, settings, outage: Mutex::default(), turn: tokio::sync::Mutex::default() })
    }

    /// Opens a connection.
    ///
    /// # Cancel safety
    /// Dropping the future ends the attempt, and the next caller has its turn.
    pub(crate) async fn open(&self) -> Result<Session, LockError> {
        let failures = self.failures();
        if failures > 0 {
            let _turn = self.turn.lock().await;
            if let Some(again_at) = self.again_at(failures)? {
                self.context.clock().sleep_until(again_at).await;
                return self.try_to_open().await;
            }
        }
        self.try_to_open().await
    }

    /// Why the last attempt failed, if it did.
    pub(crate) fn failure(&self) -> Option<LockError> {
        self.outage.lock().as_ref().map(|outage| outage.last.clone())
    }

    fn failures(&self) -> u64 {
        self.outage.lock().as_ref().map_or(0, |outage| outage.failures)
    }

    /// The end of the pause, if there is one. An error if the server has refused another attempt since there were this many.
    fn again_at(&self, failures: u64) -> Result<Option<Moment>, LockError> {
        match &*self.outage.lock() {
            Some(outage) if outage.failures != failures => Err(outage.last.clone()),
            outage => Ok(outage.as_ref().map(|outage| outage.again_at)),
        }
    }

    async fn try_to_open(&self) -> Result<Session, LockError> {
        let failures = self.failures();
        let opened = self.settings.open(&self.context).await;
        let mut outage = self.outage.lock();
        match &opened {
            Ok(_) => *outage = None,
            // Attempts at the same time count as one failure.
            Err(error) if outage.as_ref().map_or(0, |outage| outage.failures) == failures => {
                let backoff = outage.take().map(|outage| outage.backoff);
                let mut backoff = backoff.unwrap_or_else(|| Backoff::new(FIRST_PAUSE, LONGEST_PAUSE));
                let again_at = self.context.clock().now().plus(backoff.next_pause());
                *outage = Some(Outage { failures: failures + 1, last: error.clone(), backoff, again_at });
            }
            Err(_) => {}
        }
        opened
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connector").field("failure", &self.failure()).finish_non_exhaustive()
    }
}
