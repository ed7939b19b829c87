//! What is in the way of an attempt that waits.

use std::future::Future;

use lock_core::Moment;

use crate::failure::Failure;
use crate::node_claim::NodeClaim;
use crate::session::Watching;

/// The result of looking for what has to change next.
pub(crate) enum Next {
    Watched(Watching),
    /// Nothing is in the way.
    None,
    /// A node of the attempt itself is gone.
    OwnIsGone,
}

/// What is in the way.
pub(crate) trait Blocker: Send + Sync {
    /// Watches what has to change next.
    ///
    /// # Cancel safety
    /// May be dropped at every await: it keeps what it has found out.
    fn watch_next(&mut self, claim: &NodeClaim) -> impl Future<Output = Result<Next, Failure>> + Send;

    /// The names of nodes of which the first that exists is the holder's, if they are known.
    fn first(&self) -> Vec<String> {
        Vec::new()
    }

    /// The name of the node that is watched, if it is one that has to go.
    fn watched_name(&self) -> Option<&str> {
        None
    }

    /// The watched node has gone without a change before.
    fn watched_is_gone(&mut self) {}

    /// Whether it will ask for the attempt's own nodes once more before nothing is in the way.
    fn asks_for_own(&self) -> bool {
        false
    }

    /// When it last asked for the attempt's own nodes, which were there.
    fn saw_own(&self) -> Option<Moment> {
        None
    }
}
