//! Makes sure, before a hold begins, that its node exists and that its session lasts.

use lock_entries::Place;

use crate::failure::{Failure, existing};
use crate::session::Session;

/// Whether the node exists, by a request that the leader commits.
pub(crate) async fn is_there(session: &Session, path: &str) -> Result<bool, Failure> {
    Ok(existing(session.beat(path).await)?.is_some())
}

/// Makes sure that the node exists, by heartbeats that prove enough for a hold to begin.
pub(crate) async fn verify_node(session: &Session, path: &str) -> Result<Place, Failure> {
    while !is_fresh(session) {
        if !is_there(session, path).await? {
            return Ok(Place::Lost);
        }
        if !is_fresh(session)
            && let Some(moment) = session.worth_repeating_at()
        {
            // After a pause one heartbeat proves too little.
            session.clock().sleep_until(moment).await;
        }
    }
    Ok(Place::Kept)
}

/// Whether enough is left of what the last answers prove for a hold to begin.
pub(crate) fn is_fresh(session: &Session) -> bool {
    session.clock().now() < session.anchor().plus(session.term() / 2)
}
