//! What is in the way of an attempt that waits.

use crate::failure::Failure;
use crate::node_claim::NodeClaim;
use crate::permits::FreePermits;
use crate::queue::{Next, Predecessors};

/// What is in the way.
pub(crate) enum Blocker {
    /// Others that came earlier.
    Queue(Predecessors),
    /// Permits that are taken.
    Permits(FreePermits),
}

impl Blocker {
    /// Watches what has to change next.
    ///
    /// # Cancel safety
    /// May be dropped at every await: it keeps what it has found out.
    pub(crate) async fn watch_next(&mut self, claim: &NodeClaim) -> Result<Next, Failure> {
        match self {
            Self::Queue(before) => before.watch_next(claim).await,
            Self::Permits(free) => free.watch_next().await,
        }
    }

    /// The name of the holder's node, if it is known to be one.
    pub(crate) fn first(&self) -> Option<&str> {
        match self {
            Self::Queue(before) => before.first(),
            Self::Permits(_) => None,
        }
    }

    /// The path of the node that is watched, if it is one that has to go.
    pub(crate) fn watched_path(&self, claim: &NodeClaim) -> Option<String> {
        match self {
            Self::Queue(before) => before.watched_name().map(|name| claim.path_of(name)),
            Self::Permits(_) => None,
        }
    }

    /// The watched node has gone.
    pub(crate) fn watched_is_gone(&mut self) {
        if let Self::Queue(before) = self {
            before.watched_is_gone();
        }
    }

    /// What was found out before contact was lost may no longer be true. Returns whether the client has to look again.
    pub(crate) fn contact_was_lost(&mut self) -> bool {
        match self {
            Self::Queue(before) => before.contact_was_lost(),
            Self::Permits(_) => true,
        }
    }
}
