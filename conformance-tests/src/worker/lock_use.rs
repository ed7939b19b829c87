//! What a worker does under a lock in other ways than with a guard.

use std::sync::Arc;
use std::time::Duration;

use lock_core::{LockClient, LockError, LockOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::protocol::Report;

/// A way to hold a lock. The worker reports `Inside` as soon as it holds it, and stays until it is told to leave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum LockUse {
    /// In the body of a `with_lock`.
    Body,
    /// As the work of this slot.
    Slot(String),
    /// With a pause of this many milliseconds after the grant.
    Pause(u64),
    /// Together with these other locks.
    With(Vec<String>),
    /// As a leader with this value; none if it is empty.
    Leader(String),
}

impl LockUse {
    /// Holds the lock until `leave`. Returns `Released`, or `Refused` for a slot that has run.
    pub(super) async fn run(
        self,
        client: &LockClient,
        name: &str,
        tell: impl Fn(Report),
        leave: Arc<Notify>,
    ) -> Result<Report, LockError> {
        let stay = async || {
            tell(Report::Inside);
            leave.notified().await;
            Ok::<_, LockError>(())
        };
        match self {
            Self::Body => {
                client.mutex(name)?.with_lock(async |_| stay().await).await?;
            }
            Self::Slot(slot) => {
                let work = client.once(name, slot)?;
                if work.run(async |_| stay().await).await?.is_none() {
                    return Ok(Report::Refused);
                }
            }
            Self::Pause(milliseconds) => {
                let options = LockOptions::new().at_least(Duration::from_millis(milliseconds));
                let guard = client.mutex_with(name, options)?.acquire().await?;
                stay().await?;
                guard.release().await?;
            }
            Self::With(others) => {
                let names = std::iter::once(name).chain(others.iter().map(String::as_str));
                let guard = client.mutex_all(names)?.acquire().await?;
                stay().await?;
                guard.release().await?;
            }
            Self::Leader(value) => {
                let leadership = client.election(name)?.campaign(value).await?;
                stay().await?;
                leadership.resign().await?;
            }
        }
        Ok(Report::Released)
    }
}
