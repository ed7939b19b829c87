//! Inspects the holders and the waiters of a lock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{InspectRequest, LockError, LockStatus, Operation};

use crate::client::Client;
use crate::dialect::Dialect;

/// How many times the time for a statement an inspection gets: for several statements, and for opening a connection.
pub(crate) const STATEMENTS: u32 = 4;

pub(crate) async fn inspect<D: Dialect>(
    client: &Client<D>,
    request: &InspectRequest,
) -> Result<LockStatus, LockError> {
    let settings = &client.settings;
    let key = settings.dialect.key(request.name(), request.physical(), request.kind())?;
    let mut status = LockStatus::free(request.name().clone());
    let looking = D::inspect(client, &key);
    let limit = settings.request_timeout * STATEMENTS;
    (status.holders, status.waiters) = settings.in_time(limit, Operation::Inspect, looking).await?;
    Ok(status)
}

/// Returns a moment in microseconds since the epoch as time.
pub fn moment(microseconds: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(microseconds))
}
